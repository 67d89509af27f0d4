"""`dpfuse serve`: a live fusion centre. Reports come in over HTTP and MQTT, and releases leave by the clock."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpfuse._logs import set_up_logs
from dpfuse.cli._options import PER_ADDRESS, KeyPath, LogFormatOption, LogLevelOption, PerAddress


def serve(
    design: Annotated[
        Path, typer.Option(help="The design to run, from `dpfuse train`, or freeway, which comes with dpfuse.")
    ],
    ledger: Annotated[str, typer.Option(help="The file of its ledger.")],
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
    keys: KeyPath = Path("centre.keys"),
    signing_key: Annotated[
        Path | None,
        typer.Option(
            help="File of the key that signs the releases; made if it is missing.",
            show_default="LEDGER.signing-key",
        ),
    ] = None,
    tip: Annotated[
        str | None,
        typer.Option(
            help="Refuse a ledger that is behind this public tip, from `dpfuse ledger verify`.", metavar="HEX"
        ),
    ] = None,
    witness: Annotated[
        Path | None,
        typer.Option(help="File on another disk that gets every release before any reader, for `ledger restore`."),
    ] = None,
    keep_rows: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Days after which the ledger packs rows, which then take less space.",
            show_default="never",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address at which sensors report.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port at which sensors report; 0 for any free port.")
    ] = 8764,
    strangers_per_address: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Connections to --port from one address that have not yet brought a valid report; 0 for no limit of "
            "its own, behind a proxy or gateway with many sensors.",
            show_default="an eighth of their places",
        ),
    ] = None,
    reading_host: Annotated[
        str | None, typer.Option(help="Address for readers: page, releases, metrics.", show_default="--host")
    ] = None,
    reading_port: Annotated[int, typer.Option(min=0, max=65535, help="Port for readers; 0 for any free port.")] = 8765,
    no_relay: Annotated[
        bool, typer.Option("--no-relay", help="Serve no readers from this command; see `dpfuse relay` and --feed.")
    ] = False,
    per_address: PerAddress = PER_ADDRESS,
    feed: Annotated[
        Path | None, typer.Option(help="Make a Unix socket here, for relays of your own on this machine.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate for HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(help="Take reports over HTTPS only from clients with a certificate that one of these signed."),
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(help="Also take reports from this broker, and publish releases to it.", metavar="HOST:PORT"),
    ] = None,
    mqtt_ca: Annotated[Path | None, typer.Option(help="Certificates to trust, for a broker with TLS.")] = None,
    bank: Annotated[
        str | None,
        typer.Option(
            help="The bank that lends the accounts of the sensors to several centres; the password comes from "
            "PGPASSWORD, PGPASSFILE or ~/.pgpass.",
            metavar="postgresql://USER@HOST/DATABASE",
        ),
    ] = None,
    centre: Annotated[str | None, typer.Option(help="With --bank, the name of this centre there.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="The page's name of a coordinate of the state; repeat it for more.", metavar="NAME [UNIT]"),
    ] = None,
    attributes: Annotated[
        Path | None,
        typer.Option(
            help="CSV file with the id and the fixed public numbers of each sensor, for a design that reads them.",
            show_default="none",
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="A public input by its name, or its number from 1: a number, or day-sine, day-cosine, week-sine or "
            "week-cosine of the time. Repeat it for more; publishers give all others.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    utc_offset: Annotated[float, typer.Option(help="Hours by which the time of --input is ahead of UTC.")] = 0.0,
    operator_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port for the operator alone: startup, readiness, liveness, private metrics; 0 for any free port.",
            show_default="none",
        ),
    ] = None,
    operator_host: Annotated[
        str, typer.Option(help="Address of that port; DPFUSE_OPERATOR_TOKEN holds the token that metrics need.")
    ] = "127.0.0.1",
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "warning",
    replay: Annotated[
        bool,
        typer.Option("--replay", help="The data is simulated or public: show truth, latency and number of reports."),
    ] = False,
) -> None:
    """Run a fusion centre until Ctrl-C or SIGTERM. SIGHUP reads keys and certificates again.

    Prints two addresses when it is ready: where sensors report, and where everybody
    reads. Readers are served by a process of its own, `dpfuse relay`, which has the
    public rows and nothing else. A design with a horizon makes its last release at the
    horizon; the centre then stays up and hands out the releases made. If the ledger
    fails, the centre releases nothing more and ends: with exit 75 if it may be started
    again later (a full disk, a bank that is away), 2 if its settings must change, and 3
    if the ledger is refused (rolled back, changed or damaged). A missing ledger is
    refused, because it may have been lost: give --new at the first start only.

    Example: dpfuse serve --design us101.dpfuse --ledger us101.db --new --keys centre.keys
    """
    set_up_logs(log_format, log_level)
    from dpfuse.policy.exact import compute_inline

    compute_inline()
    from dpfuse.attributes import SensorAttributes
    from dpfuse.policy import load
    from dpfuse.wire.keys import Keys
    from dpfuse.wire.serve import CentreOptions, Endpoints, run_centre

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("give --tls-cert and --tls-key together")
    if tls_client_ca is not None and tls_cert is None:
        raise typer.BadParameter("--tls-client-ca needs --tls-cert and --tls-key")
    if tip is not None and not re.fullmatch("[0-9a-f]{64}", tip):
        raise typer.BadParameter("--tip must be 64 hex digits, as `dpfuse ledger verify` prints them")
    if (bank is None) != (centre is None):
        raise typer.BadParameter("give --bank and --centre together")
    inputs = _parse_inputs(given or ())
    run_centre(
        load(design),
        ledger,
        Keys.load(keys),
        Endpoints(
            host=host,
            port=port,
            reading_host=reading_host,
            reading_port=reading_port,
            has_relay=not no_relay,
            per_address=per_address,
            strangers_per_address=strangers_per_address,
            feed=feed,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            mqtt=mqtt,
            mqtt_ca=mqtt_ca,
            operator_host=operator_host,
            operator_port=operator_port,
            operator_token=os.environ.get("DPFUSE_OPERATOR_TOKEN") or None,
        ),
        CentreOptions(
            streams=stream,
            is_new=new,
            interval_s=interval,
            delay_s=delay,
            is_replay=replay,
            labels=label or (),
            attributes=None if attributes is None else SensorAttributes.load(attributes),
            inputs=inputs,
            utc_offset_s=3600 * utc_offset,
            signing_key=signing_key,
            tip=None if tip is None else bytes.fromhex(tip),
            witness=witness,
            keep_rows_s=None if keep_rows is None else 86_400 * keep_rows,
            bank=bank,
            centre=centre,
        ),
        announce=typer.echo,
    )


def _parse_inputs(texts: Sequence[str]) -> dict[str, str]:
    """The value of each public input by its name."""
    parts = [text.partition("=") for text in texts]
    for (name, _, value), text in zip(parts, texts, strict=True):
        if not name or not value:
            raise typer.BadParameter(f"--input must be NAME=VALUE, such as rain=0, got {text!r}")
    found = {name: value for name, _, value in parts}
    if len(found) < len(parts):
        raise typer.BadParameter("--input must name each input once")
    return found
