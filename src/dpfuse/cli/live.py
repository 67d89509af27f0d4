"""`dpfuse live`: centre, vehicles, remote estimator and page with one command."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfuse.cli._parts import Parts, stopped_at_the_end
from dpfuse.cli.replay import Data, Share
from dpfuse.errors import DpfuseError

DESIGN = Path(__file__).parents[1] / "designs/freeway.dpfuse"
_LABEL = "density [veh/km]"
# The estimates of so many steps are kept, to compare them with the remote estimator's.
_KEPT = 5000


def live(
    out: Annotated[
        Path | None, typer.Option(help="New folder for ledger, estimates and logs; by default one that is removed.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 for any that is free.")] = 8765,
    seconds: Annotated[float | None, typer.Option(help="End after so long; by default at Ctrl-C.")] = None,
    speed: Annotated[float, typer.Option(help="How many times as fast as real traffic.")] = 1.0,
    data: Data = None,
    share: Share = 0.3,
    loss: Annotated[float, typer.Option(help="Chance that a report is never sent.")] = 0.0,
    garbage: Annotated[float, typer.Option(help="Chance that a report is replaced by something else.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal traffic; the noise is fresh each time.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Watch a fusion centre at work: traffic, releases, estimates, page and ledger.

    Starts a centre with the stationary design that comes with dpfuse, vehicles of the
    built-in freeway that report to it, and a remote estimator, each in a process of
    its own, and prints the address of the page. At the end all of them are stopped,
    the ledger is verified, and a summary is printed.

    Example: dpfuse live

    Example: dpfuse live --speed 4 --seconds 150 --loss 0.1 --garbage 0.05
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpfuse-live-"))) if out is None else out
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise typer.BadParameter(f"{folder} is not empty; a fresh ledger needs a fresh folder")
        parts = stack.enter_context(stopped_at_the_end(Parts(folder)))
        watched = Watched(prior=_state_mean())
        with suppress(KeyboardInterrupt):
            traffic: dict[str, object] = {"--share": share, "--seed": seed, "--loss": loss, "--garbage": garbage}
            traffic |= {} if data is None else {"--data": data}
            url = _start_all(parts, port, speed, [str(part) for pair in traffic.items() for part in pair])
            typer.echo(f"{url} shows it live; Ctrl-C ends it", err=as_json)
            threading.Thread(target=watched.follow, args=(url,), daemon=True).start()
            _wait(parts, watched, seconds)
        typer.echo("\nending ..." if sys.stderr.isatty() else "ending ...", err=True)
        parts.stop()
        if not watched.num_steps:
            raise DpfuseError("it was ended before the first release")
        summary = _summary(folder, watched)
        typer.echo(json.dumps(summary) if as_json else _text(summary))
        if out is not None:
            typer.echo(f"Ledger, estimates and logs are in {out}/", err=True)


@dataclass
class Watched:
    """What the centre's feed told, in a replay: estimates, truth, and how long steps took."""

    prior: float
    num_steps: int = 0
    first_step: int = 0
    last_step: int = 0
    num_with_truth: int = 0
    squared_error: float = 0.0
    prior_squared_error: float = 0.0
    longest_ms: float = 0.0
    last: dict[str, Any] = field(default_factory=dict)
    means: dict[int, float] = field(default_factory=dict)

    def follow(self, url: str) -> None:
        """Read the feed, for as long as the process lives."""
        from dpfuse.remote.client import connection_errors, make_client, read_events

        with make_client(url) as client:
            while True:
                with suppress(*connection_errors()):
                    for point in read_events(client, "/v1/streams/main/feed", self.last_step + 1):
                        if "mean" in point:
                            self.take(point)
                time.sleep(0.2)

    def take(self, point: dict[str, Any]) -> None:
        """Add one step."""
        self.first_step = self.first_step or point["step"]
        self.num_steps, self.last_step, self.last = self.num_steps + 1, point["step"], point
        self.means[point["step"]] = point["mean"][0]
        if len(self.means) > _KEPT:
            del self.means[next(iter(self.means))]
        self.longest_ms = max(self.longest_ms, point.get("latency_ms") or 0.0)
        if point.get("error"):
            self.num_with_truth += 1
            self.squared_error += point["error"][0] ** 2
            self.prior_squared_error += (point["truth"][0] - self.prior) ** 2

    @property
    def num_missed(self) -> int:
        """Steps without a release."""
        return self.last_step - self.first_step + 1 - self.num_steps if self.num_steps else 0

    @property
    def rmse(self) -> float | None:
        return math.sqrt(self.squared_error / self.num_with_truth) if self.num_with_truth else None

    @property
    def prior_rmse(self) -> float | None:
        return math.sqrt(self.prior_squared_error / self.num_with_truth) if self.num_with_truth else None


def _start_all(parts: Parts, port: int, speed: float, traffic: list[str]) -> str:
    """Centre, vehicles and estimator; the address of the first."""
    from dpfuse import _check
    from dpfuse.wire.tokens import new_secret

    interval_s = 0.2 / _check.is_positive("speed", speed)
    secret = str(parts.folder / "secret")
    new_secret(secret)
    parts.start(
        "serve", "--design", str(DESIGN), "--ledger", str(parts.folder / "ledger.db"), "--new", "--secret", secret,
        "--port", str(port), "--interval", str(interval_s), "--replay", "--label", _LABEL,
    )  # fmt: skip
    url = parts.first_line("serve")
    parts.start("estimate", "--from", url)
    parts.start("replay", "--to", url, "--secret", secret, *traffic)
    return url


def _wait(parts: Parts, watched: Watched, seconds: float | None) -> None:
    """Until the time is over, or a part has ended by itself."""
    ends_at = None if seconds is None else time.monotonic() + seconds
    while ends_at is None or time.monotonic() < ends_at:
        parts.check()
        time.sleep(0.2)
        if sys.stderr.isatty() and watched.num_steps:
            print(f"\r{_line(watched):<90}", end="", file=sys.stderr, flush=True)


def _line(watched: Watched) -> str:
    mean, std, truth = watched.last["mean"][0], watched.last["std"][0], watched.last.get("truth")
    true = f", in truth {truth[0]:.0f}" if truth else ""
    error = "" if watched.rmse is None else f"; error so far {watched.rmse:.1f}"
    return f"step {watched.last_step:,}: {mean:.0f} ± {std:.0f} vehicles per km{true}{error}"


def _summary(folder: Path, watched: Watched) -> dict[str, Any]:
    """What happened, and what the ledger says."""
    from dpfuse.ledger import verify

    audit = verify(folder / "ledger.db")
    return {
        "steps": watched.num_steps,
        "missed": watched.num_missed,
        "rmse": watched.rmse,
        "prior_rmse": watched.prior_rmse,
        "steps_with_truth": watched.num_with_truth,
        "longest_tick_ms": watched.longest_ms,
        "estimator": _compare(folder / "estimate.out", watched.means),
        "ledger": {"rows": audit.streams["main"].num_rows, "commits": audit.num_commits, "tip": audit.tip.hex()},
        "guarantee": audit.terms.guarantee.to_dict(),
    }


def _compare(path: Path, means: dict[int, float]) -> dict[str, Any]:
    """The remote estimator's numbers against the centre's, which the feed gives with six digits."""
    steps, largest = 0, 0.0
    for line in path.read_text().splitlines():
        with suppress(ValueError):  # the last line may be half written
            estimate = json.loads(line)
            if estimate["step"] in means:
                steps += 1
                largest = max(largest, abs(estimate["mean"][0] - means[estimate["step"]]))
    return {"steps_compared": steps, "largest_difference": largest}


def _text(summary: dict[str, Any]) -> str:
    promise, ledger, estimator = summary["guarantee"], summary["ledger"], summary["estimator"]
    lines = [f"{summary['steps']:,} releases, {summary['missed']:,} ticks missed."]
    if summary["rmse"] is not None:
        lines.append(
            f"Root mean squared error {summary['rmse']:.1f} vehicles per km over {summary['steps_with_truth']:,} "
            f"steps; without any release {summary['prior_rmse']:.1f}."
        )
    if estimator["steps_compared"]:
        lines.append(
            f"The remote estimator agrees with the centre in {estimator['steps_compared']:,} steps, to "
            f"{estimator['largest_difference']:.1g} vehicles per km."
        )
    lines.append(
        f"The ledger is in order: {ledger['rows']:,} rows, no vehicle over its Rényi budget of {promise['budget']:g} "
        f"at order {promise['order']:g}.\ntip {ledger['tip']}"
    )
    return "\n".join(lines)


def _state_mean() -> float:
    """The estimate of somebody who sees no release: the state's mean in training."""
    from dpfuse import _archive

    return float(_archive.read(DESIGN, "design")[1]["constants.state_mean"][0])
