"""`dpfuse replay`: recorded or simulated vehicles as clients of a live centre."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dpfuse._arrays import Booleans, Integers
    from dpfuse.replay.player import Scene, SceneSequence, Tally
    from dpfuse.types import Trajectories

Data = Annotated[
    Path | None,
    typer.Option(help="Folder with the files of US-101, or a recording; by default the built-in freeway."),
]
Share = Annotated[float, typer.Option(help="Share of the vehicles that report, in (0, 1].")]
Chance = "Chance that a report"


def replay(
    secret: Annotated[Path, typer.Option(help="The centre's secret, to make the vehicles' tokens with.")],
    url: Annotated[str, typer.Option("--to", help="Address of the centre.", metavar="URL")] = "http://127.0.0.1:8765",
    data: Data = None,
    stream: Annotated[str, typer.Option(help="Name of the stream.")] = "main",
    share: Share = 0.3,
    speed: Annotated[
        float | None, typer.Option(help="Seconds of traffic in a second; by default what the centre's clock asks for.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after so long; by default never.")] = None,
    loss: Annotated[float, typer.Option(help=f"{Chance} is never sent.")] = 0.0,
    delay: Annotated[float, typer.Option(help="Seconds by which a report is late at most.")] = 0.0,
    duplicates: Annotated[float, typer.Option(help=f"{Chance} is sent twice.")] = 0.0,
    garbage: Annotated[float, typer.Option(help=f"{Chance} is replaced by something else.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal traffic and troubles.")] = 0,
    ids_from: Annotated[
        int | None, typer.Option(help="Smallest id; by default ids that no replay before had, by the clock.")
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(help="Send reports to this broker, a connection for each vehicle.", metavar="HOST:PORT"),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificates to trust, if centre or broker made their own.")] = None,
) -> None:
    """Play vehicles to a centre as real clients, each with a token of its own.

    The centre's clock decides: at each of its steps every vehicle reports where it is.
    Traffic is recorded or simulated in steps of 0.2 s, so a centre with --interval 0.2
    sees it as it was (1x); for N times as fast give it --interval 0.2/N. A --speed
    that is twice as high leaves out every other moment.

    The freeway goes on for ever; a recording starts again when it is over, with new
    ids: the same ids would find their budgets spent. Tells the truth too, to a centre
    that runs with --replay. Goes on through restarts of the centre.

    Example: dpfuse replay --to http://127.0.0.1:8765 --secret centre.secret --loss 0.1
    """
    from dpfuse.remote.client import make_client
    from dpfuse.replay.faults import Faults
    from dpfuse.replay.player import Replay
    from dpfuse.replay.transports import OverMQTT
    from dpfuse.wire.tokens import Tokens

    def tell(text: str) -> None:
        typer.echo(f"\r{text}" if sys.stderr.isatty() else text, err=True)

    tokens = Tokens.load(secret)
    scenes = make_scenes(data, share, seed, int(time.time()) * 10**6 if ids_from is None else ids_from, tell)
    host, _, port = (mqtt or "").rpartition(":")
    if mqtt is not None and not (host and port.isdecimal()):
        raise typer.BadParameter(f"--mqtt must be HOST:PORT, such as 127.0.0.1:1883, got {mqtt!r}")
    transport = OverMQTT(host, int(port), stream, ca=ca) if host else None
    faults = Faults(loss=loss, delay_s=delay, duplicates=duplicates, garbage=garbage, seed=seed)
    with make_client(url, ca) as client:
        player = Replay(
            client, scenes, tokens, stream=stream, speed=speed, faults=faults, transport=transport, tell=tell
        )
        with suppress(KeyboardInterrupt):
            player.run(seconds, show if sys.stderr.isatty() else lambda _: None)
    typer.echo(f"\n{line(player.tally)}" if sys.stderr.isatty() else line(player.tally), err=True)


def show(tally: Tally) -> None:
    """The progress line, over the one before."""
    print(f"\r{line(tally):<100}", end="", file=sys.stderr, flush=True)


def line(tally: Tally) -> str:
    """How far a replay has come."""
    troubles = {
        "lost": tally.num_lost,
        "doubled": tally.num_doubled,
        "garbage": tally.num_garbage,
        "outages": tally.num_outages,
    }
    happened = "".join(f", {number:,} {name}" for name, number in troubles.items() if number)
    return (
        f"step {tally.step:,} at {tally.speed:g}x: {tally.num_sensors} vehicles report, {tally.num_reports:,} reports "
        f"sent{happened}"
    )


def make_scenes(
    data: Path | None, share: float, seed: int, ids_from: int, tell: Callable[[str], object] = lambda _: None
) -> SceneSequence:
    """The traffic, without an end, of the vehicles that report."""
    from dpfuse import _check
    from dpfuse.replay.player import SceneSequence

    _check.is_share("share", share)
    if data is None:
        return SceneSequence(_freeway(share, seed, ids_from), 0.2)
    from dpfuse.data import us101
    from dpfuse.types import Trajectories

    recording = Trajectories.load(data) if data.is_file() and data.suffix == ".dpfuse-data" else us101(data)
    return SceneSequence(_recorded(recording, share, seed, ids_from, tell), recording.interval_s)


def _freeway(share: float, seed: int, ids_from: int) -> Iterator[Scene]:
    from dpfuse.replay.player import Scene
    from dpfuse.systems import freeway

    for state, sensors, measurements in freeway.watch(seed=seed):
        reports = _is_chosen(sensors, share, seed)
        yield Scene(state, sensors[reports] + ids_from, measurements[reports])


def _recorded(
    data: Trajectories, share: float, seed: int, ids_from: int, tell: Callable[[str], object]
) -> Iterator[Scene]:
    from dpfuse.replay.player import Scene

    num_ids = int(data.sensors.max()) + 1
    for turn in itertools.count():
        if turn:
            tell(f"the recording starts again, with new ids (turn {turn + 1})")
        run = turn % data.num_runs
        for step in range(data.num_steps):
            ids = data.sensors[run, step] + turn * num_ids
            reports = data.present[run, step] & _is_chosen(ids, share, seed)
            yield Scene(data.state[run, step], ids[reports] + ids_from, data.measurements[run, step][reports])


def _is_chosen(ids: Integers, share: float, seed: int) -> Booleans:
    """A coin for each id, the same whenever it is asked: the mixing of splitmix64 (Steele, Lea and Flood 2014)."""
    import numpy as np

    with np.errstate(over="ignore"):
        mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    chosen: Booleans = (mixed >> np.uint64(11)) * 2.0**-53 < share
    return chosen
