"""`dpfuse audit`: attack a design, and compare the leak that is found with its guarantee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import AsJson, Delta, Force, refuse_overwrite


def audit(
    design: Annotated[Path, typer.Argument(help="The design to attack.")],
    runs: Annotated[int, typer.Option(help="Runs of the exact release path in each of the two worlds.")] = 2000,
    confidence: Annotated[float, typer.Option(help="Confidence of each lower bound on epsilon, in [0.5, 1).")] = 0.95,
    delta: Delta = 1e-5,
    steps: Annotated[int | None, typer.Option(help="Releases in a run; by default all releases of the design.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search for a canary. The noise has no seed.")] = 0,
    figure: Annotated[
        Path | None, typer.Option(help="PNG file for scores and trade-off curves of the attacks.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Attack a design and check that its guarantee holds.

    The attacker knows everything except one sensor, the canary, and guesses from the
    releases whether it took part (replace-one: which of two trajectories it had). Two
    canaries are tried: one that adds as much as any design of this guarantee allows,
    and the worst one that a search finds for this design. Accounts, sums and noise
    are checked too. Exit 1 if a check contradicts the guarantee.

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
