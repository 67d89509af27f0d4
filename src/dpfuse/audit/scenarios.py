"""Exact checks of the live step: every account and every sum is recomputed in integers.

In each scenario a few sensors run through `ExactStep` as in a live centre. The canary behaves as in the attack, leaves
and returns, reports twice in a step, or sends nonsense. The releases are then held fixed, and the step runs again with
the neighbouring world, with the sensors in other rows, and with each sensor alone. If the guarantee holds, these runs
agree to the last bit: weights and budget left are the same, the sum is the sum of what each sensor adds alone, and no
recomputed account exceeds the budget. These checks have no false alarms.

`ExactStep.release` draws the noise of these runs, one step at a time as in a live centre. More such runs follow until
there is enough noise for a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Integers
from dpfuse.audit.checks import Check, exact_check
from dpfuse.audit.worlds import CANARY, NUM_ROWS, World, Worlds
from dpfuse.policy.exact import ExactStep
from dpfuse.privacy.budget import IndividualFilter
from dpfuse.privacy.release import Mechanism, Release
from dpfuse.trajectories import NOBODY

# With 1000 draws, noise that is too small by a fifth passes in two of a million audits.
_NUM_LIVE = 1000
_NONSENSE = (np.nan, np.inf, -np.inf, 1e308, -1e308, 1e30, -1e30, 0.0)


class LiveRun(NamedTuple):
    """One run of the live step.

    Attributes:
        public: weight and budget left of each step.
        sums: the sums without noise, shape (K, d).
        debits: of each row, for each step.
        accounts: what each sensor has spent; empty in total accounting.
        releases: those that were drawn, or those that were given.
    """

    public: list[tuple[int, int | None]]
    sums: Integers
    debits: list[list[int]]
    accounts: dict[int, int]
    releases: list[Release]

    @property
    def noise(self) -> NDArray[Any]:
        """The noise of the releases, shape (K, d), if they were drawn in this run."""
        return np.array([release.value for release in self.releases]) - self.sums


class Scenario(NamedTuple):
    """One behaviour of the canary, and the runs that are compared.

    Attributes:
        name: what the canary does.
        world: the reports of the run.
        run: with fresh noise; the other runs have its releases.
        neighbour: the neighbouring world.
        moved: the same reports in other rows.
        alone: each sensor alone, by its id.
    """

    name: str
    world: World
    run: LiveRun
    neighbour: LiveRun
    moved: LiveRun
    alone: dict[int, LiveRun]


def run_live(step: ExactStep, world: World, releases: list[Release] | None = None) -> LiveRun:
    """One run of the live step with fresh noise, or with these releases."""
    carry = step.init()
    public, sums, debits, made = [], [], [], []
    for k in range(len(world.ids)):
        carry, charged = step.contribute(carry, world.ids[k], world.measurements[k], world.present[k])
        public.append((charged.fusion_weight, charged.budget_left))
        sums.append(charged.undrawn())
        debits.append(charged.debits.tolist())
        made.append(step.release(charged) if releases is None else releases[k])
        carry, _ = step.estimate(carry, made[-1], world.inputs_at(k))
    accounts = carry.accounts.accounts() if isinstance(carry.accounts, IndividualFilter) else {}
    return LiveRun(public, np.array(sums), debits, accounts, made)


def run_scenarios(step: ExactStep, worlds: Worlds) -> tuple[list[Scenario], list[str]]:
    """Every scenario that the step survives, and a failure for each that it does not."""
    scenarios, crashes = [], []
    for name, changed in _behaviours(worlds):
        try:
            scenarios.append(_run_scenario(step, name, changed))
        except Exception as error:  # of any type: a report must not stop a live centre
            crashes.append(f"it raised {type(error).__name__} (canary {name})")
    return scenarios, crashes


def live_noise(step: ExactStep, worlds: Worlds, scenarios: list[Scenario]) -> NDArray[Any]:
    """The noise of the scenarios, and of as many further runs as are needed for `_NUM_LIVE` draws, shape (draws,)."""
    runs = [scenario.run for scenario in scenarios]
    while runs and sum(run.sums.size for run in runs) < _NUM_LIVE:
        runs.append(run_live(step, worlds.with_canary))
    return np.concatenate([run.noise.ravel() for run in runs] or [np.zeros(0, np.int64)])


def check_exactly(mechanism: Mechanism, scenarios: list[Scenario], crashes: list[str]) -> list[Check]:
    """The checks of the scenarios in integers."""
    account = _total_account if mechanism.guarantee.accounting == "total" else _individual_accounts
    rules: list[tuple[str, str, Callable[[Mechanism, Scenario], Iterator[str]]]] = [
        ("public spending", "weights and budget left do not depend on the canary", _public_differences),
        ("independence", "each sensor adds what it adds alone, in any row", _dependences),
        ("accounts", "every account, recomputed in integers, agrees with the debits and is within the budget", account),
        ("distance", "the distance between neighbouring worlds is within the budget", _excess_distance),
    ]
    checks = [exact_check("robustness", "no report stops the step", crashes)]
    for name, what, find in rules:
        checks.append(
            exact_check(name, what, [failure for scenario in scenarios for failure in find(mechanism, scenario)])
        )
    return checks


def _behaviours(worlds: Worlds) -> Iterator[tuple[str, Worlds]]:
    num_steps = len(worlds.with_canary.ids)
    is_away = (np.arange(num_steps) >= num_steps // 3) & (np.arange(num_steps) < -(-num_steps // 2))
    is_back = np.arange(num_steps) >= -(-num_steps // 2)
    spare = NUM_ROWS - 1

    def returns(world: World) -> World:
        changed, is_canary = world.copy(), world.ids[:, 0] == CANARY
        changed.ids[(is_away | is_back) & is_canary, 0] = NOBODY
        changed.ids[is_back & is_canary, spare] = CANARY
        changed.measurements[:, spare], changed.present[:, spare] = world.measurements[:, 0], world.present[:, 0]
        return changed

    def twice(world: World) -> World:
        changed = world.copy()
        changed.ids[world.ids[:, 0] == CANARY, spare] = CANARY
        changed.measurements[:, spare], changed.present[:, spare] = world.measurements[:, 0], world.present[:, 0]
        return changed

    def nonsense(world: World) -> World:
        changed = world.copy()
        changed.measurements[:, 0] = np.resize(_NONSENSE, changed.measurements[:, 0].shape)
        return changed

    yield "as attacked", worlds
    yield "leaves and returns", Worlds(*map(returns, worlds))
    yield "reports twice", Worlds(*map(twice, worlds))
    yield "sends nonsense", worlds._replace(with_canary=nonsense(worlds.with_canary))


def _run_scenario(step: ExactStep, name: str, worlds: Worlds) -> Scenario:
    world = worlds.with_canary
    run = run_live(step, world)
    order = np.roll(np.arange(NUM_ROWS), 1)[::-1]
    sensors = [int(sensor) for sensor in np.unique(world.ids) if sensor != NOBODY]
    return Scenario(
        name,
        world,
        run,
        neighbour=run_live(step, worlds.neighbour, run.releases),
        moved=run_live(step, world.in_rows(order), run.releases),
        alone={sensor: run_live(step, world.only(sensor), run.releases) for sensor in sensors},
    )


def _public_differences(_: Mechanism, scenario: Scenario) -> Iterator[str]:
    run = scenario.run
    if [(release.fusion_weight, release.budget_left) for release in run.releases] != run.public:
        yield f"a release has another weight or budget left than was charged (canary {scenario.name})"
    for where, other in {"in the neighbouring world": scenario.neighbour, "in other rows": scenario.moved}.items():
        for k, (own, others) in enumerate(zip(run.public, other.public, strict=True)):
            if own != others:
                yield f"{where} weight or budget left of step {k + 1} differ (canary {scenario.name})"


def _dependences(_: Mechanism, scenario: Scenario) -> Iterator[str]:
    if not np.array_equal(scenario.run.sums, scenario.moved.sums):
        yield f"the sum depends on the rows of the sensors (canary {scenario.name})"
    alone = sum(run.sums for run in scenario.alone.values())
    if not np.array_equal(scenario.run.sums, alone):
        yield f"the sum is not the sum of what each sensor adds alone (canary {scenario.name})"


def _excess_distance(mechanism: Mechanism, scenario: Scenario) -> Iterator[str]:
    moves = (scenario.run.sums - scenario.neighbour.sums).astype(object)
    distance = int((moves * moves).sum())
    if distance > mechanism.budget:
        yield f"the distance is {distance / mechanism.budget:.3g} of the budget (canary {scenario.name})"


def _total_account(mechanism: Mechanism, scenario: Scenario) -> Iterator[str]:
    """The first failure of the account of the stream."""
    left = mechanism.budget
    for k, ((weight, published), debits) in enumerate(zip(scenario.run.public, scenario.run.debits, strict=True)):
        left -= mechanism.factor * weight**2
        if left < 0:
            yield f"the budget is exceeded at step {k + 1} (canary {scenario.name})"
            return
        if published != left or debits != [mechanism.factor * weight**2]:
            yield f"the debit of step {k + 1} is not its cost (canary {scenario.name})"
            return
        for run in scenario.alone.values():
            if not _is_inside(mechanism, [int(entry) for entry in run.sums[k]], weight):
                yield f"a sensor adds more than its feature set allows at step {k + 1} (canary {scenario.name})"
                return


def _individual_accounts(mechanism: Mechanism, scenario: Scenario) -> Iterator[str]:
    """The failures of the accounts of the sensors."""
    for sensor, run in scenario.alone.items():
        total = 0
        for k, row in enumerate(run.sums):
            entries = [int(entry) for entry in row]
            cost = mechanism.factor * sum(entry * entry for entry in entries)
            total += cost
            in_rows = scenario.world.ids[k] == sensor
            paid = sum(debit for debit, is_own in zip(scenario.run.debits[k], in_rows, strict=True) if is_own)
            if paid != cost or (mechanism.features != "ball" and min(entries) < 0):
                yield f"the debit of a sensor is not what it added at step {k + 1} (canary {scenario.name})"
                return
        if total > mechanism.budget or total != scenario.run.accounts.get(sensor, 0):
            yield f"an account spent {total / mechanism.budget:.3g} of its budget (canary {scenario.name})"


def _is_inside(mechanism: Mechanism, row: list[int], weight: int) -> bool:
    """Whether the row is in `weight` times the feature set, in Python integers."""
    if mechanism.features != "ball" and min(row) < 0:
        return False
    return max(row) <= weight if mechanism.features == "box" else sum(q * q for q in row) <= weight**2
