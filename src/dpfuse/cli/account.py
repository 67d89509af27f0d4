"""`dpfuse account`: a Rényi budget as (epsilon, delta), and the budget for an epsilon."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfuse.cli._options import AsJson, Delta, Order, Period, read_period

if TYPE_CHECKING:
    from rich.table import Table

BUDGETS_SHOWN = (0.07, 0.15, 0.3, 0.5, 1.0, 1.5, 3.0, 5.0)


def account(
    budget: Annotated[float | None, typer.Option(help="Rényi budget B at --order. Give this or --epsilon.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Find the largest budget with at most this epsilon, by GDP.")
    ] = None,
    order: Order = 2.0,
    delta: Delta = 1e-5,
    coordinates: Annotated[
        int, typer.Option(help="By GDP, include the cost of discrete noise in so many coordinates: steps times d.")
    ] = 0,
    period: Period = None,
    as_json: AsJson = False,
) -> None:
    """Convert a Rényi budget to (epsilon, delta), or find the budget for an epsilon.

    The four values of epsilon describe the same releases. The first two use the
    loss at one order. The last two use that Gaussian noise has a known loss at
    every order, and are smaller. All hold for one sensor and everything that is
    ever released, under the adjacency of the guarantee.

    Example: dpfuse account --order 2 --budget 1.5 --delta 1e-5

    Example: dpfuse account --epsilon 3 --delta 1e-5

    Example: dpfuse account --budget 0.1 --period day
    """
    if (budget is None) == (epsilon is None):
        raise typer.BadParameter("give either --budget or --epsilon, not both")
    try:
        answer = _answer(budget, epsilon, order, delta, coordinates, read_period(period))
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        _show(answer)


def _answer(
    budget: float | None,
    epsilon: float | None,
    order: float,
    delta: float,
    coordinates: int,
    period: str | float | None,
) -> dict[str, Any]:
    from dpfuse import privacy
    from dpfuse.guarantee import Guarantee
    from dpfuse.privacy.statement import losses_over_time

    if budget is None:
        assert epsilon is not None  # checked by the caller
        budget = privacy.budget_for(epsilon, delta, order, coordinates=coordinates)
    figures = privacy.epsilons(order, budget, delta, coordinates)
    if not math.isfinite(figures["gdp"]):
        raise ValueError(f"coordinates must be fewer at delta {delta!r}, got {coordinates}; or use a larger delta")
    guarantee = Guarantee(order=order, budget=budget, adjacency="remove-one", period=period)
    spans = losses_over_time(guarantee, delta)  # the same for either adjacency
    over_time = [{"span": span, "loss": loss, "epsilon_zcdp": epsilon} for span, loss, epsilon in spans]
    return ({} if period is None else {"period": period, "over_time": over_time}) | {
        "epsilon": figures,
        "rho": privacy.rho_of(order, budget),
        "mu": privacy.mu_of(order, budget),
        "order": order,
        "budget": budget,
        "delta": delta,
    }


def _show(answer: dict[str, Any]) -> None:
    from rich.console import Console

    from dpfuse.privacy.statement import CHANCE_EXPLAINED

    console = Console()
    console.print(_meaning(answer))
    console.print(f"The same as rho-zCDP: rho = {answer['rho']:.4g}; as mu-GDP: mu = {answer['mu']:.4g}.\n")
    if "over_time" in answer:
        console.print(_over_time(answer))
    console.print(_choices(answer["order"], answer["delta"]))
    console.print(CHANCE_EXPLAINED)


def _meaning(answer: dict[str, Any]) -> Table:
    from rich.table import Table

    from dpfuse.privacy.statement import CONVERSIONS_EXPLAINED

    title = f"Budget {answer['budget']:.6g} at order {answer['order']:g}, delta = {answer['delta']:g}"
    table = Table("by", "epsilon", "which is", title=title, title_justify="left")
    for by, epsilon in answer["epsilon"].items():
        table.add_row(by, f"{epsilon:.4g}", CONVERSIONS_EXPLAINED[by])
    return table


def _over_time(answer: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table("reports of", "loss", "epsilon (zcdp)", title="What periods add up to", title_justify="left")
    for span in answer["over_time"]:
        table.add_row(span["span"], f"{span['loss']:g}", f"{span['epsilon_zcdp']:.2f}")
    return table


def _choices(order: float, delta: float) -> Table:
    from rich.table import Table

    from dpfuse import privacy

    title = f"Budgets at order {order:g}, delta = {delta:g}"
    table = Table("budget", "epsilon (gdp)", "epsilon (zcdp)", "chance to tell", title=title, title_justify="left")
    for budget in BUDGETS_SHOWN:
        figures = privacy.epsilons(order, budget, delta)
        chance = f"{privacy.chance_to_tell(order, budget):.1%}"
        table.add_row(f"{budget:g}", f"{figures['gdp']:.2f}", f"{figures['zcdp']:.2f}", chance)
    return table
