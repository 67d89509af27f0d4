"""`dpfuse estimate`: the remote estimator, which follows the releases of a centre."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import Certificates, Stream


def estimate(
    url: Annotated[str, typer.Option("--from", help="Address of the centre.", metavar="URL")] = "http://127.0.0.1:8765",
    stream: Stream = "main",
    estimator: Annotated[
        Path | None, typer.Option(help="File from `Design.export_estimator`; by default fetched from the centre.")
    ] = None,
    start: Annotated[int, typer.Option(min=1, help="First step to read. Earlier steps count as skipped.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of estimates; by default without end.")] = None,
    ca: Certificates = None,
) -> None:
    """Estimate the state from the releases of a centre, as they are published.

    Prints a JSON line for each release: stream, step, and mean and standard deviation
    of each coordinate of the state. Needs neither the ledger nor the design. If the
    centre restarts, the command goes on. Exit 1 if a message is no release or
    contradicts an earlier one.

    Example: dpfuse estimate --from http://127.0.0.1:8765 --stream main
    """
    from dpfuse.remote.estimator import RemoteEstimator
    from dpfuse.remote.follower import fetch_estimator, follow

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    reader = RemoteEstimator.load(estimator) if estimator else fetch_estimator(url, ca=ca)
    with contextlib.suppress(KeyboardInterrupt):
        for found in itertools.islice(follow(url, stream, reader, start, ca=ca, tell=tell), steps):
            print(json.dumps(found.to_dict()), flush=True)
