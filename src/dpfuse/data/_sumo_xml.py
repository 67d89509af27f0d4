"""Floating-car data of SUMO in XML, read as a stream: an element is forgotten once it has been seen.

The files may come from strangers. A document type declaration is refused, so that no entity is ever declared. So are
elements that are nested or long beyond any use, because they would have to be kept in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

import numpy as np

from dpfuse.data._layouts import READ_ERRORS, Advance, open_bytes
from dpfuse.data._rules import Rule
from dpfuse.data.reading import Instants, Numbering, VehicleRows
from dpfuse.errors import FileRefused

_BLOCK_BYTES = 1 << 18
_BATCH_ROWS = 1 << 16
_ROOT = "fcd-export"
_MOST_NESTED = 16
_LONGEST_ELEMENT_BYTES = 1 << 22


class SumoXml:
    """One file: its elements become rows.

    Attributes:
        section: rows off this section are left out.
        edge: if given, only vehicles on this edge are read, by their `pos`; otherwise all, by `x`.
        rules: what numbers must be, by attribute.
    """

    def __init__(
        self,
        path: Path,
        section: tuple[float, float],
        edge: str | None,
        rules: dict[str, Rule],
        instants: Instants,
        number: Numbering,
    ) -> None:
        self._path, self._edge, self._rules = path, edge, rules
        self._start, self._stop = section
        self._instants, self._number = instants, number
        self._where = "x" if edge is None else "pos"
        self._place, self._speed = rules[self._where], rules["speed"]
        self._depth = 0
        self._chosen: float | None = None
        self._times: list[float] = []
        self._rows: list[tuple[float, int, float, float]] = []
        self._num_rows = 0
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def batches(self, advance: Advance) -> Iterator[VehicleRows]:
        """The rows of the file."""
        try:
            with open_bytes(self._path) as (content, raw):
                at = num_given = 0
                while block := content.read(_BLOCK_BYTES):
                    self._parser.Parse(block, False)
                    num_given += len(block)
                    if num_given - self._parser.CurrentByteIndex > _LONGEST_ELEMENT_BYTES:
                        self._refuse(f"an element must be shorter than {_LONGEST_ELEMENT_BYTES} bytes")
                    at, before = raw.tell(), at
                    advance(at - before)
                    if max(len(self._rows), len(self._times)) >= _BATCH_ROWS:
                        yield self._take()
                self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            reason = re.sub(r":.*", "", str(error))
            self._refuse(f"the XML is broken or cut short ({reason})", error.lineno)
        except READ_ERRORS:
            raise FileRefused(f"{self._path} cannot be read: it is damaged or cut short; write it again") from None
        if self._times:
            yield self._take()

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if tag == "vehicle":
            self._num_rows += 1
            if self._chosen is not None and (self._edge is None or self._is_on_edge(attributes)):
                place = self._to_number(attributes, self._where, self._place)
                speed = self._to_number(attributes, "speed", self._speed)
                if "id" not in attributes:
                    self._refuse("vehicle must have an id")
                if self._start <= place < self._stop:
                    self._rows.append((self._chosen, self._number(attributes["id"]), place, speed))
        elif tag == "timestep":
            self._begin_timestep(attributes)
        elif self._depth > _MOST_NESTED:
            self._refuse(f"elements must be nested at most {_MOST_NESTED} deep")
        elif self._depth == 1 and tag != _ROOT:
            self._refuse(f"the first element must be {_ROOT}, as SUMO writes it with --fcd-output")

    def _end(self, _tag: str) -> None:
        self._depth -= 1

    def _begin_timestep(self, attributes: dict[str, str]) -> None:
        time = self._to_number(attributes, "time", self._rules["time"])
        try:
            self._chosen = self._instants.choose(time)
        except ValueError:
            self._refuse("time must not go back")
        if self._chosen is not None:
            self._times.append(self._chosen)

    def _is_on_edge(self, attributes: dict[str, str]) -> bool:
        # A lane is named after its edge and its number: gneE0_1.
        return attributes.get("lane", "").rpartition("_")[0] == self._edge

    def _to_number(self, attributes: dict[str, str], name: str, rule: Rule) -> float:
        try:
            number = float(attributes[name])
        except (KeyError, ValueError):
            number = np.nan
        if not rule.lowest <= number <= rule.highest:
            self._refuse(f"{name} must be {rule.text}")
        return number

    def _take(self) -> VehicleRows:
        """The rows since the last time. The present instant is named again in the next batch."""
        columns: Any = np.array(self._rows, np.float64).reshape(-1, 4).T
        taken = VehicleRows(
            np.array(self._times), columns[0], columns[1].astype(np.int64), columns[2], columns[3], self._num_rows
        )
        self._rows, self._times, self._num_rows = [], [], 0
        return taken

    def _refuse(self, reason: str, line: int | None = None) -> NoReturn:
        where = self._parser.CurrentLineNumber if line is None else line
        raise FileRefused(f"{self._path}, line {where}: {reason}")

    def _refuse_doctype(self, *_: object) -> None:
        self._refuse("the file must have no document type declaration; SUMO writes none")
