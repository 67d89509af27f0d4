"""`dpfuse estimate`: the remote estimator, which follows the releases of a centre."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfuse.cli._options import Certificates, Stream

if TYPE_CHECKING:
    from dpfuse.remote.estimator import RemoteEstimate


def estimate(
    url: Annotated[
        str, typer.Option("--from", help="Address of the centre for readers, or of a relay.", metavar="URL")
    ] = "http://127.0.0.1:8765",
    stream: Stream = "main",
    estimator: Annotated[
        Path | None, typer.Option(help="File from `Design.export_estimator`; by default fetched from the centre.")
    ] = None,
    start: Annotated[int, typer.Option(min=1, help="First step to read, with fresh memory.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of estimates; by default without end.")] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The centre's public key, if you have it from elsewhere; by default that of the file."),
    ] = None,
    ca: Certificates = None,
) -> None:
    """Estimate the state from the releases of a centre, as they are published.

    Prints a JSON line for each release: stream, step, and mean and standard deviation
    of each coordinate of the state. Needs neither the ledger nor the design. The command
    may be started before the centre. If the centre restarts, the command goes on; where
    the releases are of another design, the command fetches its estimator, unless one was
    given.
    A release without the centre's signature is left out, and the next one is read. So is
    one of another design, unless the centre hands out an estimator of that design with
    the same key. Without --key the command prints which key it checks with.
    Exit 1 if a message is no release or contradicts an earlier one.

    Example: dpfuse estimate --from http://127.0.0.1:8765 --stream main
    """
    from dpfuse.errors import DesignChanged
    from dpfuse.remote.estimator import RemoteEstimator
    from dpfuse.remote.follower import fetch_estimator, follow

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    def estimates() -> Iterator[RemoteEstimate]:
        first, known = start, key
        while True:
            given = RemoteEstimator.load(estimator, public_key=known) if estimator else None
            reader = given or fetch_estimator(url, stream, first, ca=ca, public_key=known, tell=tell)
            if reader.signatory is None:
                tell(f"{estimator or url} has no signature: whoever hands out the releases can make them up")
            elif known is None:
                tell(reader.signatory.named_by(estimator or url))
                known = reader.signatory.public_key
            try:
                yield from follow(url, stream, reader, first, ca=ca, tell=tell)
                return
            except DesignChanged:
                if given:
                    raise
                first = reader.last_step(stream) + 1
                tell(f"{url} has another design from step {first} on; fetching its estimator")

    with contextlib.suppress(KeyboardInterrupt):
        for found in itertools.islice(estimates(), steps):
            print(json.dumps(found.to_dict()), flush=True)
