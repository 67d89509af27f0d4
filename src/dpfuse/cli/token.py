"""`dpfuse token`: the secret of a centre, and the tokens that authenticate its sensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import Secret, SensorIds


def token(
    ids: SensorIds = None,
    secret: Secret = Path("secret"),
    new: Annotated[bool, typer.Option("--new", help="Write a new secret first. Refused if the file exists.")] = False,
) -> None:
    """Print the tokens of sensors, one a line.

    A token belongs to one sensor id and does not expire. The centre checks it with
    the secret and stores no list. Give each token to its sensor only, and the secret
    to nobody: who has it can report as any sensor.

    Example: dpfuse token --new --secret centre.secret 17 100-199
    """
    from dpfuse.wire.tokens import Tokens, new_secret

    sensors = list(parse_ids(ids or []))
    if not sensors and not new:
        raise typer.BadParameter("give one or more ids, or --new")
    if new:
        new_secret(secret)
        typer.echo(f"wrote the secret {secret}; keep it private", err=True)
    issuer = Tokens.load(secret)
    for sensor in sensors:
        typer.echo(issuer.issue(sensor))


def parse_ids(texts: list[str]) -> Iterator[int]:
    """The ids, in the order in which single ids and ranges are given."""
    for text in texts:
        first, _, last = text.partition("-")
        if not re.fullmatch(r"[0-9]{1,19}(-[0-9]{1,19})?", text) or int(last or first) < int(first):
            raise typer.BadParameter(f"an id must be a number of 0 or more, or a range such as 100-199, got {text!r}")
        yield from range(int(first), int(last or first) + 1)
