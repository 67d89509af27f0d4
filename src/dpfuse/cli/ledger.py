"""`dpfuse ledger`: verify a ledger, show what was released and spent, and create one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfuse.cli._options import AsJson

if TYPE_CHECKING:
    from dpfuse.ledger import LedgerCheck

ledger = typer.Typer(
    help="Verify a ledger, show what was released and spent, or create one.\n\nA ledger is a file (SQLite) or a "
    "database that several centres share (postgresql://USER@HOST/DATABASE).\n\nExample: dpfuse ledger verify us101.db",
    no_args_is_help=True,
)

_PRIVATE = "Each sensor has its own account. The budget left in an account and the number of accounts are private."

Place = Annotated[str, typer.Argument(help="The ledger, a file or postgresql://...; a centre may be writing to it.")]
Address = Annotated[str, typer.Argument(help="The ledger, postgresql://USER@HOST/DATABASE.")]


@ledger.command()
def verify(place: Place, as_json: AsJson = False) -> None:
    """Check every row of a ledger; exit 1 if one is not as it was committed.

    Finds rows that were changed, added, moved or removed, a ledger older than its
    head file, and spending above the budget. The tip is a hash of everything ever
    released. Keep a copy of it elsewhere: a changed ledger cannot have the same tip.

    Example: dpfuse ledger verify us101.db
    """
    from dpfuse.ledger import name_of
    from dpfuse.ledger import verify as check

    checked, name = check(place), name_of(place)
    num_rows = sum(stream.num_rows for stream in checked.streams.values())
    if as_json:
        answer = {"file": name, "rows": num_rows, "commits": checked.num_commits, "tip": checked.tip.hex()}
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"{name} is in order: {num_rows:,} rows in {checked.num_commits:,} commits\ntip {checked.tip.hex()}")


@ledger.command()
def show(
    place: Place,
    rows: Annotated[bool, typer.Option("--rows", help="Print the public rows, one JSON object a line.")] = False,
    stream: Annotated[str | None, typer.Option(help="With --rows: only this stream.")] = None,
    start: Annotated[int, typer.Option(help="With --rows: the first step.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Show the guarantee of a ledger, and the releases and spending of its streams.

    The ledger is verified first. --rows prints the public rows without a check.
    Nothing private is shown.

    Example: dpfuse ledger show us101.db

    Example: dpfuse ledger show us101.db --rows --start 100 > releases.jsonl
    """
    from dpfuse.ledger import name_of, public_rows
    from dpfuse.ledger import verify as check

    if rows:
        for row in public_rows(place, stream, start):
            typer.echo(json.dumps(row.to_dict()))
        return
    answer = _answer(name_of(place), check(place))
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        _show(answer)


@ledger.command()
def create(
    place: Place,
    design: Annotated[Path, typer.Option(help="The design of the ledger. It cannot be changed later.")],
    stream: Annotated[
        list[str] | None, typer.Option(help="Name of a stream; repeat it for more.", show_default="main")
    ] = None,
) -> None:
    """Create an empty ledger for a design, with all streams that it will ever have.

    Needed for a database whose streams are served by several centres. A single centre
    makes its ledger with `dpfuse serve --new`.

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
        str | None,
        typer.Option(help="The tip in hex, from `dpfuse ledger verify` on a host that writes to it."),
    ] = None,
) -> None:
    """Let this host write to a PostgreSQL ledger that another host created.

    Reads the whole ledger and starts a head file on this host. With it this host
    notices if the server is ever rolled back. With --tip it also notices whether that
    happened before.

    Example: dpfuse ledger join postgresql://db/road --tip 5f0c...
    """
    from dpfuse.ledger import join as begin_head
    from dpfuse.ledger import name_of

    head = begin_head(address, tip=None if tip is None else bytes.fromhex(tip))
    typer.echo(f"this host may write to {name_of(address)}; keep {head}")


def _answer(file: str, checked: LedgerCheck) -> dict[str, Any]:
    from dpfuse.privacy.budget import as_loss

    guarantee = checked.terms.guarantee
    streams: dict[str, dict[str, float]] = {}
    for name, stream in checked.streams.items():
        streams[name] = {"releases": stream.num_rows, "last_step": stream.last_step}
        if stream.budget_left is not None:
            spent = checked.terms.mechanism.budget - stream.budget_left
            streams[name] |= {
                "spent": as_loss(guarantee.order, spent),
                "budget_left": as_loss(guarantee.order, stream.budget_left),
            }
    return {
        "file": file,
        "design": checked.terms.fingerprint,
        "guarantee": guarantee.to_dict(),
        "horizon": checked.terms.horizon,
        "commits": checked.num_commits,
        "tip": checked.tip.hex(),
        "streams": streams,
    }


def _show(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from dpfuse.privacy.statement import in_short
    from dpfuse.types import Guarantee

    console = Console(soft_wrap=True, highlight=False)
    guarantee, streams, horizon = Guarantee(**answer["guarantee"]), answer["streams"], answer["horizon"]
    is_total = guarantee.accounting == "total"
    console.print(f"{answer['file']} is in order. Design {answer['design'][:16]}, {answer['commits']:,} commits.")
    console.print(f"Guarantee: {in_short(guarantee)}.")
    table = Table("stream", "releases", "last step", *(("spent", "left") if is_total else ()))
    for name, stream in streams.items():
        budget = (f"{stream['spent']:.4g}", f"{stream['budget_left']:.4g}") if is_total else ()
        steps = f"{stream['last_step']:,}" + (f" of {horizon:,}" if horizon else "")
        table.add_row(name, f"{stream['releases']:,}", steps, *budget)
    console.print(table)
    if not is_total:
        console.print(_PRIVATE)
    elif len(streams) > 1:
        console.print(f"A sensor that reports to all {len(streams)} streams pays for each of them.")
