"""Sensor attributes: fixed public facts of each sensor, such as where a station stands."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats32, Integers
from dpfuse.errors import FileRefused

_NOBODY = -1
_LARGEST_ID = 2**63 - 1


@dataclass(frozen=True, eq=False)
class SensorAttributes:
    """Fixed public numbers of each sensor, by its id. A sensor's own f reads them, and nothing else does.

    **Guarantees**
        - They are public: the budget does not protect them, and neither does a period. Registering a sensor shows
          that it exists.
        - The operator registers them at public moments, never because of a report. So whether a sensor has attributes,
          and which, is the same whatever is reported.

    Attributes:
        ids: of the sensors, sorted, shape (n,).
        values: shape (n, n_a), finite.
    """

    ids: Integers
    values: Floats32

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids, np.int64)
        values = _check.as_array("values", self.values, np.float32, "(sensors, attributes)", 2)
        if ids.shape != values.shape[:1] or not values.shape[1]:
            raise ValueError(f"attributes must have one row of numbers for each id, got {ids.shape}, {values.shape}")
        order = np.argsort(ids, kind="stable")
        ids, values = ids[order], values[order]
        if (ids < 0).any() or (np.diff(ids) == 0).any():
            raise ValueError("attributes must have different ids of 0 or more")
        if not np.isfinite(values).all():
            raise ValueError("attributes must be finite; leave a sensor out if they are not known")
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "values", values)

    @classmethod
    def of(cls, given: SensorAttributes | Mapping[int, Sequence[float]]) -> SensorAttributes:
        """The attributes in a mapping from ids to numbers."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping) or not given:
            raise TypeError("attributes must be a SensorAttributes, or a mapping from ids to one number or more each")
        rows = [np.atleast_1d(np.asarray(row, np.float64)) for row in given.values()]
        if len({row.shape for row in rows}) > 1:
            raise ValueError("attributes must have as many numbers for one sensor as for another")
        return cls(np.array(list(given), np.int64), np.array(rows))

    @property
    def num_attributes(self) -> int:
        return int(self.values.shape[1])

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of ids and values, by which readers recognise the file that a centre runs with."""
        content = self.ids.astype("<i8").tobytes() + self.values.astype("<f4").tobytes()
        return hashlib.sha256(f"{self.values.shape}".encode() + content).hexdigest()

    def look_up(self, ids: Integers) -> Floats32:
        """The attributes of each id, shape (..., n_a): NaN for a sensor that is not registered, 0 for nobody."""
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        found = np.where((self.ids[place] == ids)[..., None], self.values[place], np.float32(np.nan))
        return np.where((ids == _NOBODY)[..., None], np.float32(0), found)

    def merge(self, other: SensorAttributes) -> SensorAttributes:
        """The sensors of both; one that is in both must have the same attributes."""
        if other is self:
            return self
        if other.num_attributes != self.num_attributes:
            raise ValueError(f"attributes must be {self.num_attributes} for all parts, got {other.num_attributes}")
        own = self.look_up(other.ids)
        is_new = np.isnan(own).any(-1)
        if (own[~is_new] != other.values[~is_new]).any():
            raise ValueError("attributes of one sensor must be the same in all parts; give other sensors other ids")
        return SensorAttributes(
            np.concatenate([self.ids, other.ids[is_new]]), np.concatenate([self.values, other.values[is_new]])
        )

    @classmethod
    def merge_all(cls, many: Sequence[SensorAttributes | None]) -> SensorAttributes | None:
        """The attributes of all parts of a recording; None if none has some."""
        given = [each for each in many if each is not None]
        if given and len(given) < len(many):
            raise ValueError("attributes must be given for all parts or for none")
        return reduce(cls.merge, given) if given else None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SensorAttributes:
        """The attributes in a CSV file: a header, then an id and its numbers in each line."""
        ids, values = [], []
        with open(path, newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            width = len(next(lines, []))
            for row in lines:
                number = lines.line_num
                if len(row) != width or width < 2:
                    raise FileRefused(f"{path}, line {number}: must have an id and as many numbers as the header names")
                ids.append(_id(row[0], path, number))
                values.append([_number(text, path, number) for text in row[1:]])
        if not ids:
            raise FileRefused(f"{path} must have a header and a line for each sensor, got no sensor")
        try:
            return cls(np.array(ids, np.int64), np.array(values))
        except ValueError as error:
            raise FileRefused(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike[str], names: Sequence[str] | None = None) -> None:
        """Write the CSV file that `load` reads; `names` are those of the attributes in its header."""
        names = [f"attribute_{i}" for i in range(self.num_attributes)] if names is None else names
        with open(path, "w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(["sensor", *names])
            lines.writerows([number, *row] for number, row in zip(self.ids.tolist(), self.values.tolist(), strict=True))


def _id(text: str, path: Any, line: int) -> int:
    if not text.strip().isdecimal() or int(text) > _LARGEST_ID:
        raise FileRefused(f"{path}, line {line}: the id must be a whole number of 0 or more, got {text!r}")
    return int(text)


def _number(text: str, path: Any, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise FileRefused(f"{path}, line {line}: an attribute must be a number, got {text!r}") from None
