"""`dpfuse broker`: the configuration of a mosquitto broker for sensors, centre and estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import Force, Secret, SensorIds, refuse_overwrite
from dpfuse.cli.token import parse_ids


def broker(
    ids: SensorIds = None,
    secret: Secret = Path("secret"),
    out: Annotated[Path, typer.Option(help="Folder for mosquitto.conf, access list and passwords.")] = Path("broker"),
    host: Annotated[str, typer.Option(help="Address at which the broker listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port at which the broker listens.")] = 1883,
    force: Force = False,
) -> None:
    """Write a commented mosquitto configuration, its access list and its passwords.

    A sensor connects with its id as user name and its token as password, and may
    publish its own reports only. An estimator may read releases only. All others are
    refused. The command prints the password of the user `estimator`.

    Example: dpfuse broker --secret centre.secret --out broker 17 100-199

    Example: mosquitto -c broker/mosquitto.conf
    """
    from dpfuse.wire.broker import ESTIMATOR, write_broker
    from dpfuse.wire.tokens import Tokens

    refuse_overwrite(out / "mosquitto.conf", force)
    tokens = Tokens.load(secret)
    configuration = write_broker(out, tokens, parse_ids(ids or []), host=host, port=port)
    typer.echo(f"start it with: mosquitto -c {configuration}", err=True)
    typer.echo(tokens.password(ESTIMATOR))
