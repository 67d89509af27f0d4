"""`dpfuse ledger`: whether a ledger is in order, what its budget went into, and who may write to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from dpfuse.ledger import LedgerCheck

ledger = typer.Typer(
    help="Verify a ledger, show what it says, or create one.\n\nA ledger is a file (SQLite) or a database that several "
    "centres share (postgresql://USER@HOST/DATABASE).\n\nExample: dpfuse ledger verify us101.db",
    no_args_is_help=True,
)

_PRIVATE = "Each sensor has an account of its own. What is left in it is private, and so is how many there are."

Place = Annotated[str, typer.Argument(help="The ledger, a file or postgresql://...; its writers may be at work.")]
Address = Annotated[str, typer.Argument(help="The ledger, postgresql://USER@HOST/DATABASE.")]


@ledger.command()
def verify(
    place: Place,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read every row and say whether all is as it was committed; exit 1 if not.

    Finds rows that were changed, added, moved or are missing, a ledger that was
    rolled back behind its head file, and a budget that was passed. The tip stands
    for everything ever released: write it down elsewhere, and whoever changes the
    past cannot come to it again.

    Example: dpfuse ledger verify us101.db
    """
    from dpfuse.ledger import name_of
    from dpfuse.ledger import verify as audit_of

    audit, name = audit_of(place), name_of(place)
    answer = {"file": name, "rows": _num_rows(audit), "commits": audit.num_commits, "tip": audit.tip.hex()}
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"{name} is in order: {answer['rows']:,} rows in {audit.num_commits:,} commits\ntip {answer['tip']}")


@ledger.command()
def show(
    place: Place,
    rows: Annotated[
        bool, typer.Option("--rows", help="Print the public rows instead, one JSON object a line.")
    ] = False,
    stream: Annotated[str | None, typer.Option(help="With --rows, of this stream alone.")] = None,
    start: Annotated[int, typer.Option(help="With --rows, from this step on.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell what a ledger promises, how far its streams have come and what they spent.

    The ledger is verified first, except for --rows, which prints what anybody may
    have, as it is. Nothing private is shown.

    Example: dpfuse ledger show us101.db

    Example: dpfuse ledger show us101.db --rows --start 100 > releases.jsonl
    """
    from dpfuse.ledger import name_of, public_rows
    from dpfuse.ledger import verify as audit_of

    if rows:
        for row in public_rows(place, stream, start):
            typer.echo(json.dumps(row.to_dict()))
        return
    answer = _story(name_of(place), audit_of(place))
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        _show(answer)


@ledger.command()
def create(
    place: Place,
    design: Annotated[Path, typer.Option(help="The design that it is for, for good.")],
    stream: Annotated[list[str] | None, typer.Option(help="A stream; repeat it for each.", show_default="main")] = None,
) -> None:
    """Make an empty ledger for a design, with all streams that it will ever have.

    `dpfuse serve --new` makes one too, with its own streams. This is for a database
    whose streams are served by several centres.

    Example: dpfuse ledger create postgresql://db/road --design a.dpfuse --stream north --stream south
    """
    from dpfuse.ledger import create_ledger, name_of
    from dpfuse.policy import load

    with create_ledger(place, load(design), stream or ["main"]) as made:
        typer.echo(f"{name_of(place)} is ready for {len(made.streams)} streams of {design}")


@ledger.command()
def join(
    address: Address,
    tip: Annotated[
        str | None, typer.Option(help="What `dpfuse ledger verify` told on a host that writes to it; in hex.")
    ] = None,
) -> None:
    """Let this host write to a ledger in PostgreSQL that another host created.

    Reads all of it and begins a head file here, by which this host will notice
    if the server is ever rolled back. With --tip also if it was before.

    Example: dpfuse ledger join postgresql://db/road --tip 5f0c...
    """
    from dpfuse.ledger import join as begin_head
    from dpfuse.ledger import name_of

    head = begin_head(address, tip=None if tip is None else bytes.fromhex(tip))
    typer.echo(f"this host may write to {name_of(address)}; keep {head}")


def _num_rows(audit: LedgerCheck) -> int:
    return sum(story.num_rows for story in audit.streams.values())


def _story(file: str, audit: LedgerCheck) -> dict[str, Any]:
    from dpfuse.privacy.budget import as_loss

    guarantee = audit.terms.guarantee
    streams: dict[str, dict[str, float]] = {}
    for name, story in audit.streams.items():
        streams[name] = {"releases": story.num_rows, "last_step": story.last_step}
        if story.budget_left is not None:
            spent = audit.terms.mechanism.budget - story.budget_left
            streams[name] |= {
                "spent": as_loss(guarantee.order, spent),
                "budget_left": as_loss(guarantee.order, story.budget_left),
            }
    return {
        "file": file,
        "design": audit.terms.fingerprint,
        "guarantee": guarantee.to_dict(),
        "horizon": audit.terms.horizon,
        "commits": audit.num_commits,
        "tip": audit.tip.hex(),
        "streams": streams,
    }


def _show(answer: dict[str, Any]) -> None:
    from rich.console import Console

    from dpfuse.privacy.statement import in_short
    from dpfuse.types import Guarantee

    console = Console(soft_wrap=True, highlight=False)
    guarantee = Guarantee(**answer["guarantee"])
    is_total = guarantee.accounting == "total"
    console.print(f"{answer['file']} is in order. Design {answer['design'][:16]}, {answer['commits']:,} commits.")
    console.print(f"Guarantee: {in_short(guarantee)}.")
    console.print(_table(answer, is_total))
    if not is_total:
        console.print(_PRIVATE)
    elif len(answer["streams"]) > 1:
        console.print(f"A sensor that reports to all {len(answer['streams'])} streams pays for each of them.")


def _table(answer: dict[str, Any], is_total: bool) -> Table:
    from rich.table import Table

    table = Table("stream", "releases", "last step", *(("spent", "left") if is_total else ()))
    for name, story in answer["streams"].items():
        budget = (f"{story['spent']:.4g}", f"{story['budget_left']:.4g}") if is_total else ()
        steps = f"{story['last_step']:,}" + (f" of {answer['horizon']:,}" if answer["horizon"] else "")
        table.add_row(name, f"{story['releases']:,}", steps, *budget)
    return table
