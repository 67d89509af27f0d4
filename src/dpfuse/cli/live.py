"""`dpfuse live`: centre, vehicles, remote estimator and page with one command."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfuse.cli._feed_summary import FeedSummary
from dpfuse.cli._options import AsJson, Garbage, Loss, Share, Traffic
from dpfuse.cli._processes import Processes, stopped_at_exit
from dpfuse.errors import DpfuseError

DESIGN = Path(__file__).parents[1] / "designs/freeway.dpfuse"
# The public input of that design: the lanes of the section in km, times the share of the vehicles that report.
_INPUT = "reporting_lanes"
# Of the built-in freeway, and of US-101.
_LANES, _SECTION_M = 5, 400.0


def live(
    out: Annotated[
        Path | None, typer.Option(help="Empty folder for ledger, estimates and logs; by default a temporary one.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 for any free port.")] = 8765,
    seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds; by default at Ctrl-C.")] = None,
    speed: Annotated[float, typer.Option(help="Seconds of traffic in a second.")] = 1.0,
    data: Traffic = None,
    share: Share = 0.3,
    lanes: Annotated[
        int | None, typer.Option(min=1, help="With --data, the lanes of its road.", show_default=str(_LANES))
    ] = None,
    section_m: Annotated[
        float | None, typer.Option(help="With --data, the length of its section in m.", show_default=f"{_SECTION_M:g}")
    ] = None,
    loss: Loss = 0.0,
    garbage: Garbage = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the traffic. The noise has no seed.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a fusion centre on simulated traffic and show it on a page in the browser.

    Starts a centre with the stationary design that comes with dpfuse, its relay for
    readers, vehicles that report to it, and a remote estimator that reads its releases.
    Prints the address of the page, which shows the density for each lane. At the end it
    stops all processes, verifies the ledger and prints a summary. A recording of another
    road than US-101 needs --lanes and --section-m.

    Example: dpfuse live

    Example: dpfuse live --speed 4 --seconds 150 --loss 0.1 --garbage 0.05
    """
    from dpfuse import _check

    if data is None and (lanes is not None or section_m is not None):
        raise typer.BadParameter(
            f"--lanes and --section-m need --data: the built-in freeway has {_LANES} lanes and {_SECTION_M:g} m"
        )
    num_lanes = _LANES if lanes is None else lanes
    lanes_km = num_lanes * _check.is_positive("section_m", _SECTION_M if section_m is None else section_m) / 1000
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpfuse-live-"))) if out is None else out
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise typer.BadParameter(f"{folder} is not empty; a fresh ledger needs an empty folder")
        processes = stack.enter_context(stopped_at_exit(Processes(folder)))
        feed = FeedSummary(prior=state_mean())
        with suppress(KeyboardInterrupt):
            traffic: dict[str, object] = {"--share": share, "--seed": seed, "--loss": loss, "--garbage": garbage}
            traffic |= {"--lanes": num_lanes} if data is None else {"--lanes": num_lanes, "--data": data}
            to_replay = [str(part) for pair in traffic.items() for part in pair]
            url = _start_all(processes, port, speed, f"{_INPUT}={lanes_km * share}", to_replay)
            typer.echo(f"{url} shows it live; Ctrl-C stops it", err=as_json)
            threading.Thread(target=feed.follow, args=(url,), daemon=True).start()
            _wait(processes, feed, seconds)
        typer.echo("\nstopping ..." if sys.stderr.isatty() else "stopping ...", err=True)
        processes.stop()
        if not feed.num_steps:
            raise DpfuseError("stopped before the first release; run it for longer")
        summary = _summary(folder, feed)
        typer.echo(json.dumps(summary) if as_json else _text(summary))
        if out is not None:
            typer.echo(f"Ledger, estimates and logs are in {out}/", err=True)


def _start_all(processes: Processes, port: int, speed: float, public: str, traffic: list[str]) -> str:
    """Start centre, estimator and vehicles; the address for readers."""
    from dpfuse import _check
    from dpfuse.wire.key_file import KeyFile

    interval_s = 0.2 / _check.is_positive("speed", speed)
    keys, ledger = (str(processes.folder / name) for name in ("centre.keys", "ledger.db"))
    KeyFile.create(keys)
    processes.start(
        "serve", "--design", str(DESIGN), "--ledger", ledger, "--new", "--keys", keys, "--port", "0",
        "--reading-port", str(port), "--interval", str(interval_s), "--replay", "--input", public,
    )  # fmt: skip
    for_sensors, for_readers = (line.split()[1] for line in processes.first_lines("serve", 2))
    processes.start("estimate", "--from", for_readers)
    processes.start("replay", "--to", for_sensors, "--keys", keys, *traffic)
    return for_readers


def _wait(processes: Processes, feed: FeedSummary, seconds: float | None) -> None:
    """Wait until the time is over; raise if a process ends before."""
    ends_at = None if seconds is None else time.monotonic() + seconds
    while ends_at is None or time.monotonic() < ends_at:
        processes.check()
        time.sleep(0.2)
        if sys.stderr.isatty() and feed.num_steps:
            print(f"\r{feed!s:<90}", end="", file=sys.stderr, flush=True)


def _summary(folder: Path, feed: FeedSummary) -> dict[str, Any]:
    from dpfuse.ledger import verify

    checked = verify(folder / "ledger.db")
    return {
        "steps": feed.num_steps,
        "skipped": feed.num_skipped,
        "rmse": feed.rmse,
        "prior_rmse": feed.prior_rmse,
        "steps_with_truth": feed.num_with_truth,
        "longest_tick_ms": feed.longest_ms,
        "estimator": _compare(folder / "estimate.out", feed.means),
        "ledger": {
            "rows": checked.streams["main"].num_rows,
            "commits": checked.num_commits,
            "tip": checked.tip.hex(),
        },
        "guarantee": checked.terms.guarantee.to_dict(),
    }


def _compare(path: Path, means: dict[int, float]) -> dict[str, Any]:
    """The remote estimator's means against those of the feed, which have six digits."""
    differences = []
    for line in path.read_text().splitlines():
        with suppress(ValueError):  # the last line may be incomplete
            estimate = json.loads(line)
            if estimate["step"] in means:
                differences.append(abs(estimate["mean"][0] - means[estimate["step"]]))
    return {"steps_compared": len(differences), "largest_difference": max(differences, default=0.0)}


def _text(summary: dict[str, Any]) -> str:
    guarantee, ledger, estimator = summary["guarantee"], summary["ledger"], summary["estimator"]
    lines = [f"{summary['steps']:,} releases, {summary['skipped']:,} steps skipped."]
    if summary["rmse"] is not None:
        lines.append(
            f"Root mean squared error {summary['rmse']:.1f} vehicles per km and lane over "
            f"{summary['steps_with_truth']:,} steps; without releases {summary['prior_rmse']:.1f}."
        )
    if estimator["steps_compared"]:
        lines.append(
            f"The remote estimator agrees with the centre in {estimator['steps_compared']:,} steps, to "
            f"{estimator['largest_difference']:.1g} vehicles per km and lane."
        )
    lines.append(
        f"The ledger is in order: {ledger['rows']:,} rows, no vehicle over its Rényi budget of {guarantee['budget']:g} "
        f"at order {guarantee['order']:g}.\ntip {ledger['tip']}"
    )
    return "\n".join(lines)


def state_mean() -> float:
    """The mean state of the built-in design's training data: the estimate without releases."""
    from dpfuse import _archive

    return float(_archive.read(DESIGN, "design")[1]["constants.state_mean"][0])
