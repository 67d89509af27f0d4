"""`dpfuse estimate`: the remote estimator, following a centre's releases."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Annotated

import typer


def estimate(
    url: Annotated[str, typer.Option("--from", help="Address of the centre.", metavar="URL")] = "http://127.0.0.1:8765",
    stream: Annotated[str, typer.Option(help="Name of the stream.")] = "main",
    estimator: Annotated[
        Path | None, typer.Option(help="File from `Design.export_estimator`; by default fetched from the centre.")
    ] = None,
    start: Annotated[int, typer.Option(min=1, help="First step to read; those before count as skipped.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many estimates.")] = None,
    ca: Annotated[Path | None, typer.Option(help="Certificates to trust, if the centre made its own.")] = None,
) -> None:
    """Estimate the state from a centre's releases, as they are published.

    Prints a JSON line for each release: stream, step, mean and standard deviation of
    every coordinate of the state. Needs neither ledger nor design. Goes on through
    restarts of the centre until it is told to stop; exit 1 if what comes is no
    release, or contradicts what came before.

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
