"""The command line: one file for each command; results go to stdout, progress to stderr."""

from __future__ import annotations

import warnings

import typer

from dpfuse.cli.account import account
from dpfuse.cli.audit import audit
from dpfuse.cli.bank import bank
from dpfuse.cli.broker import broker
from dpfuse.cli.card import card
from dpfuse.cli.data import data
from dpfuse.cli.demo import demo
from dpfuse.cli.estimate import estimate
from dpfuse.cli.evaluate import evaluate
from dpfuse.cli.fleet import fleet
from dpfuse.cli.keys import keys
from dpfuse.cli.ledger import ledger
from dpfuse.cli.live import live
from dpfuse.cli.optimal import optimal
from dpfuse.cli.relay import relay
from dpfuse.cli.replay import replay
from dpfuse.cli.serve import serve
from dpfuse.cli.simulate import simulate
from dpfuse.cli.sweep import sweep
from dpfuse.cli.train import train
from dpfuse.cli.witness import witness

app = typer.Typer(
    name="dpfuse",
    help="Fuse private sensor streams in real time under a hard Rényi differential privacy budget.\n\n"
    "Start with `dpfuse demo`. To make a design of your own: simulate or data, then train, evaluate and audit; `sweep` "
    "makes many designs. `account` explains a budget, and `ledger` shows what was released and spent. To run a design "
    "on live streams, start with `dpfuse live`, then see keys, serve, relay, broker, estimate, witness and replay.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_OFFLINE = demo, simulate, train, evaluate, sweep, card, audit, account, optimal
_LIVE = live, serve, relay, broker, estimate, replay, witness
for command in (*_OFFLINE, *_LIVE):
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(ledger, name="ledger")
app.add_typer(bank, name="bank")
app.add_typer(keys, name="keys")
app.add_typer(fleet, name="fleet")


def main() -> None:
    """Run the command line. An error is one line on stderr, and the exit code says what to do (`exit_code`)."""
    from dpfuse._logs import print_error
    from dpfuse.errors import DpfuseError

    usual = warnings.formatwarning
    # A warning is one line too, without the code that warns.
    warnings.formatwarning = lambda message, *_, **__: f"dpfuse: {message}\n"
    try:
        app()
    except (DpfuseError, OSError, TypeError, ValueError) as error:
        print_error(str(error))
        raise SystemExit(exit_code(error)) from None
    finally:
        warnings.formatwarning = usual


def exit_code(error: Exception) -> int:
    """2: change arguments or settings; 3: a ledger or bank is refused; 75: try again later; 1: any other error."""
    from dpfuse.errors import LedgerMismatch, LedgerRefused, LedgerUnavailable

    if isinstance(error, LedgerUnavailable):
        return 75
    if isinstance(error, LedgerMismatch | TypeError | ValueError):
        return 2
    return 3 if isinstance(error, LedgerRefused) else 1
