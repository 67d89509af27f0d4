"""`dpfuse replay`: recorded or simulated vehicles as clients of a live centre."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfuse.cli._options import Certificates, Garbage, Lanes, Loss, Share, Stream, Traffic

if TYPE_CHECKING:
    from dpfuse.replay.player import Tally


def replay(
    keys: Annotated[Path, typer.Option(help="The centre's key file, to make the vehicles' keys.")],
    url: Annotated[
        str, typer.Option("--to", help="Address of the centre for sensors.", metavar="URL")
    ] = "http://127.0.0.1:8764",
    data: Traffic = None,
    stream: Stream = "main",
    share: Share = 0.3,
    lanes: Lanes = 1,
    speed: Annotated[
        float | None, typer.Option(help="Seconds of traffic in a second; by default one moment for each step.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds; by default never.")] = None,
    loss: Loss = 0.0,
    delay: Annotated[float, typer.Option(help="Longest delay of a report in seconds.")] = 0.0,
    duplicates: Annotated[float, typer.Option(help="Probability that a report is sent twice.")] = 0.0,
    garbage: Garbage = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of traffic and faults.")] = 0,
    ids_from: Annotated[
        int | None,
        typer.Option(help="Smallest id. By default it is the time, so that no earlier replay had the same ids."),
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(help="Send reports to this broker, one connection for each vehicle.", metavar="HOST:PORT"),
    ] = None,
    ca: Certificates = None,
    cert: Annotated[
        Path | None,
        typer.Option(help="File with a certificate and its key, for a centre with --tls-client-ca."),
    ] = None,
    sealed: Annotated[
        bool, typer.Option("--sealed", help="Encrypt the reports: a broker then cannot read them, only the centre.")
    ] = False,
) -> None:
    """Send the reports of vehicles to a centre. Each vehicle is a client with its own key.

    The centre's clock sets the pace: at each of its steps every vehicle reports its
    position and speed. Traffic is recorded or simulated in steps of 0.2 s, so a
    centre with --interval 0.2 sees it at its own speed (1x), and one with
    --interval 0.2/N sees it N times as fast. A --speed twice as high leaves out every
    other moment.

    The freeway has no end. A recording starts again when it is over, with new ids,
    as the old ids have spent their budgets. Its public inputs are sent with the key
    of a publisher. A centre that runs with --replay also receives the true state; the
    design freeway estimates it for each lane, so give it --lanes. If the centre
    restarts, the replay goes on.

    Example: dpfuse replay --to http://127.0.0.1:8764 --keys centre.keys --loss 0.1
    """
    from dpfuse.public.listening import parse_address
    from dpfuse.remote.client import make_client
    from dpfuse.replay.faults import Faults
    from dpfuse.replay.player import Replay
    from dpfuse.replay.scenes import make_scenes
    from dpfuse.replay.transports import OverMQTT
    from dpfuse.wire.keys import Keys

    def tell(text: str) -> None:
        typer.echo(f"\r{text}" if sys.stderr.isatty() else text, err=True)

    issuer = Keys.load(keys)
    first_id = int(time.time()) * 10**6 if ids_from is None else ids_from
    scenes = make_scenes(data, share, seed, first_id, tell, lanes)
    transport = None if mqtt is None else OverMQTT(*parse_address("--mqtt", mqtt), stream, ca=ca)
    faults = Faults(loss=loss, delay_s=delay, duplicates=duplicates, garbage=garbage, seed=seed)
    with make_client(url, ca, cert) as client:
        player = Replay(
            client,
            scenes,
            issuer,
            stream=stream,
            speed=speed,
            faults=faults,
            transport=transport,
            is_sealed=sealed,
            tell=tell,
        )
        with suppress(KeyboardInterrupt):
            player.run(seconds, _show if sys.stderr.isatty() else lambda _: None)
    typer.echo(f"\n{_line(player.tally)}" if sys.stderr.isatty() else _line(player.tally), err=True)


def _show(tally: Tally) -> None:
    """Print the progress line over the last one."""
    print(f"\r{_line(tally):<100}", end="", file=sys.stderr, flush=True)


def _line(tally: Tally) -> str:
    faults = {
        "lost": tally.num_lost,
        "doubled": tally.num_doubled,
        "garbage": tally.num_garbage,
        "outages": tally.num_outages,
    }
    happened = "".join(f", {number:,} {name}" for name, number in faults.items() if number)
    return (
        f"step {tally.step:,} at {tally.speed:g}x: {tally.num_sensors} vehicles report, {tally.num_reports:,} reports "
        f"sent{happened}"
    )
