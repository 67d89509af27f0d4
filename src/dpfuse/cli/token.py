"""`dpfuse token`: the secret of a centre, and the tokens with which sensors prove who they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

Secret = Annotated[Path, typer.Option(help="The centre's secret; whoever has it can report as anybody.")]
SensorIds = Annotated[list[str] | None, typer.Argument(help="Ids, or ranges of them: 17 100-199.", metavar="[ID]...")]


def token(
    ids: SensorIds = None,
    secret: Secret = Path("secret"),
    new: Annotated[bool, typer.Option("--new", help="Make the secret first; never replaces one.")] = False,
) -> None:
    """Print the tokens of sensors, one a line.

    A token is bound to its id and good for ever: the centre keeps no list of them.
    Hand each one to its sensor alone. The secret stays with the centre.

    Example: dpfuse token --new --secret centre.secret 17 100-199
    """
    from dpfuse.wire.tokens import Tokens, new_secret

    sensors = list(parse_ids(ids or []))
    if not sensors and not new:
        raise typer.BadParameter("name one or more ids, or give --new")
    if new:
        new_secret(secret)
        typer.echo(f"{secret} is written; keep it to yourself", err=True)
    issuer = Tokens.load(secret)
    for sensor in sensors:
        typer.echo(issuer.issue(sensor))


def parse_ids(texts: list[str]) -> Iterator[int]:
    """The ids that are named, one by one or as ranges, in order."""
    for text in texts:
        first, _, last = text.partition("-")
        if not re.fullmatch(r"[0-9]{1,19}(-[0-9]{1,19})?", text) or int(last or first) < int(first):
            raise typer.BadParameter(f"an id must be a number of 0 or more, or a range such as 100-199, got {text!r}")
        yield from range(int(first), int(last or first) + 1)
