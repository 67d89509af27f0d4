"""The command line: one file for each command; results go to stdout, progress to stderr."""

from __future__ import annotations

import sys

import typer

from dpfuse.cli.account import account
from dpfuse.cli.audit import audit
from dpfuse.cli.broker import broker
from dpfuse.cli.data import data
from dpfuse.cli.demo import demo
from dpfuse.cli.estimate import estimate
from dpfuse.cli.evaluate import evaluate
from dpfuse.cli.ledger import ledger
from dpfuse.cli.live import live
from dpfuse.cli.optimal import optimal
from dpfuse.cli.replay import replay
from dpfuse.cli.serve import serve
from dpfuse.cli.simulate import simulate
from dpfuse.cli.token import token
from dpfuse.cli.train import train

app = typer.Typer(
    name="dpfuse",
    help="Fuse private sensor streams in real time under a hard Rényi differential privacy budget.\n\n"
    "Start with `dpfuse demo`. To make a design of your own: simulate or data, then train, evaluate and audit. "
    "`account` explains a budget, and `ledger` shows what was released and spent. To run a design on live streams, "
    "start with `dpfuse live`, then see token, serve, broker, estimate and replay.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_OFFLINE = demo, simulate, data, train, evaluate, audit, account, optimal
_LIVE = live, serve, token, broker, estimate, replay
for command in (*_OFFLINE, *_LIVE):
    app.command()(command)
app.add_typer(ledger, name="ledger")


def main() -> None:
    """Run the command line. An error is one line on stderr: exit 2 for a wrong argument, else 1."""
    from dpfuse.errors import DpfuseError

    try:
        app()
    except (DpfuseError, OSError, TypeError, ValueError) as error:
        print(f"dpfuse: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, TypeError | ValueError) else 1) from None
