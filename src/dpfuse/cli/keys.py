"""`dpfuse keys`: the keys that authenticate sensors: make, issue, revoke, rotate and list them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfuse.cli._options import AsJson, Force, KeyPath, SensorIds, refuse_overwrite

if TYPE_CHECKING:
    from dpfuse.wire.key_file import Generation

keys = typer.Typer(
    help="Make, issue, revoke, rotate and list the keys of sensors.\n\nA sensor signs its reports with a key and "
    "never sends it. The centre makes all keys from its key file and keeps no list of sensors. Who has the key file "
    "can report as any sensor, and publish any public input.\n\nExample: dpfuse keys new --keys centre.keys",
    no_args_is_help=True,
)
Publisher = Annotated[bool, typer.Option("--publisher", help="The ids are those of publishers of public inputs.")]
Days = Annotated[float, typer.Option(help="Days until the new keys expire.")]


@keys.command()
def new(path: KeyPath = Path("centre.keys"), days: Days = 365) -> None:
    """Write a new key file, which only its owner may read. Refused if the file exists.

    Example: dpfuse keys new --keys centre.keys
    """
    from dpfuse.wire.key_file import KeyFile

    KeyFile.create(path, days)
    typer.echo(f"wrote {path}; keep it private", err=True)


@keys.command()
def issue(
    ids: SensorIds,
    out: Annotated[Path, typer.Option(help="File for the keys, which only its owner may read.")],
    path: KeyPath = Path("centre.keys"),
    publisher: Publisher = False,
    force: Force = False,
) -> None:
    """Write the keys of sensors to a file, one JSON object a line.

    A line has the name of the key, the secret that signs reports, and the password
    of the broker's user with the key's name. The keys are those of the newest
    generation. Give each line to its sensor only. The key of a publisher signs
    public inputs alone, and has no password.

    Example: dpfuse keys issue --keys centre.keys --out sensors.keys 17 100-199

    Example: dpfuse keys issue --keys centre.keys --out detector.key --publisher 1
    """
    from dpfuse.wire.key_file import write_private
    from dpfuse.wire.keys import Keys

    refuse_overwrite(out, force)
    issuer = Keys.load(path)
    lines = []
    for number in parse_ids(ids):
        if publisher:
            own = issuer.issue_publisher(number)
            lines.append({"key": f"p{own.name}", "secret": own.secret.hex()})
        else:
            one = issuer.issue(number)
            lines.append({"key": str(one.name), "secret": one.secret.hex(), "password": one.password})
    write_private(out, "".join(json.dumps(line) + "\n" for line in lines))
    typer.echo(f"wrote {len(lines):,} keys to {out}; keep it private", err=True)


@keys.command()
def revoke(ids: SensorIds, path: KeyPath = Path("centre.keys"), publisher: Publisher = False) -> None:
    """Revoke the keys of sensors, in all generations.

    A running centre refuses them within about a second; nobody else is affected.
    The next `dpfuse keys issue` gives the sensor another key. The account of the
    sensor stays. For the broker, run `dpfuse broker` again.

    Example: dpfuse keys revoke --keys centre.keys 17
    """
    from dpfuse.wire.key_file import KeyFile

    numbers = list(parse_ids(ids))
    KeyFile.load(path).revoke(numbers, "p" if publisher else "")
    typer.echo(f"revoked the keys of {len(numbers):,} {'publishers' if publisher else 'sensors'}", err=True)


@keys.command()
def rotate(
    path: KeyPath = Path("centre.keys"),
    days: Days = 365,
    overlap: Annotated[float, typer.Option(help="Days for which the generation before stays valid.")] = 7,
) -> None:
    """Add a generation of keys. The one before expires after the overlap.

    A running centre takes reports with keys of both until then. Issue new keys to
    all sensors in this time. Two generations are valid at most: a third is refused.

    Example: dpfuse keys rotate --keys centre.keys --overlap 14
    """
    from dpfuse.wire.key_file import KeyFile

    if overlap < 0:
        raise typer.BadParameter(f"--overlap must be at least 0, got {overlap:g}")
    added = KeyFile.load(path).rotate(days, overlap)
    typer.echo(f"generation {added.newest.number} is there; issue its keys to all sensors", err=True)


@keys.command("list")
def list_keys(path: KeyPath = Path("centre.keys"), as_json: AsJson = False) -> None:
    """Show the generations with their expiry, and the revoked keys. No secret is shown.

    Example: dpfuse keys list --keys centre.keys
    """
    from dpfuse.wire.key_file import KeyFile, format_time

    file = KeyFile.load(path)

    def describe(one: Generation) -> dict[str, object]:
        return {
            "generation": one.number,
            "expires": format_time(one.expires_at),
            "is_expired": one.expires_at <= time.time(),
        }

    generations, revoked = [describe(one) for one in file.generations], sorted(file.revoked)
    if as_json:
        typer.echo(json.dumps({"generations": generations, "revoked": revoked}))
        return
    for one in generations:
        typer.echo(f"generation {one['generation']}: {'expired' if one['is_expired'] else 'expires'} {one['expires']}")
    for name in revoked:
        typer.echo(f"revoked {name}")


def parse_ids(texts: list[str] | None) -> Iterator[int]:
    """The ids, in the order in which single ids and ranges are given."""
    for text in texts or []:
        first, _, last = text.partition("-")
        if not re.fullmatch(r"[0-9]{1,19}(-[0-9]{1,19})?", text) or int(last or first) < int(first):
            raise typer.BadParameter(f"an id must be a number of 0 or more, or a range such as 100-199, got {text!r}")
        yield from range(int(first), int(last or first) + 1)
