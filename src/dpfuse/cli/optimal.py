"""`dpfuse optimal`: the optimality equations of Theorem 1, solved for a small system."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpfuse.cli._options import AsJson, FigureFolder

if TYPE_CHECKING:
    from dpfuse.optimal import GeneralSolution, Problem, Solution

Form = Literal["gaussian", "general"]


def optimal(
    problem: Annotated[
        str,
        typer.Argument(
            help="A preset (slow, onset, scarce, single: two states; incident: three) or a TOML file with the fields "
            "of a problem."
        ),
    ] = "slow",
    form: Annotated[
        Form,
        typer.Option(
            help="What is optimised. gaussian: the spending, with the measurement as the feature, for two to four "
            "states; general: the whole release, for two states and one binary sensor."
        ),
    ] = "gaussian",
    symbols: Annotated[
        int, typer.Option(help="Number of symbols of a general release, 2 or 4; more than 4 gain nothing.")
    ] = 4,
    beliefs: Annotated[
        int | None,
        typer.Option(
            help="Nodes of belief, an odd number; for S states they are nodes of each of S - 1 angles.",
            show_default="81, 41, 13 for 2, 3, 4 states; 41 for the general form",
        ),
    ] = None,
    budgets: Annotated[
        int | None,
        typer.Option(
            help="Nodes of budget left, an odd number.",
            show_default="61, 25, 17 for 2, 3, 4 states; 25 for the general form",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(help="Simulated runs that check the value.")] = 50_000,
    seed: Annotated[int, typer.Option(help="Seed of the simulated runs.")] = 0,
    figures: FigureFolder = None,
    as_json: AsJson = False,
) -> None:
    """Solve the optimality equations of Theorem 1 for a small hidden Markov system.

    The gaussian form releases the sum of the measurements plus noise. It finds the
    least squared error, summed over the horizon, of any rule that spends by past
    releases, and the rule that reaches it. Other features can do better. It also finds
    the best schedule that is fixed in advance, and so the gain of the closed loop.

    The general form finds the best of all releases that read the present measurement.

    Every value is checked by simulation. Three or four states take about a minute and
    2 GB of memory.

    Example: dpfuse optimal slow --figures out/slow

    Example: dpfuse optimal incident

    Example: dpfuse optimal single --form general
    """
    from dpfuse import optimal as solver
    from dpfuse.evaluation.figures import save_figures
    from dpfuse.optimal.figures import plot_path, plot_solution

    question = solver.PRESETS[problem] if problem in solver.PRESETS else solver.Problem.load(problem)
    grid = {name: n for name, n in [("num_beliefs", beliefs), ("num_budgets", budgets)] if n is not None}
    solution: Solution | GeneralSolution
    if form == "gaussian":
        solution = solver.solve(question, **grid)
    else:
        solution = solver.solve_general(question, num_symbols=symbols, **grid)
    answer = _answer(question, solution, form, runs, seed, grid)
    if figures:
        drawn = {"solution": plot_solution(solution)} if question.num_states <= 3 else {}
        drawn["path"] = plot_path(solution, seed=seed)
        answer["figures"] = [str(path) for path in save_figures(drawn, figures)]
    typer.echo(json.dumps(answer) if as_json else _text(problem, answer))


def _answer(
    problem: Problem, solution: Solution | GeneralSolution, form: Form, runs: int, seed: int, grid: dict[str, int]
) -> dict[str, Any]:
    from dpfuse import optimal as solver

    simulated = solution.simulate(num_runs=runs, seed=seed)
    answer: dict[str, Any] = {"problem": problem.to_dict(), "form": form, **solution.to_dict()}
    answer["simulated"] = {"value": simulated.value, "ci95": simulated.ci95, "runs": runs}
    if form == "gaussian":
        schedule = solver.best_schedule(problem, **grid)
        answer["even_value"] = schedule.even_value
        answer["schedule"] = {"value": schedule.value, "losses": schedule.losses.tolist()}
        answer["closed_loop_gain"] = 1 - solution.value / schedule.value
    return answer


def _text(name: str, answer: dict[str, Any]) -> str:
    steps, budget, order = (answer["problem"][field] for field in ("horizon", "budget", "order"))
    low, high = answer["simulated"]["ci95"]
    lines = [f"{name}: squared error summed over {steps} steps, budget {budget:g} at order {order:g}"]
    if answer["form"] == "gaussian":
        lines.append(f"  spent evenly                 {answer['even_value']:.4f}")
        lines.append(f"  best schedule                {answer['schedule']['value']:.4f}")
        lines.append(f"  optimal (closed loop)        {answer['value']:.4f}, {answer['closed_loop_gain']:.1%} less")
    else:
        lines.append(f"  optimal with {answer['num_symbols']} symbols       {answer['value']:.4f}")
        lines.append(f"  gap of the linear programmes {answer['gap']:.1e}")
    lines.append(f"  on a grid half as fine       {answer['discretisation_error']:.2%} different")
    lines.append(f"  simulated                    {answer['simulated']['value']:.4f} (95%: {low:.4f} to {high:.4f})")
    return "\n".join([*lines, *(f"  {path}" for path in answer.get("figures", ()))])
