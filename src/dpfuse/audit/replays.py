"""Every account and every sum recomputed in exact arithmetic, from replays of a transcript through the live step.

A handful of streams run through `ExactStep` as in a live centre, with a canary that behaves as well as it can and with
ones that do not: one leaves and comes back, one reports twice in a step, one sends nonsense. Then the same releases are
replayed with the canary's neighbour, with the sensors in other rows, and with each sensor alone. A promise that is kept
makes all of these agree to the last bit: what is published is the same, the sum is the sum of what each adds alone, and
no account, recomputed here, passes the budget. No check has a false alarm. What the drills release is drawn by
`ExactStep.release`, one step at a time as in a live centre; short ones are run again until there is enough noise to
judge, which is checked with that of all runs, and apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Integers
from dpfuse.audit.checks import Check, certain
from dpfuse.audit.worlds import CANARY, NUM_ROWS, Feed, Worlds
from dpfuse.policy.exact import ExactStep
from dpfuse.privacy.budget import IndividualFilter
from dpfuse.privacy.release import Mechanism, Release
from dpfuse.types import NOBODY

# Noise too small by a fifth is missed in a thousand draws twice in a million audits.
_NUM_LIVE = 1000
_NONSENSE = (np.nan, np.inf, -np.inf, 1e308, -1e308, 1e30, -1e30, 0.0)


class Replay(NamedTuple):
    """What the step did: weights and budget left of each step, sums (K, d), what each row paid, and the accounts."""

    public: list[tuple[int, int | None]]
    sums: Integers
    debits: list[list[int]]
    accounts: dict[int, int]
    releases: list[Release]

    @property
    def noise(self) -> NDArray[Any]:
        """What was added to the sums, shape (K, d), where the releases are its own."""
        return np.array([release.value for release in self.releases]) - self.sums


class Drill(NamedTuple):
    """One behaviour of the canary: the run, its neighbour, the run in other rows, and each sensor alone."""

    name: str
    feed: Feed
    run: Replay
    other: Replay
    moved: Replay
    alone: dict[int, Replay]


def replay(step: ExactStep, feed: Feed, releases: list[Release] | None = None) -> Replay:
    """The feed through the live step, with fresh noise, or with releases that are held."""
    carry = step.init()
    public, sums, debits, made = [], [], [], []
    for k in range(len(feed.ids)):
        carry, charged = step.contribute(carry, feed.ids[k], feed.measurements[k], feed.present[k])
        assert charged.exact_sum is not None  # nothing was drawn yet
        public.append((charged.fusion_weight, charged.budget_left))
        sums.append(charged.exact_sum)
        debits.append(charged.debits.tolist())
        made.append(step.release(charged) if releases is None else releases[k])
        carry, _ = step.estimate(carry, made[-1])
    accounts = carry.accounts.accounts() if isinstance(carry.accounts, IndividualFilter) else {}
    return Replay(public, np.array(sums), debits, accounts, made)


def make_drills(step: ExactStep, worlds: Worlds) -> tuple[list[Drill], list[str]]:
    """Every drill through the step, and what went wrong with those that are missing."""
    drills, crashes = [], []
    for name, behave in _behaviours(worlds):
        try:
            drills.append(_make_drill(step, name, *behave))
        except Exception as error:  # whatever it is: a report must not stop a live centre
            crashes.append(f"it raised {type(error).__name__} (canary {name})")
    return drills, crashes


def draw_live(step: ExactStep, worlds: Worlds, drills: list[Drill]) -> NDArray[Any]:
    """The noise of what the drills released, and of as many live runs as it takes to have enough, shape (draws,)."""
    runs = [drill.run for drill in drills]
    while runs and sum(run.sums.size for run in runs) < _NUM_LIVE:
        runs.append(replay(step, worlds.one))
    return np.concatenate([run.noise.ravel() for run in runs] or [np.zeros(0, np.int64)])


def check_exactly(mechanism: Mechanism, drills: list[Drill], crashes: list[str]) -> list[Check]:
    """What can be checked of the drills in integers."""
    account = _total_account if mechanism.guarantee.accounting == "total" else _individual_accounts
    return [
        certain("robustness", "no report stops the step", crashes),
        certain("public spending", "weights and budget left are the same, whatever the canary does", _peeks(drills)),
        certain("independence", "what each sensor adds is what it adds alone, in whatever row", _meddling(drills)),
        certain(
            "accounts",
            "every account, recomputed in integers, is what was debited and within the budget",
            (failure for drill in drills for failure in account(mechanism, drill)),
        ),
        certain("distance", "neighbouring worlds are never further apart than the budget", _far(mechanism, drills)),
    ]


def _behaviours(worlds: Worlds) -> Iterator[tuple[str, Worlds]]:
    num_steps = len(worlds.one.ids)
    away = (np.arange(num_steps) >= num_steps // 3) & (np.arange(num_steps) < -(-num_steps // 2))
    back = np.arange(num_steps) >= -(-num_steps // 2)
    spare = NUM_ROWS - 1

    def returns(feed: Feed) -> Feed:
        changed, is_canary = feed.copy(), feed.ids[:, 0] == CANARY
        changed.ids[(away | back) & is_canary, 0] = NOBODY
        changed.ids[back & is_canary, spare] = CANARY
        changed.measurements[:, spare], changed.present[:, spare] = feed.measurements[:, 0], feed.present[:, 0]
        return changed

    def twice(feed: Feed) -> Feed:
        changed = feed.copy()
        changed.ids[feed.ids[:, 0] == CANARY, spare] = CANARY
        changed.measurements[:, spare], changed.present[:, spare] = feed.measurements[:, 0], feed.present[:, 0]
        return changed

    def nonsense(feed: Feed) -> Feed:
        changed = feed.copy()
        changed.measurements[:, 0] = np.resize(_NONSENSE, changed.measurements[:, 0].shape)
        return changed

    yield "as attacked", worlds
    yield "leaves and returns", Worlds(*map(returns, worlds))
    yield "reports twice", Worlds(*map(twice, worlds))
    yield "sends nonsense", Worlds(nonsense(worlds.one), worlds.other)


def _make_drill(step: ExactStep, name: str, one: Feed, other: Feed) -> Drill:
    run = replay(step, one)
    order = np.roll(np.arange(NUM_ROWS), 1)[::-1]
    sensors = [int(sensor) for sensor in np.unique(one.ids) if sensor != NOBODY]
    return Drill(
        name,
        one,
        run,
        replay(step, other, run.releases),
        replay(step, one.in_rows(order), run.releases),
        {sensor: replay(step, one.only(sensor), run.releases) for sensor in sensors},
    )


def _peeks(drills: list[Drill]) -> Iterator[str]:
    for drill in drills:
        if [(release.fusion_weight, release.budget_left) for release in drill.run.releases] != drill.run.public:
            yield f"something else is released than was charged (canary {drill.name})"
        for where, other in {"next door": drill.other, "in other rows": drill.moved}.items():
            for k, (one, two) in enumerate(zip(drill.run.public, other.public, strict=True)):
                if one != two:
                    yield f"{where} something else is published at step {k + 1} (canary {drill.name})"


def _meddling(drills: list[Drill]) -> Iterator[str]:
    for drill in drills:
        if not np.array_equal(drill.run.sums, drill.moved.sums):
            yield f"the sum depends on the rows that the sensors are in (canary {drill.name})"
        alone = sum(one.sums for one in drill.alone.values())
        if not np.array_equal(drill.run.sums, alone):
            yield f"sensors together add something else than each alone (canary {drill.name})"


def _far(mechanism: Mechanism, drills: list[Drill]) -> Iterator[str]:
    for drill in drills:
        moves = (drill.run.sums - drill.other.sums).astype(object)
        distance = int((moves * moves).sum())
        if distance > mechanism.budget:
            share = distance / mechanism.budget
            yield f"they are apart by {share:.3g} times the budget (canary {drill.name})"


def _total_account(mechanism: Mechanism, drill: Drill) -> Iterator[str]:
    left = mechanism.budget
    for k, ((weight, published), debits) in enumerate(zip(drill.run.public, drill.run.debits, strict=True)):
        left -= mechanism.factor * weight**2
        if left < 0:
            yield f"the budget is overdrawn at step {k + 1} (canary {drill.name})"
            return
        if published != left or debits != [mechanism.factor * weight**2]:
            yield f"what was debited is not what step {k + 1} costs (canary {drill.name})"
            return
        for one in drill.alone.values():
            if not _is_inside(mechanism, [int(entry) for entry in one.sums[k]], weight):
                yield f"a sensor adds more than its feature set allows at step {k + 1} (canary {drill.name})"
                return


def _individual_accounts(mechanism: Mechanism, drill: Drill) -> Iterator[str]:
    for sensor, one in drill.alone.items():
        total = 0
        for k, row in enumerate(one.sums):
            entries = [int(entry) for entry in row]
            cost = mechanism.factor * sum(entry * entry for entry in entries)
            total += cost
            in_rows = drill.feed.ids[k] == sensor
            paid = sum(debit for debit, is_own in zip(drill.run.debits[k], in_rows, strict=True) if is_own)
            if paid != cost or (mechanism.features != "ball" and min(entries) < 0):
                yield f"what a sensor paid is not what it added at step {k + 1} (canary {drill.name})"
                return
        if total > mechanism.budget or total != drill.run.accounts.get(sensor, 0):
            yield f"an account spent {total / mechanism.budget:.3g} of its budget (canary {drill.name})"


def _is_inside(mechanism: Mechanism, row: list[int], weight: int) -> bool:
    """Whether the row is in `weight` times the feature set, in Python integers."""
    if mechanism.features != "ball" and min(row) < 0:
        return False
    return max(row) <= weight if mechanism.features == "box" else sum(q * q for q in row) <= weight**2
