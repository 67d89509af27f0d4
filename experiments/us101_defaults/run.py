"""The case study on US Highway 101 with the default settings of `dpfuse.train`: `make us101-defaults DATA=DIR`.

Each job writes a file in the folder; a job whose file exists is not run
again, so a run that was stopped goes on where it was. On a GPU several jobs can run at the same time (`--jobs`).
`--no-report` leaves the results to `python -m experiments.us101_defaults.report`, for a machine that only trains.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dpfuse
from experiments.running import run_jobs, write_json
from experiments.us101 import traffic
from experiments.us101.jobs import path_of
from experiments.us101_defaults import jobs
from experiments.us101_defaults.jobs import RECORDING
from tools.results import describe_machine


def main() -> None:
    """Train and test what is missing, then write the results."""
    given = read_arguments()
    folder: Path = given.out
    folder.mkdir(parents=True, exist_ok=True)
    plan = jobs.plan()
    if given.job is not None:
        from experiments.us101_defaults.train import train_and_test

        dpfuse.use_all_cores()
        train_and_test(next(job for job in plan if job.name == given.job), folder, given.updates)
        return
    if not (folder / RECORDING).exists():
        from dpfuse import data

        recording = data.us101(given.data, section=traffic.SECTION, interval_s=traffic.INTERVAL_S, progress=True)
        recording.save(folder / RECORDING)
    wanted = [job for job in plan if any(part in job.name for part in given.only)]
    missing = [job.name for job in wanted if not path_of(job, folder).exists()]
    common = ["-m", "experiments.us101_defaults.run", "--out", str(folder)]
    common += ["--updates", str(given.updates)] if given.updates else []
    left = run_jobs(missing, lambda name: [*common, "--job", name], at_once=given.jobs, until_s=given.until_s)
    write_json(folder / "machine.json", describe_machine() | {"updates": given.updates})
    if left:
        raise SystemExit(f"these jobs failed or were left out: {', '.join(left)}; run the same command again")
    if given.only == [""] and not given.no_report:
        from experiments.us101_defaults import report

        report.write(folder)


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the NGSIM files; by default DPFUSE_DATA")
    parser.add_argument("--out", type=Path, default=Path("out/us101-defaults"), help="folder for the files of the jobs")
    parser.add_argument("--jobs", type=int, default=1, help="jobs at the same time; 10 on a large GPU")
    parser.add_argument("--updates", type=int, help="gradient steps; by default those of `dpfuse.train`")
    parser.add_argument("--only", nargs="+", default=[""], help="only jobs with one of these in their names; no report")
    parser.add_argument("--until-s", type=float, help="start no job after so many seconds, and end those that run")
    parser.add_argument("--no-report", action="store_true", help="train and test only")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
