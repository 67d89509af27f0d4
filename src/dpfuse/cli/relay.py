"""`dpfuse relay`: hands out the releases of a centre to any number of readers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from dpfuse._logs import set_up_logs
from dpfuse.cli._options import PER_ADDRESS, Certificates, LogFormatOption, LogLevelOption, PerAddress


def relay(
    url: Annotated[
        str,
        typer.Option(
            "--from",
            help="Reading address of a centre or of another relay; unix:PATH for the socket of `dpfuse serve --feed`.",
            metavar="URL",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address at which to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port at which to listen; 0 for any free port.")] = 8766,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate for HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None,
    per_address: PerAddress = PER_ADDRESS,
    key: Annotated[
        str | None, typer.Option(help="The centre's public key, if you have it from elsewhere; by default as it says.")
    ] = None,
    ca: Certificates = None,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "warning",
    listener: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Follow the releases of a centre and hand them out: page, history, events, metrics.

    Runs anywhere and has nothing but what is public. Every release is checked: one
    without the centre's signature is left out. Prints its address when it is ready. If
    the centre restarts, the relay goes on. `dpfuse serve` starts one by itself. SIGHUP
    reads the certificates again.

    Example: dpfuse relay --from http://127.0.0.1:8765 --port 8766
    """
    from dpfuse.remote.relay import Relay
    from dpfuse.remote.relay_server import ReadingEndpoint, run_relay

    set_up_logs(log_format, log_level)
    log = logging.getLogger("dpfuse.relay")
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("give --tls-cert and --tls-key together")
    is_child = listener is not None
    run_relay(
        Relay(url, ca=ca, public_key=key, tell=(lambda _: None) if is_child else log.warning),
        ReadingEndpoint(host, port, tls_cert, tls_key, per_address, listener),
        announce=lambda address: typer.echo(f"readers {address}"),
        ends_with_parent=is_child,
    )
