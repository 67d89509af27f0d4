"""What pages quote of experiments, but for US-101, whose tables are in `experiments/us101/tables.py`."""

from __future__ import annotations

from typing import Any

from tools.markdown import make_table, with_interval
from tools.results import read_results, read_runs

MECHANISMS = ("local", "output", "input", "matrix", "two-stage", "classical", "adaptive", "individual")
SPENDING = {"constant": "even", "schedule": "schedule", "adaptive": "closed loop"}


def demo() -> str:
    """The designs of `dpfuse demo`."""
    found = read_results("demo")
    rows = []
    for name, design in found["designs"].items():
        paired = found["paired"].get(name)
        over = with_interval(paired["ratio"], paired["ci95"]) if paired else ""
        rows.append([name, f"{design['mse']:.0f}", over, f"{design['budget_spent_max']:.4f}"])
    rows.append(["no noise (not private)", f"{found['non_private_mse']:.0f}", "", ""])
    rows.append(["no releases (prior)", f"{found['prior_mse']:.0f}", "", ""])
    budget = f"{found['guarantee']['budget']:g}"
    header = ["design", "squared error [(veh/km)^2]", "over classical (95% interval)", f"most spent of {budget}"]
    return make_table(header, rows) + "\n*`make demo`, kept in `experiments/demo/results.json`.*\n"


def live() -> str:
    """The design that comes with dpfuse."""
    found, note = read_results("live"), read_runs("live")[0]["note"]
    rows = []
    for world, designs in found["tests"].items():
        own = designs["design"]
        errors = [f"{designs[name]['mse']:.1f}" if name in designs else "" for name in ("floor", "sumo")]
        # One recording has no interval.
        error = with_interval(own["mse"], own["ci95"], ".1f") if own["ci95"] else f"{own['mse']:.1f}"
        rows.append([world, error, f"{100 * own['coverage']:.1f}%", *errors, f"{own['prior_mse']:.0f}"])
    header = ["test", "squared error (95%)", "95% band right", "no noise", "trained there", "no releases"]
    spent = max(designs["design"]["budget_spent_max"] for designs in found["tests"].values())
    return (
        make_table(header, rows)
        + "\n*Squared errors in (veh/km/lane)^2 over windows of ten minutes that were not used in training. The error "
        + "without releases is that of the mean density of all training roads. No vehicle spent more than "
        + f"{spent:.4f} of {found['guarantee']['budget']:g}. {f'Note: {note}. ' if note else ''}"
        + "`make live-design`, kept in `experiments/live/results.json`.*\n"
    )


def audit() -> str:
    """Attacks on the worst f at several budgets and on the designs of the demo."""
    found = read_results("audit")
    settings = found["settings"]
    rows = [
        _attack(f"worst f, budget {row['budget']:g}", row["epsilon_claimed"], row, settings["runs"])
        for row in found["budgets"]
    ]
    for name, design in found["designs"].items():
        for attack in design["attacks"]:
            rows.append(_attack(f"{name}, {attack['name']}", design["epsilon_claimed"], attack, design["num_runs"]))
    return (
        f"Epsilon at delta = {settings['delta']:g}, lower bounds at a confidence of {settings['confidence']:g}. The "
        f"first rows attack the worst f at several budgets (order {settings['order']:g}, {settings['steps']} "
        "releases), the others the designs of `make demo` (budget 0.5, 100 releases). *Budget reached* is computed, "
        "not estimated: the squared distance of the two worlds over the budget, averaged over the runs.\n\n"
        + make_table(
            ["attack on", "epsilon claimed", "at least", "share", "budget reached", "runs in each world"],
            rows,
        )
        + "\n*`make audit`, kept in `experiments/audit/results.json`.*\n"
    )


def _attack(what: str, claim: float, attack: dict[str, Any], num_runs: int) -> list[str]:
    bound, reach = attack["epsilon_bound"], attack["reach"]
    return [what, f"{claim:.3f}", f"{bound:.3f}", f"{bound / claim:.0%}", f"{reach:.1%}", f"{num_runs:,}"]


def baselines() -> str:
    """A table for each system: squared error and its 95% interval by mechanism and budget."""
    parts = []
    for system, found in read_results("baselines")["systems"].items():
        by_budget = found["budgets"].values()
        header = [f"**{system}** [{found['unit']}]", *(f"B = {budget}" for budget in found["budgets"])]
        rows = [[name, *(_error(each["mechanisms"][name]) for each in by_budget)] for name in MECHANISMS]
        for name in MECHANISMS[5:]:
            over = [(each["over_best_baseline"][name], each["best_baseline"]) for each in by_budget]
            cells = [f"{with_interval(ratio['ratio'], ratio['ci95'])}, {best}" for ratio, best in over]
            rows.append([f"{name} over the best baseline", *cells])
        rows.append(["no releases (prior)", *[_short(found["prior_mse"])] * len(by_budget)])
        parts.append(make_table(header, rows))
    return "\n".join(parts)


def _error(figures: dict[str, Any]) -> str:
    error, low, high = (_short(value) for value in (figures["mse"], *figures["ci95"]))
    return f"{error} ({low} to {high})"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def optimality() -> str:
    """Learned designs against the solved optimum."""
    rows = []
    results = read_results("optimality")
    for name, preset in (results["presets"] | results["three_states"]).items():
        for spending, value in preset["solved"].items():
            own = preset["learned"][spending]
            over = value / preset["solved"]["adaptive"] - 1
            learned = with_interval(own["total"], own["ci95"], ".1%")
            parts = f"{own['spending']:.1%} / {own['estimator']:.1%}"
            rows.append([name, SPENDING[spending], f"{value:.4f}", f"{over:.1%}", learned, parts])
    header = ["preset", "spending", "solved", "over the optimum", "learned over the optimum (95%)"]
    return make_table([*header, "spending / estimator"], rows)


def collections() -> str:
    """Whole collections against Gaussian noise."""
    general = read_results("optimality")["general"]
    rows = []
    for name, solved in general.items():
        simulated = with_interval(solved["simulated"]["value"], solved["simulated"]["ci95"], ".4f")
        over = solved["value"] / general["gaussian"]["value"] - 1
        kind = "Gaussian noise" if name == "gaussian" else f"any, on {name}"
        away = f"{solved['discretisation_error']:.3%} away"
        rows.append([kind, f"{solved['value']:.4f}", f"{over:.1%}", away, simulated])
    return make_table(
        ["release", "solved", "against Gaussian noise", "on the grid half as fine", "simulated (95%)"], rows
    )


def channels() -> str:
    """What missing channels cost."""
    found = read_results("channels")
    names = {
        "complete": "complete reports (trained and tested)",
        "partial": "f reads which channels are missing",
        "dropped": "reports that lack a channel are dropped, in training too",
        "complete_on_partial": "the same reports are dropped, trained on complete ones",
    }
    rows = [
        [what, f"{found['rows'][name]['mse']:.0f}", f"{found['rows'][name]['ratio']:.2f}"]
        for name, what in names.items()
    ]
    header = ["design", "squared error [(veh/km)^2]", "over complete reports"]
    return make_table(header, rows) + "\n*`make channels`, kept in `experiments/channels/results.json`.*\n"


def meters() -> str:
    """Household meters with a budget for each day, and with one for all time."""
    found = read_results("meters")
    names = {"day": "for each day", "all_time": "for all time"}
    rows = []
    for name, what in names.items():
        by_day, ratio = found[name]["mse_by_day"], found[name]["day_30_over_day_2"]
        shown = with_interval(ratio, found[name]["interval"], ".3g")
        rows.append([what, *(f"{by_day[day - 1]:.4f}" for day in (2, 30)), f"{found[name]['mse']:.4f}", shown])
    of_days = ["error on day 2 [kW^2]", "on day 30", "on all days", "day 30 over day 2 (95%)"]
    header, live = [f"budget of {found['budget']:g}", *of_days], found["live"]
    after = (
        f"\nThe prior has {found['prior_mse']:.4f}. As a live centre, {live['releases']:,} releases over "
        f"{found['days']} days of a simulated clock: the household that was charged most in one day was charged "
        f"{live['largest_loss_of_a_household_in_a_day']:.5f}, and {live['days_above_budget']} days exceeded the "
        f"budget.\n"
    )
    return make_table(header, rows) + after + "\n*`make meters`, kept in `experiments/meters/results.json`.*\n"


def detector() -> str:
    """What an upstream detector's count adds on US-101."""
    found = read_results("detector")
    rows = []
    for budget, own in found["budgets"].items():
        errors = [with_interval(own[kind]["mse"], own[kind]["ci95"], ".0f") for kind in ("without", "with")]
        rows.append([budget, *errors, with_interval(own["with"]["ratio"], own["with"]["ratio_ci95"])])
    header = ["B", "without the detector", "with it", "with over without (95%)"]
    return (
        make_table(header, rows)
        + f"\nWithout releases the error is {found['prior_mse']:,.0f}. The best linear estimate from the detector's "
        + f"last counts alone, with no report at all, has {found['alone']:,.0f}.\n"
        + "\n*`make detector DATA=DIR`, kept in `experiments/detector/results.json`.*\n"
    )


_QUOTED = demo, live, audit, baselines, optimality, collections, channels, meters, detector
QUOTES = {quote.__name__: quote for quote in _QUOTED}
