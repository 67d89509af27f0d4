"""`dpfuse serve`: a live fusion centre. Reports come in over HTTP and MQTT, and releases leave by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import Secret


def serve(
    design: Annotated[Path, typer.Option(help="The design to run, from `dpfuse train`.")],
    ledger: Annotated[str, typer.Option(help="Its ledger, a file or a postgresql:// address.")],
    new: Annotated[
        bool, typer.Option("--new", help="Make the ledger, with these streams. Refused if it exists.")
    ] = False,
    stream: Annotated[
        list[str] | None,
        typer.Option(help="Name of a stream; repeat it for more.", show_default="those of the ledger; main if new"),
    ] = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between releases; by default the design's.")] = None,
    delay: Annotated[
        float | None, typer.Option(help="Seconds from the end of a step to its release; by default half an interval.")
    ] = None,
    secret: Secret = Path("secret"),
    host: Annotated[str, typer.Option(help="Address at which to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port at which to listen; 0 for any free port.")] = 8765,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate for HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(help="Also take reports from this broker, and publish releases to it.", metavar="HOST:PORT"),
    ] = None,
    mqtt_ca: Annotated[Path | None, typer.Option(help="Certificates to trust, for a broker with TLS.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="The page's name of a coordinate of the state; repeat it for more.", metavar="NAME [UNIT]"),
    ] = None,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="The data is simulated or public: show truth, latency and number of reports."),
    ] = False,
) -> None:
    """Run a fusion centre until Ctrl-C or SIGTERM.

    Prints its address on one line when it is ready. A design with a horizon makes its
    last release at the horizon; the centre then stays up and hands out the releases
    made. If the ledger fails, the centre releases nothing more and ends with exit 1.
    A missing ledger is refused, because it may have been lost: give --new at the
    first start only.

    Example: dpfuse serve --design us101.dpfuse --ledger us101.db --new --secret centre.secret
    """
    from dpfuse.policy.exact import compute_inline

    compute_inline()
    from dpfuse.policy import load
    from dpfuse.wire.serve import CentreOptions, Endpoints, run_centre
    from dpfuse.wire.tokens import Tokens

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("give --tls-cert and --tls-key together")
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
