"""`dpfuse bank`: the accounts that several centres share, in PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfuse.cli._options import AsJson

if TYPE_CHECKING:
    from dpfuse.ledger.bank.bank import BankCheck

bank = typer.Typer(
    help="Make, show, verify, upgrade or restore a bank, which lends the accounts of sensors to several centres.\n\n"
    "A bank is a schema of a PostgreSQL database. The password comes from PGPASSWORD, PGPASSFILE or ~/.pgpass.\n\n"
    "Example: dpfuse bank verify postgresql://bank@db/roads",
    no_args_is_help=True,
)

_PRIVATE = "What each sensor has left, and how many sensors there are, is private."

Address = Annotated[
    str, typer.Argument(help="The bank, postgresql://USER@HOST/DATABASE; ?schema=NAME for another schema.")
]


@bank.command()
def init(
    address: Address,
    design: Annotated[Path, typer.Option(help="A design with the guarantee that the bank is for, or freeway.")],
    epoch: Annotated[float, typer.Option(help="Seconds from one boundary to the next.")] = 2.0,
    patience: Annotated[
        int, typer.Option(help="A centre without an answer for so many boundaries releases nothing.")
    ] = 30,
    capacity: Annotated[int, typer.Option(help="Messages are filled up to a multiple of so many sensors.")] = 10_000,
) -> None:
    """Make a bank for the guarantee of a design, in an empty schema.

    Guarantee, epoch, patience and capacity are public and cannot be changed later.

    Example: dpfuse bank init postgresql://bank@db/roads --design road.dpfuse --epoch 2
    """
    from dpfuse.ledger.bank.bank import Bank
    from dpfuse.policy import load

    guarantee = load(design).guarantee
    if guarantee is None:
        raise typer.BadParameter("the design has no guarantee; the non-private floor may not be released")
    with Bank.create(address, guarantee, epoch_s=epoch, patience=patience, capacity=capacity) as made:
        typer.echo(f"{made.address} is ready")


@bank.command()
def show(address: Address, as_json: AsJson = False) -> None:
    """Show the guarantee of a bank and its centres. Nothing private is shown.

    The bank is verified first.

    Example: dpfuse bank show postgresql://bank@db/roads
    """
    _print_answer(address, as_json, is_short=False)


@bank.command()
def verify(address: Address, as_json: AsJson = False) -> None:
    """Check all accounts and loans of a bank; exit 3 if they do not add up.

    Centres may use the bank meanwhile.

    Example: dpfuse bank verify postgresql://bank@db/roads
    """
    _print_answer(address, as_json, is_short=True)


@bank.command()
def upgrade(address: Address) -> None:
    """Bring a bank that an earlier dpfuse made to the version of this one.

    Accounts, loans and centres stay. Stop the centres first, and start them again with
    this dpfuse.

    Example: dpfuse bank upgrade postgresql://bank@db/roads
    """
    from dpfuse.ledger.bank.bank import Bank
    from dpfuse.ledger.bank.schema import VERSION

    before = Bank.upgrade(address)
    typer.echo(f"the bank had version {before} and has version {VERSION}")


@bank.command()
def restore(address: Address) -> None:
    """Go on with a backup of a bank that was lost; the guarantee must have periods.

    Nothing is lent in the period in progress, as nobody knows what the lost bank lent
    there. From the next one on all accounts are new. Stop all centres before the backup
    is put in place, and start them after this command.

    Example: dpfuse bank restore postgresql://bank@db/roads
    """
    from dpfuse.ledger.bank.bank import Bank
    from dpfuse.privacy.statement import name_period

    with Bank.open(address) as opened:
        opened.restore()
        typer.echo(f"{opened.address} lends again from the next {name_period(opened.terms.guarantee)} on")


def _print_answer(address: str, as_json: bool, is_short: bool) -> None:
    from dpfuse.ledger.bank.bank import Bank

    with Bank.open(address) as opened:
        checked, name = opened.verify(), str(opened.address)
    if as_json:
        typer.echo(json.dumps(_answer(name, checked)))
    elif is_short:
        typer.echo(f"{name} is in order")
    else:
        _show(name, checked)


def _answer(name: str, checked: BankCheck) -> dict[str, Any]:
    terms = checked.terms
    return {
        "bank": name,
        "guarantee": terms.guarantee.to_dict(),
        "epoch_s": terms.epoch_s,
        "patience": terms.patience,
        "capacity": terms.capacity,
        "boundary": checked.boundary,
        "restored_at": checked.restored_at,
        "centres": [centre._asdict() for centre in checked.centres],
    }


def _show(name: str, checked: BankCheck) -> None:
    from rich.console import Console
    from rich.table import Table

    from dpfuse.privacy.statement import in_short

    console, terms = Console(soft_wrap=True, highlight=False), checked.terms
    console.print(f"{name} is in order.")
    console.print(f"Guarantee: {in_short(terms.guarantee, has_bank=True)}.")
    console.print(
        f"Boundaries every {terms.epoch_s:g} s, a patience of {terms.patience} of them, messages for multiples of "
        f"{terms.capacity:,} sensors."
    )
    if checked.restored_at is not None:
        console.print(f"Restored at boundary {checked.restored_at}: nothing is lent in the period of that boundary.")
    table = Table("centre", "generation", "last boundary")
    for centre in checked.centres:
        table.add_row(centre.centre, str(centre.generation), str(centre.boundary))
    console.print(table)
    console.print(_PRIVATE)
