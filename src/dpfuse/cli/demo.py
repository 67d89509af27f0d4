"""`dpfuse demo`: the main task on built-in data, from simulated traffic to designs, figures and a guarantee."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfuse.cli._options import AsJson

if TYPE_CHECKING:
    from dpfuse.evaluation import Comparison, Report
    from dpfuse.policy import Design
    from dpfuse.trajectories import Trajectories

_ORDER, _BUDGET, _HORIZON = 2.0, 0.5, 100
_DENSITY = "density [veh/km]"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report, designs and figures.")] = Path("out/demo"),
    updates: Annotated[int, typer.Option(help="Gradient steps for each design; fewer are faster and worse.")] = 1200,
    seed: Annotated[int, typer.Option(help="Seed; equal seeds give equal results.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train three designs for a simulated freeway under a privacy budget, and compare them.

    Simulates a five-lane freeway on which 30% of the vehicles report their position
    and speed every 0.2 s. Trains designs that release a noisy vector at every step for
    20 s, within the Rényi budget 0.5 at order 2 for each vehicle (remove-one), and a
    non-private floor. Tests all on traffic that they were not trained on.

    classical: spends the budget evenly. adaptive: spends by past releases.
    individual: like adaptive, but each vehicle is charged for what it adds.

    Example: dpfuse demo --out out/demo
    """
    if out.is_dir() and any(out.iterdir()) and not (out / "report.json").exists():
        raise typer.BadParameter(f"{out} holds other files than those of a demo; give another --out")
    began = time.perf_counter()
    import dpfuse
    from dpfuse.evaluation.text import to_text

    dpfuse.use_all_cores()
    typer.echo("simulating traffic ...", err=True)
    training, validation, test = _traffic(seed)
    designs = _train(training, validation, updates, seed)
    typer.echo("evaluating ...", err=True)
    reports = {name: dpfuse.evaluate(design, test, stride=_HORIZON // 2) for name, design in designs.items()}
    paired = {name: dpfuse.compare(reports[name], reports["classical"]) for name in ("adaptive", "individual")}
    statement = reports["individual"].statement
    for name, design in designs.items():
        design.save(out / f"{name}.dpfuse")
    _draw(designs, reports, test, out)
    summary = _summary(reports, paired) | {"statement": statement, "seconds": time.perf_counter() - began}
    (out / "report.json").write_text(json.dumps(summary, indent=2) + "\n")
    text = f"{to_text(reports, paired, 'classical')}\n\n{statement}"
    (out / "report.md").write_text(_page(text))
    typer.echo(json.dumps(summary) if as_json else f"{text}\n\nReport, designs and figures are in {out}/")


def _traffic(seed: int) -> tuple[Trajectories, Trajectories, Trajectories]:
    """Training, validation and test runs, in which 30% of the vehicles report."""
    from dpfuse.systems import freeway

    traffic = freeway.simulate(num_runs=8, seed=seed).sample_sensors(0.3, seed)
    return traffic.split((0.5, 0.125, 0.375), by="run")


def _train(training: Trajectories, validation: Trajectories, updates: int, seed: int) -> dict[str, Design]:
    import dpfuse

    def guarantee_of(accounting: Any) -> dpfuse.Guarantee:
        return dpfuse.Guarantee(order=_ORDER, budget=_BUDGET, adjacency="remove-one", accounting=accounting)

    plan: dict[str, tuple[dpfuse.Guarantee | None, Any]] = {
        "classical": (guarantee_of("total"), "constant"),
        "adaptive": (guarantee_of("total"), "adaptive"),
        "individual": (guarantee_of("individual"), "adaptive"),
        "non-private": (None, "constant"),
    }
    designs = {}
    for name, (guarantee, spending) in plan.items():
        typer.echo(f"training {name}", err=True)
        designs[name] = dpfuse.train(
            training,
            validation,
            guarantee,
            spending=spending,
            horizon=_HORIZON,
            optimisation=dpfuse.Optimisation(num_updates=updates, num_starts=1),
            seed=seed,
            progress=True,
        )
    return designs


def _summary(reports: dict[str, Report], paired: dict[str, Comparison]) -> dict[str, Any]:
    private = {name: report for name, report in reports.items() if report.guarantee}
    first = reports["classical"]
    assert first.guarantee is not None  # only the floor has none
    return {
        "designs": {name: report.to_dict() for name, report in private.items()},
        "paired": {name: comparison._asdict() for name, comparison in paired.items()},
        "prior_mse": first.prior_mse,
        "non_private_mse": reports["non-private"].mse,
        "guarantee": {
            "order": _ORDER,
            "budget": _BUDGET,
            "adjacency": first.guarantee.adjacency,
            "epsilon": first.epsilon,
            "delta": first.delta,
        },
    }


def _draw(designs: dict[str, Design], reports: dict[str, Report], test: Trajectories, out: Path) -> None:
    from dpfuse.evaluation import figures

    private = {name: report for name, report in reports.items() if report.guarantee}
    figures.save_figures(
        {
            "traffic": figures.plot_recording(test, state_name=_DENSITY),
            "estimates": figures.plot_estimates(designs, test, state_name=_DENSITY),
            "budget": figures.plot_budget(private),
            "error": figures.plot_error(reports),
        },
        out,
    )


def _page(text: str) -> str:
    captions = {
        "traffic": "Density and reporting vehicles over time and space; dark is slow",
        "estimates": "True and estimated density",
        "budget": "Budget spent at each step",
        "error": "Squared error at each step",
    }
    pictures = "\n\n".join(f"![{caption}]({name}.png)\n*{caption}*" for name, caption in captions.items())
    return f"# Density of a freeway section, estimated from private releases\n\n{text}\n\n{pictures}\n"
