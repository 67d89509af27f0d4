"""The case study on US Highway 101 with the default settings of `dpfuse.train`: `make us101-defaults DATA=DIR`.

What its sweep makes is in the folder, so a run that was stopped goes on where it was. On a GPU several groups of
designs can be trained at the same time (`--jobs`). `--no-report` leaves the results to
`python -m experiments.us101_defaults.report`, for a machine that only trains.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from experiments.running import train_all, write_json
from experiments.us101 import traffic
from experiments.us101.job_results import write_jobs
from experiments.us101_defaults import jobs
from experiments.us101_defaults.jobs import RECORDING
from experiments.us101_defaults.train import make_parts, setting
from tools.results import describe_machine


def main() -> None:
    """Train and test what is missing, then write the results."""
    given = read_arguments()
    folder: Path = given.out
    traffic.prepare(given.data, folder / RECORDING)
    wanted = [job for job in jobs.plan() if any(part in job.name for part in given.only)]
    recordings = {job.recording: partial(make_parts, job, folder) for job in wanted}
    settings = {job.name: setting(job, given.updates) for job in wanted}
    write_jobs(train_all(recordings, settings, at_once=given.jobs, out=folder), wanted, folder)
    write_json(folder / "machine.json", describe_machine() | {"updates": given.updates})
    if given.only == [""] and not given.no_report:
        from experiments.us101_defaults import report

        report.write(folder)


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the NGSIM files; by default DPFUSE_DATA")
    parser.add_argument(
        "--out", type=Path, default=Path("out/us101-defaults"), help="folder for designs and the files of the jobs"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="groups of designs at the same time, which share a GPU if there is one; 10 on a large one",
    )
    parser.add_argument("--updates", type=int, help="gradient steps; by default those of `dpfuse.train`")
    parser.add_argument("--only", nargs="+", default=[""], help="only jobs with one of these in their names; no report")
    parser.add_argument("--no-report", action="store_true", help="train and test only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
