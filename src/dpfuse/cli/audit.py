"""`dpfuse audit`: attack a design and hold what is found against its promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._files import refuse_overwrite


def audit(
    design: Annotated[Path, typer.Argument(help="The design to attack.")],
    runs: Annotated[int, typer.Option(help="Runs of the exact release path, in each of the two worlds.")] = 2000,
    confidence: Annotated[float, typer.Option(help="Of each lower bound on epsilon, in [0.5, 1).")] = 0.95,
    delta: Annotated[float, typer.Option(help="The delta at which epsilon is claimed and bounded.")] = 1e-5,
    steps: Annotated[int | None, typer.Option(help="Releases in a run; by default all that a design makes.")] = None,
    seed: Annotated[int, typer.Option(help="Of the search for a canary; the noise has no seed.")] = 0,
    figure: Annotated[Path | None, typer.Option(help="A PNG: scores and trade-off curves of both attacks.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --figure.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Attack a design and say whether its promise stood.

    The attacker knows everything but one sensor, the canary: is it there (or which
    of two trajectories is its own)? Two canaries are tried, the loudest that any
    design of this promise could meet, and the worst that hand and gradients find for
    this one. Accounts, sums and the noise are checked as well. Exit 1 if anything
    speaks against the promise.

    Example: dpfuse audit road.dpfuse --figure audit.png
    """
    if figure:
        refuse_overwrite(figure, force)
    import dpfuse
    from dpfuse.audit import plot_audit, to_text

    result = dpfuse.audit_design(
        dpfuse.load(design),
        num_runs=runs,
        confidence=confidence,
        delta=delta,
        num_steps=steps,
        seed=seed,
        progress=True,
    )
    if figure:
        figure.parent.mkdir(parents=True, exist_ok=True)
        plot_audit(result).savefig(figure, dpi=120)
    typer.echo(json.dumps(result.to_dict()) if as_json else to_text(result))
    if not result.passed:
        raise typer.Exit(1)
