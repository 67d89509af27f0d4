"""The case study on US Highway 101: `make us101 DATA=DIR`.

`make us101-quick` trains one budget and seed, `make us101-guided` the guided designs alone; the latter keeps the other
results. What its sweeps make is in the folder, so a run that was stopped goes on where it was. On a GPU several groups
of designs can be trained at the same time (`--jobs`).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from experiments.running import train_all
from experiments.us101 import jobs, traffic, train
from experiments.us101.job_results import write_jobs
from experiments.us101.jobs import RECORDING, Job


def main() -> None:
    """Train and test what is missing, then write the results."""
    arguments = read_arguments()
    folder: Path = arguments.out
    traffic.prepare(arguments.data, folder / RECORDING)
    for stage in [jobs.quick()] if arguments.quick else jobs.stages(only_guided=arguments.guided):
        if plan := [job for job in stage if arguments.only in job.name]:
            run_all(plan, arguments)
    if arguments.only:
        return
    from experiments.us101 import report

    if arguments.quick:
        report.write_quick(folder)
        return
    train.retest([*([] if arguments.guided else jobs.retested()), *jobs.guided_retested()], folder)
    report.write_report(folder, only_guided=arguments.guided)


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the NGSIM files; by default DPFUSE_DATA")
    parser.add_argument(
        "--out", type=Path, default=Path("out/us101"), help="folder for designs and the files of the jobs"
    )
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="one budget, one seed, every kind of design: some minutes")
    part.add_argument("--guided", action="store_true", help="guided designs alone: two hours on 2 cores")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="groups of designs at the same time, which share a GPU if there is one; 8 or more on a large one",
    )
    parser.add_argument("--only", default="", help="only jobs with this in their name, and no report")
    return parser.parse_args()


def run_all(plan: list[Job], arguments: argparse.Namespace) -> None:
    """Train and test what is missing, `--jobs` groups of designs at the same time, and write the files of the jobs."""
    folder: Path = arguments.out
    recordings = {job.recording: partial(train.make_parts, job, folder) for job in plan}
    settings = {
        job.name: train.setting(job, folder, train.QUICK if arguments.quick else train.optimisation_of(job))
        for job in plan
    }
    write_jobs(train_all(recordings, settings, at_once=arguments.jobs, out=folder), plan, folder)


if __name__ == "__main__":
    main()
