"""The roads of the NGSIM program, read like every other published recording."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np

from dpfuse.data.reading import RecordingRead, SourceFile
from dpfuse.data.recording import read
from dpfuse.data.sites import US101
from dpfuse.data.table_summary import TableSummary
from dpfuse.trajectories import NOBODY


def ngsim(
    directory: str | os.PathLike[str] | None = None,
    *,
    site: str = US101.name,
    section: tuple[float, float] | None = None,
    interval_s: float = 0.2,
    direction: Literal["north", "south"] | None = None,
    steps: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> RecordingRead:
    """The traffic on a section of a road of the NGSIM program. `read` gives the whole recording.

    Args:
        directory, site, direction, cache, progress: see `read`.
        section, interval_s, steps: see `Recording.trajectories`.
    """
    recording = read(directory, site=site, direction=direction, cache=cache, progress=progress)
    made = recording.trajectories(section, interval_s, steps)
    whole = recording.parts()
    summary = TableSummary(
        num_rows=sum(file.num_rows for file in recording.files),
        num_sensors=recording.num_vehicles,
        num_runs=len(whole),
        runs=made.num_runs,
        steps=made.num_steps,
        interval_s=made.interval_s,
        num_repeated=sum(file.num_duplicates for file in recording.files),
        num_differing=sum(file.num_conflicts for file in recording.files),
        num_silent=int(np.sum((made.sensors != NOBODY) & ~made.present)),
    )
    files = [
        SourceFile(file.path, file.num_rows + file.num_elsewhere, file.num_rows - file.num_duplicates)
        for file in recording.files
    ]
    return RecordingRead(made, summary, tuple(files))
