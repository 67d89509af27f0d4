"""`dpfuse ledger`: whether a ledger is in order, and what its budget went into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from dpfuse.runtime.ledger import Audit

ledger = typer.Typer(
    help="Verify a ledger, or show what it says.\n\nExample: dpfuse ledger verify us101.db", no_args_is_help=True
)

_PRIVATE = "Each sensor has an account of its own. What is left in it is private, and so is how many there are."

LedgerFile = Annotated[Path, typer.Argument(help="The ledger; its writer may be at work.")]


@ledger.command()
def verify(
    path: LedgerFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read every row and say whether all is as it was committed; exit 1 if not.

    Finds rows that were changed, added, moved or are missing, a ledger that was
    rolled back behind its head file, and a budget that was passed. The tip stands
    for everything ever released: write it down elsewhere, and whoever changes the
    past cannot come to it again.

    Example: dpfuse ledger verify us101.db
    """
    from dpfuse.runtime.ledger import verify as audit_of

    audit = audit_of(path)
    answer = {"file": str(path), "rows": _num_rows(audit), "commits": audit.number, "tip": audit.tip.hex()}
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo(f"{path} is in order: {answer['rows']:,} rows in {audit.number:,} commits\ntip {answer['tip']}")


@ledger.command()
def show(
    path: LedgerFile,
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
    from dpfuse.runtime.ledger import public_rows
    from dpfuse.runtime.ledger import verify as audit_of

    if rows:
        for row in public_rows(path, stream, start):
            typer.echo(json.dumps(row.to_dict()))
        return
    answer = _story(path, audit_of(path))
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        _show(answer)


def _num_rows(audit: Audit) -> int:
    return sum(story.num_rows for story in audit.streams.values())


def _story(path: Path, audit: Audit) -> dict[str, Any]:
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
        "file": str(path),
        "design": audit.terms.fingerprint,
        "guarantee": guarantee.to_dict(),
        "horizon": audit.terms.horizon,
        "commits": audit.number,
        "tip": audit.tip.hex(),
        "streams": streams,
    }


def _show(answer: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    promise, is_total = answer["guarantee"], answer["guarantee"]["accounting"] == "total"
    whose = "each stream" if is_total else "each sensor, over all streams"
    console.print(f"{answer['file']} is in order. Design {answer['design'][:16]}, {answer['commits']:,} commits.")
    console.print(
        f"Promised: a Rényi loss of at most {promise['budget']:g} at order {promise['order']:g} for {whose}, "
        f"{promise['adjacency']}."
    )
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
