"""`dpfuse broker`: the configuration of a mosquitto for sensors, centre and estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._files import refuse_overwrite
from dpfuse.cli.token import Secret, SensorIds, parse_ids


def broker(
    ids: SensorIds = None,
    secret: Secret = Path("secret"),
    out: Annotated[Path, typer.Option(help="Folder for mosquitto.conf, acl and passwords.")] = Path("broker"),
    host: Annotated[str, typer.Option(help="Address that the broker listens at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 1883,
    force: Annotated[bool, typer.Option("--force", help="Write over what is there.")] = False,
) -> None:
    """Write a commented mosquitto configuration, its access list and its passwords.

    Each sensor connects with its id as user name and its token as password, and may
    publish its own reports; an estimator may read releases. Nobody else gets in.
    The password of the account `estimator`, for estimators, is printed.

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
