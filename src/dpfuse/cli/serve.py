"""`dpfuse serve`: a fusion centre, live: reports in over HTTP and MQTT, releases out by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    design: Annotated[Path, typer.Option(help="Design to run, from `dpfuse train`.")],
    ledger: Annotated[str, typer.Option(help="Its ledger, a file or a postgresql:// address.")],
    new: Annotated[
        bool, typer.Option("--new", help="Make the ledger, with these streams; refused if there is one already.")
    ] = False,
    stream: Annotated[list[str] | None, typer.Option(help="Name of a stream; more than one may be given.")] = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between releases; by default the design's.")] = None,
    delay: Annotated[
        float | None, typer.Option(help="Seconds from the end of a step to its release; by default half of them.")
    ] = None,
    secret: Annotated[Path, typer.Option(help="The secret that tokens are made with, from `dpfuse token`.")] = Path(
        "secret"
    ),
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")] = 8765,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, to speak HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    mqtt: Annotated[
        str | None, typer.Option(help="Take reports from and publish to this broker too.", metavar="HOST:PORT")
    ] = None,
    mqtt_ca: Annotated[Path | None, typer.Option(help="Certificates to trust, if the broker speaks TLS.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="What the page calls the state, a coordinate each.", metavar="NAME [UNIT]")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="The data is nobody's: show truth, latency and report counts.")
    ] = False,
) -> None:
    """Run a fusion centre until it is told to stop.

    Prints one line with its address when it is up, and nothing private ever. A design
    with an end stops releasing there, and the centre stays up to hand out what it
    released. A ledger that fails stops it: nothing is released, exit 1. One that is
    missing is refused, as it may have been lost: --new is for the first time.

    Example: dpfuse serve --design us101.dpfuse --ledger us101.db --new --secret centre.secret
    """
    from dpfuse.policy.exact import compute_inline

    compute_inline()
    from dpfuse.policy import load
    from dpfuse.wire.serve import CentreOptions, Endpoints, run_centre
    from dpfuse.wire.tokens import Tokens

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key go together")
    run_centre(
        load(design),
        ledger,
        Tokens.load(secret),
        Endpoints(host, port, tls_cert, tls_key, mqtt, mqtt_ca),
        CentreOptions(
            streams=stream, is_new=new, interval_s=interval, delay_s=delay, is_replay=replay, labels=label or ()
        ),
        announce=typer.echo,
    )
