"""The case study on US Highway 101: `make us101 DATA=DIR`.

`make us101-quick` trains one budget and seed, `make us101-guided` the guided designs alone; the latter keeps the other
results. Each job writes a file in the folder; a job whose file exists is not run again, so a run that was stopped goes
on where it was. On a GPU several jobs can run at the same time (`--jobs`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dpfuse
from experiments.running import run_jobs
from experiments.us101 import jobs, traffic
from experiments.us101.jobs import RECORDING, Job, path_of


def main() -> None:
    """Train and test what is missing, then write the results."""
    arguments = read_arguments()
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / RECORDING).exists():
        from dpfuse import data

        recording = data.us101(arguments.data, section=traffic.SECTION, interval_s=traffic.INTERVAL_S, progress=True)
        recording.save(folder / RECORDING)
    if arguments.job is not None:
        run_one(arguments)
        return
    for stage in [jobs.quick()] if arguments.quick else jobs.stages(only_guided=arguments.guided):
        run_all([job for job in stage if arguments.only in job.name], arguments)
    if arguments.only:
        return
    from experiments.us101 import report, train

    if arguments.quick:
        report.write_quick(folder)
        return
    train.retest([*([] if arguments.guided else jobs.retested()), *jobs.guided_retested()], folder)
    report.write_report(folder, only_guided=arguments.guided)


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the NGSIM files; by default DPFUSE_DATA")
    parser.add_argument("--out", type=Path, default=Path("out/us101"), help="folder for the files of the jobs")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="one budget, one seed, every kind of design: some minutes")
    part.add_argument("--guided", action="store_true", help="guided designs alone: two hours on 2 cores")
    parser.add_argument("--jobs", type=int, default=1, help="jobs at the same time; 8 or more on a large GPU")
    parser.add_argument("--only", default="", help="only jobs with this in their name, and no report")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(plan: list[Job], arguments: argparse.Namespace) -> None:
    """Run the jobs that are not done, each in a process of its own, `--jobs` at the same time."""
    missing = [job.name for job in plan if not path_of(job, arguments.out).exists()]
    common = ["-m", "experiments.us101.run", "--out", str(arguments.out), *(["--quick"] if arguments.quick else [])]
    failed = run_jobs(missing, lambda name: [*common, "--job", name], at_once=arguments.jobs)
    if failed:
        raise SystemExit(f"these jobs failed: {', '.join(failed)}; run the same command again for what is missing")


def run_one(arguments: argparse.Namespace) -> None:
    """Run one job in this process."""
    from experiments.us101.train import QUICK, optimisation_of, train_and_test

    plan = jobs.quick() if arguments.quick else [job for stage in jobs.stages() for job in stage]
    (job,) = (job for job in plan if job.name == arguments.job)
    dpfuse.use_all_cores()
    train_and_test(job, arguments.out, QUICK if arguments.quick else optimisation_of(job))


if __name__ == "__main__":
    main()
