"""Floating-car data of SUMO (`--fcd-output`): XML, CSV and Parquet, plain or compressed by gzip."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.data._layouts import READ_ERRORS, Advance, Wanted, arrow, batches, detect
from dpfuse.data._rules import BrokenBatch, Check, Rule, fault_in, find_fault, fits, to_numbers
from dpfuse.data._sumo_xml import SumoXml
from dpfuse.data.reading import Instants, Numbering, RecordingRead, RoadSection, VehicleRows, read_vehicles
from dpfuse.data.recording import folder_of
from dpfuse.errors import DatasetMissing, FileRefused

_RULES = {
    "time": Rule(0, 7.26e9, False, "a time in s of 0 or more"),
    "x": Rule(-1e9, 1e9, False, "a coordinate in m"),
    "pos": Rule(-1e9, 1e9, False, "a position on the lane in m"),
    "speed": Rule(0, 1000, False, "a speed in m/s from 0 to 1000"),
}
_XML = (".xml", ".xml.gz")
_TABLES = (".csv", ".csv.gz", ".parquet")


def sumo(
    directory: str | os.PathLike[str] | None = None,
    *,
    section: tuple[float, float],
    interval_s: float | None = None,
    edge: str | None = None,
    steps: int | None = None,
    progress: bool = False,
) -> RecordingRead:
    """The traffic on a section of a simulated road, as SUMO writes it with `--fcd-output`.

    Args:
        directory: a file that ends in .xml, .csv or .parquet, also with .gz, or a folder of them, each of which is a
            run. By default the environment variable DPFUSE_DATA names it; a subfolder `sumo` is read alone.
        section: start (included) and end (excluded) in m: of x, or of the position on the edge.
        interval_s: time between steps; by default that of the file. A step takes the first instant at or after it.
        edge: read only vehicles on this edge of the network, by their position on it.
        steps: length of the runs; by default the one that keeps the most steps.
        progress: show a progress bar on stderr.

    Returns:
        `state` is the density in vehicles per km, all lanes together; measurements are the position on the section in
        m and the speed in m/s. Ids are numbers; `Trajectories.labels` has the names.
    """
    road = RoadSection(section=section, interval_s=interval_s, steps=steps, progress=progress)
    paths, source = _find(folder_of(directory)), _Sumo(section=section, interval_s=interval_s, edge=edge)
    return read_vehicles(road, paths, source.rows, source.number)


def _find(where: Path) -> list[Path]:
    if not where.exists():
        raise DatasetMissing(f"no folder or file at {where}; SUMO writes one with --fcd-output FILE")
    if where.is_file():
        return [where]
    folder = where / "sumo" if (where / "sumo").is_dir() else where
    paths = sorted(path for path in folder.iterdir() if path.name.lower().endswith(_XML + _TABLES))
    if not paths:
        raise DatasetMissing(
            f"no file that ends in .xml, .csv or .parquet in {folder}; SUMO writes one with --fcd-output"
        )
    return paths


@dataclass(frozen=True, kw_only=True)
class _Sumo:
    """How files are read, and the numbers of the vehicles."""

    section: tuple[float, float]
    interval_s: float | None
    edge: str | None
    number: Numbering = field(default_factory=Numbering)

    def rows(self, path: Path, advance: Advance) -> Iterator[VehicleRows]:
        """The rows of a file."""
        instants = Instants(self.interval_s)
        if path.name.lower().endswith(_TABLES):
            yield from self._table_rows(path, advance, instants)
        else:
            yield from SumoXml(path, self.section, self.edge, _RULES, instants, self.number).batches(advance)
        instants.check(path)

    def _table_rows(self, path: Path, advance: Advance, instants: Instants) -> Iterator[VehicleRows]:
        layout = detect(path, self._wanted())
        if layout is None:
            raise FileRefused(f"{path}, line 1: the column timestep_time is missing; write the file with --fcd-output")
        pa, num_read, last = arrow(), 0, 0.0
        try:
            for batch in batches(path, layout, advance):
                time = to_numbers(batch["timestep_time"], _RULES["time"])
                if (np.diff(time, prepend=last) < 0).any():
                    raise BrokenBatch
                yield self._to_rows(batch, time, instants)
                num_read, last = num_read + len(time), float(time[-1])
        except (BrokenBatch, pa.ArrowException, *READ_ERRORS):
            raise FileRefused(find_fault(path, layout, num_read, self._make_check(last))) from None

    @property
    def _where(self) -> str:
        return "vehicle_x" if self.edge is None else "vehicle_pos"

    def _wanted(self) -> Wanted:
        lane = () if self.edge is None else ("vehicle_lane",)
        return Wanted(key="timestep_time", needed=("timestep_time", "vehicle_id", "vehicle_speed", self._where, *lane))

    def _to_rows(self, batch: dict[str, Any], time: Floats, instants: Instants) -> VehicleRows:
        pa = arrow()
        known, which = np.unique(time, return_inverse=True)
        chosen = np.array([np.nan if (at := instants.choose(each)) is None else at for each in known.tolist()])
        # An instant without vehicles has one row without a vehicle.
        is_row = ~np.isnan(chosen)[which] & _is_filled(batch["vehicle_id"])
        if self.edge is not None:
            lane = batch["vehicle_lane"].cast(pa.string()).fill_null("")
            edge = pa.compute.replace_substring_regex(lane, "_[^_]*$", "")
            is_row &= pa.compute.equal(edge, self.edge).to_numpy(zero_copy_only=False)
        kept = {name: column.filter(pa.array(is_row)) for name, column in batch.items()}
        return VehicleRows(
            chosen[~np.isnan(chosen)],
            chosen[which][is_row],
            self.number.of_column(kept["vehicle_id"]),
            to_numbers(kept[self._where], _RULES[self._where.removeprefix("vehicle_")]),
            to_numbers(kept["vehicle_speed"], _RULES["speed"]),
            len(time),
        )

    def _make_check(self, last: float) -> Check:
        """A check of one row after another, the first of which comes after this time."""
        rules = {self._where: _RULES[self._where.removeprefix("vehicle_")], "vehicle_speed": _RULES["speed"]}

        def check(values: dict[str, str]) -> str | None:
            nonlocal last
            if not fits(values["timestep_time"], _RULES["time"]):
                return f"timestep_time must be {_RULES['time'].text}"
            last, before = float(values["timestep_time"]), last
            if last < before:
                return "timestep_time must not go back"
            return None if values["vehicle_id"] in ("", "None") else fault_in(values, rules)

        return check


def _is_filled(column: Any) -> Any:
    text = column.cast(arrow().string()).fill_null("")
    return arrow().compute.not_equal(text, "").to_numpy(zero_copy_only=False)
