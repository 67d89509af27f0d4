"""`dpfuse broker`: the configuration of a mosquitto broker for sensors, centre and estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import Force, KeyPath, SensorIds, refuse_overwrite
from dpfuse.cli.keys import parse_ids


def broker(
    ids: SensorIds,
    keys: KeyPath = Path("centre.keys"),
    out: Annotated[Path, typer.Option(help="Folder for mosquitto.conf, access list and passwords.")] = Path("broker"),
    host: Annotated[str, typer.Option(help="Address at which the broker listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port at which the broker listens.")] = 1883,
    force: Force = False,
) -> None:
    """Write a commented mosquitto configuration, its access list and its passwords.

    A sensor connects with the name of its key as user name and the password from
    `dpfuse keys issue`, and may publish its own reports only. An estimator may read
    releases only. All others are refused. Keys that expired or were revoked get no
    user. The command prints user and password of the estimator.

    Example: dpfuse broker --keys centre.keys --out broker 17 100-199

    Example: mosquitto -c broker/mosquitto.conf
    """
    from dpfuse.wire.broker import ESTIMATOR, write_broker
    from dpfuse.wire.keys import Keys

    refuse_overwrite(out / "mosquitto.conf", force)
    issuer = Keys.load(keys)
    configuration = write_broker(out, issuer, parse_ids(ids), host=host, port=port)
    typer.echo(f"start it with: mosquitto -c {configuration}", err=True)
    typer.echo(" ".join(issuer.accounts(ESTIMATOR)[0]))
