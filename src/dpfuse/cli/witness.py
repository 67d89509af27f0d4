"""`dpfuse witness`: notices a centre that has rewritten its past."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import Certificates


def witness(
    url: Annotated[
        str, typer.Option("--from", help="Reading address of a centre, or of a relay of it.", metavar="URL")
    ],
    out: Annotated[Path, typer.Option(help="File that keeps the newest releases; it is continued if it exists.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    key: Annotated[
        str | None, typer.Option(help="The centre's public key, if you have it from elsewhere; by default as it says.")
    ] = None,
    ca: Certificates = None,
) -> None:
    """Keep the newest signed release of each stream, and end with exit 1 if the past has changed.

    Each release has a hash that covers all releases of its stream before it. At each
    look the centre must still show the kept ones, and what follows from them. Run it
    where the centre's operator cannot write. `dpfuse ledger verify --witness` compares
    the file with a ledger.

    Example: dpfuse witness --from http://127.0.0.1:8765 --out tips.jsonl
    """
    from dpfuse.remote.client import connection_errors, reason_of
    from dpfuse.remote.witness import Witness

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    with Witness(url, out, ca=ca, public_key=key, tell=tell) as found, suppress(KeyboardInterrupt):
        is_away = False
        while True:
            try:
                num_new = found.look()
                if is_away:
                    tell(f"{url} is back")
                is_away = False
                if once:
                    typer.echo(f"the past is unchanged; {num_new} streams have new releases")
                    return
            except connection_errors() as error:
                if once:
                    raise ConnectionError(f"no centre answers at {url} ({reason_of(error)}); is it running?") from error
                if not is_away:
                    tell(f"{url} is away ({reason_of(error)}); trying again")
                is_away = True
            time.sleep(every)
