"""One simulation in a process of its own: `python run_libsumo.py JOB RESULT`. Imports nothing of dpfuse.

libsumo holds one simulation for each process, and its libraries may differ from those that pyarrow brings.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import count
from typing import Any

import numpy as np


def main(job_path: str, result_path: str) -> None:
    """Run the job and write step, vehicle, position and speed of all sightings on the section.

    The job: `arguments` of SUMO, the `section` on the edge `road`, the number of SUMO's steps in `warm_up` and in
    `each` recorded step, and the number `steps` of recorded ones.
    """
    with open(job_path) as file:
        job = json.load(file)
    os.environ["LIBSUMO_AS_TRACI"] = "quiet"  # no remark on the version of pyarrow
    import libsumo

    libsumo.start(["sumo", *job["arguments"]])
    start, stop = job["section"]
    numbers: dict[str, int] = {}
    sightings: list[tuple[int, int, float, float]] = []
    next_number = count()
    for _ in range(job["warm_up"]):
        libsumo.simulationStep()
    for step in range(job["steps"]):
        for _ in range(job["each"] if step else 1):
            libsumo.simulationStep()
        for name in libsumo.edge.getLastStepVehicleIDs("road"):
            position = libsumo.vehicle.getLanePosition(name)
            if start <= position < stop:
                if name not in numbers:
                    numbers[name] = next(next_number)
                sightings.append((step, numbers[name], position, libsumo.vehicle.getSpeed(name)))
    libsumo.close()
    table: Any = np.array(sightings, np.float64).reshape(-1, 4)
    np.save(result_path, table, allow_pickle=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
