"""`dpfuse ledger`: verify a ledger, show what was released and spent, create, upgrade, back up and restore one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfuse.cli._options import AsJson

if TYPE_CHECKING:
    from dpfuse.ledger import LedgerCheck

ledger = typer.Typer(
    help="Verify a ledger, show what was released and spent, create, upgrade, back up or restore one.\n\nA ledger is "
    "one SQLite "
    "file of one centre.\n\nExample: dpfuse ledger verify us101.db",
    no_args_is_help=True,
)

_PRIVATE = "Each sensor has its own account. The budget left in an account and the number of accounts are private."

Place = Annotated[Path, typer.Argument(help="The file of the ledger; a centre may be writing to it.")]


@ledger.command()
def verify(
    place: Place,
    private_tip: Annotated[
        bool, typer.Option("--private-tip", help="Print the tip of the private chain, too. Never publish it.")
    ] = False,
    witness: Annotated[
        Path | None,
        typer.Option(help="Also compare it with these releases, from `dpfuse witness` or anybody who kept some."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="The centre's public key, to check signatures.",
            show_default="that of LEDGER.signing-key, if it is there",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every row of a ledger; exit 3 if one is not as it was committed.

    Finds rows that were changed, added, moved or removed, accounts and debits that
    were changed, missing triggers, a ledger older than its head file, spending above
    the budget, and streams that are not as the centre signed them. The tip is a hash of
    everything ever released. Keep a copy of it elsewhere: a changed ledger cannot have
    the same tip. The private tip stands for all debits and accounts; keep it where only
    the operator can read it.

    Example: dpfuse ledger verify us101.db
    """
    from dpfuse.ledger import verify as check
    from dpfuse.ledger.witness import compare_with_witness
    from dpfuse.public.signatures import Signer

    if key is None and (own := Path(f"{place}.signing-key")).exists():
        key = Signer(own, "", "").signatory.public_key
    checked, name = check(place, key), str(place)
    num_rows = sum(stream.num_rows for stream in checked.streams.values())
    num_compared = None if witness is None else compare_with_witness(place, witness)
    tips = {"tip": checked.tip.hex()} | ({"private_tip": checked.private_tip.hex()} if private_tip else {})
    signed = checked.signed
    assert signed is not None  # `verify` sets it
    if as_json:
        more = {"signed_by": signed.public_key, "unsigned_rows": signed.num_unsigned}
        more |= {} if num_compared is None else {"witnessed": num_compared}
        typer.echo(json.dumps({"file": name, "rows": num_rows, "commits": checked.num_commits} | tips | more))
        return
    typer.echo(f"{name} is in order: {num_rows:,} rows in {checked.num_commits:,} commits")
    for kind, value in tips.items():
        typer.echo(f"{kind.replace('_', ' ')} {value}")
    if signed.public_key is None:
        typer.echo("no row is signed")
    else:
        rest = f"all rows but the last {signed.num_unsigned:,}" if signed.num_unsigned else "all rows"
        typer.echo(f"{rest} are signed with the key {signed.public_key}")
    if num_compared is not None:
        typer.echo(f"it holds all {num_compared:,} releases of {witness}")


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
    from dpfuse.ledger import public_rows
    from dpfuse.ledger import verify as check

    if rows:
        for row in public_rows(place, stream, start):
            typer.echo(json.dumps(row.to_dict()))
        return
    answer = _answer(str(place), check(place))
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        _show(answer)


@ledger.command()
def create(
    place: Annotated[Path, typer.Argument(help="The file of the ledger to make.")],
    design: Annotated[Path, typer.Option(help="The design of the ledger: a file, or freeway.")],
    stream: Annotated[
        list[str] | None, typer.Option(help="Name of a stream; repeat it for more.", show_default="main")
    ] = None,
) -> None:
    """Create an empty ledger for a design and its streams.

    `dpfuse serve --new` does the same and then starts the centre. `dpfuse ledger
    upgrade` changes design and streams later.

    Example: dpfuse ledger create road.db --design a.dpfuse --stream north --stream south
    """
    from dpfuse.ledger import Ledger
    from dpfuse.policy import load

    with Ledger.create(place, load(design), stream or ["main"]) as made:
        typer.echo(f"{place} is ready for {design} with the streams {', '.join(made.streams)}")


@ledger.command()
def upgrade(
    place: Annotated[Path, typer.Argument(help="The file of the ledger; no centre may be writing to it.")],
    design: Annotated[Path | None, typer.Option(help="The new design, with the same guarantee.")] = None,
    add_stream: Annotated[list[str] | None, typer.Option(help="Name of a new stream; repeat it for more.")] = None,
    retire_stream: Annotated[
        list[str] | None, typer.Option(help="Name of a stream that gets no more releases; repeat it for more.")
    ] = None,
) -> None:
    """Change the design or the streams of a ledger. The accounts stay.

    Stop the centre first. What was spent stays spent, steps go on, and rows keep the
    name of the design that made them. A design with another order, budget, adjacency,
    accounting or period is refused: what was spent under one cannot be compared with
    the other. A stream that is retired keeps its rows and its account.

    Example: dpfuse ledger upgrade road.db --design b.dpfuse --add-stream west
    """
    from dpfuse.ledger import upgrade as change
    from dpfuse.policy import load
    from dpfuse.wire.messages import check_stream_name

    added = [check_stream_name(name) for name in add_stream or ()]
    terms = change(place, load(design) if design else None, add=added, retire=retire_stream or ())
    streams = ", ".join(terms.streams)
    typer.echo(f"{place} is now for design {terms.design_id} with the streams {streams}; make a backup of it now")


@ledger.command()
def backup(
    place: Place,
    file: Annotated[Path, typer.Argument(help="The new file of the backup. It is as private as the ledger.")],
) -> None:
    """Copy a ledger as it is at one moment, also while a centre writes to it.

    The copy is checked. Only `dpfuse ledger restore` makes a ledger of it.

    Example: dpfuse ledger backup road.db /mnt/elsewhere/road.backup
    """
    from dpfuse.ledger import backup as copy

    found = copy(place, file)
    typer.echo(f"{file} holds {found.num_commits:,} commits of {place}")
    typer.echo(f"tip {found.tip.hex()}")


@ledger.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file from `dpfuse ledger backup`.")],
    place: Annotated[Path, typer.Argument(help="The file of the ledger to make.")],
    witness: Annotated[
        Path | None, typer.Option(help="Release messages that were kept elsewhere, one JSON object a line.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The centre's public key, to check the witness.", show_default="that of LEDGER.signing-key"),
    ] = None,
    last_step: Annotated[
        int | None, typer.Option(min=0, help="Without a witness: the last step that anybody may have.")
    ] = None,
) -> None:
    """Make a ledger of a backup. What may have been spent since counts as spent.

    With a witness that has every release since the backup, each sensor, known or new,
    is charged the most that these can have cost it, and the ledger goes on after them.
    Without a witness nobody has anything left in this period; without periods, for
    ever. Nothing is ever refunded. With a bank it is charged there: what was lent to
    the lost ledger counts as spent.

    Example: dpfuse ledger restore road.backup road.db --witness releases.jsonl
    """
    from dpfuse.ledger import restore as make
    from dpfuse.privacy.budget import as_loss
    from dpfuse.public.signatures import Signer

    if (witness is None) == (last_step is None):
        raise typer.BadParameter("give --witness or, if there is none, --last-step")
    if witness and not key:
        if not Path(f"{place}.signing-key").exists():
            raise typer.BadParameter(f"put {place}.signing-key back, or give the centre's public key as --key")
        key = Signer(f"{place}.signing-key", "", "").signatory.public_key
    found, restored = make(file, place, witness=witness, public_key=key or "", last_step=last_step)
    guarantee = found.terms.guarantee
    whose = "stream" if found.terms.is_total else "sensor"
    charged = f"each {whose}, known or new, was charged {as_loss(guarantee.order, restored.charge):.4g} of its budget "
    charged += f"of {guarantee.budget:g} for what was lost"
    if found.terms.bank_id is not None:
        charged = "what the bank had lent counts as spent from the next start of the centre on"
    typer.echo(f"{place} is restored up to step {max(one.last_step for one in found.streams.values()):,}")
    typer.echo(charged)
    typer.echo(f"tip {found.tip.hex()}")


def _answer(file: str, checked: LedgerCheck) -> dict[str, Any]:
    from dpfuse.privacy.budget import as_loss

    guarantee = checked.terms.guarantee
    streams: dict[str, dict[str, float]] = {}
    for name, stream in checked.streams.items():
        is_retired = name not in checked.terms.streams
        streams[name] = {"releases": stream.num_rows, "last_step": stream.last_step, "is_retired": is_retired}
        if stream.budget_left is not None:
            spent = checked.terms.mechanism.budget - stream.budget_left
            streams[name] |= {
                "spent": as_loss(guarantee.order, spent),
                "budget_left": as_loss(guarantee.order, stream.budget_left),
            }
    answer = {
        "file": file,
        "design": checked.terms.fingerprint,
        "guarantee": guarantee.to_dict(),
        "horizon": checked.terms.horizon,
        "commits": checked.num_commits,
        "tip": checked.tip.hex(),
        "streams": streams,
    }
    answer |= {} if guarantee.period is None else {"period": checked.period}
    return answer | ({} if checked.terms.bank_id is None else {"bank": checked.terms.bank_id})


def _show(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from dpfuse.guarantee import Guarantee
    from dpfuse.privacy.statement import in_short

    console = Console(soft_wrap=True, highlight=False)
    guarantee, streams, horizon = Guarantee(**answer["guarantee"]), answer["streams"], answer["horizon"]
    is_total = guarantee.accounting == "total"
    console.print(f"{answer['file']} is in order. Design {answer['design'][:16]}, {answer['commits']:,} commits.")
    console.print(f"Guarantee: {in_short(guarantee, has_bank='bank' in answer)}.")
    if answer.get("period") is not None:
        console.print(f"Period in progress: number {answer['period']} since 1970. What was spent is of this period.")
    table = Table("stream", "releases", "last step", *(("spent", "left") if is_total else ()))
    for name, stream in streams.items():
        budget = (f"{stream['spent']:.4g}", f"{stream['budget_left']:.4g}") if is_total else ()
        steps = f"{stream['last_step']:,}" + (f" of {horizon:,}" if horizon else "")
        table.add_row(f"{name} (retired)" if stream["is_retired"] else name, f"{stream['releases']:,}", steps, *budget)
    console.print(table)
    if not is_total:
        console.print(_PRIVATE)
    elif len(streams) > 1:
        console.print(f"A sensor that reports to all {len(streams)} streams pays for each of them.")
