"""One attack: runs in two neighbouring worlds, their scores, the bound on epsilon, and what was checked on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Floats
from dpfuse.audit.checks import Check, certain
from dpfuse.audit.noise import check_live
from dpfuse.audit.replays import check_exactly, draw_live, make_drills, replay
from dpfuse.audit.runs import Transcript, run_worlds
from dpfuse.audit.worlds import Worlds
from dpfuse.policy.exact import ExactStep
from dpfuse.privacy.budget import GRID
from dpfuse.privacy.conversion import gdp_epsilon
from dpfuse.privacy.release import Release

# The runs go through networks compiled for many streams: replayed through the live step their sums agree up to float32
# rounding and no better, as the last contribution out of an account takes the root of it.
_SAME_SUM = GRID // 200
_NUM_REPLAYED = 2


@dataclass(frozen=True, eq=False)
class Attack:
    """What one attack found.

    Attributes:
        name: which f was attacked.
        reach: the share of the budget by which the two worlds were apart, on average over the runs: computed, exact.
        accuracy: how often the best test told the worlds apart, from an even prior.
        epsilon_bound: epsilon is at least this, at the audit's confidence.
        scores, other_scores: log-likelihood ratios of the runs with the canary, and of those in the other world.
        by_hand, by_ascent: the reach of the best hand-made canary, and of the best that gradients found; simulated.
    """

    name: str
    reach: float
    accuracy: float
    epsilon_bound: float
    scores: Floats = field(repr=False)
    other_scores: Floats = field(repr=False)
    by_hand: float | None = None
    by_ascent: float | None = None


class Bound(NamedTuple):
    """At which delta and confidence epsilon is bounded, and what is claimed."""

    delta: float
    confidence: float
    claim: float


class Findings(NamedTuple):
    """One attack, what was checked on the way, and all noise that was drawn, in runs and live, shape (draws,)."""

    attack: Attack
    checks: list[Check]
    noise: NDArray[Any]


def attack(
    name: str,
    step: ExactStep,
    worlds: Worlds,
    num_runs: int,
    bound: Bound,
    advance: Callable[[int], object] = lambda steps: None,
) -> Findings:
    """One attack on a step: `num_runs` runs in each of the worlds."""
    transcript = run_worlds(step, worlds, num_runs, advance)
    drills, crashes = make_drills(step, worlds)
    live_noise = draw_live(step, worlds, drills)
    scores, truth = transcript.scores(), transcript.truth
    distances = transcript.distances()
    found = Attack(
        name=name,
        reach=float(np.mean([distance / step.mechanism.budget for distance in distances])),
        accuracy=float(np.mean((scores > 0) == truth)),
        epsilon_bound=epsilon_at_least(scores[truth], scores[~truth], bound.delta, bound.confidence),
        scores=scores[truth],
        other_scores=scores[~truth],
    )
    comparison = f"epsilon is at least {found.epsilon_bound:.3f}, claimed are {bound.claim:.3f}"
    checks = [
        Check("leakage", bool(found.epsilon_bound <= bound.claim), comparison, 1 - bound.confidence),
        certain(
            "every run",
            "in every run both worlds publish the same weights and stay within the budget of each other",
            _failures(int((~transcript.is_public).sum()), max(distances), step.mechanism.budget),
        ),
        certain(
            "live step",
            "runs replayed through the live step have the same sums up to float32 rounding",
            _replays(step, worlds, transcript),
        ),
        *check_exactly(step.mechanism, drills, crashes),
        check_live(live_noise),
    ]
    checks = [replace(check, name=f"{check.name}, {name}") for check in checks]
    return Findings(found, checks, np.concatenate([transcript.noise.ravel(), live_noise]))


def epsilon_at_least(scores: Floats, other_scores: Floats, delta: float, confidence: float) -> float:
    """A lower bound on epsilon from scores in two neighbouring worlds: positive ones speak for the first.

    Whoever decides by the sign of a score errs with two probabilities, bounded from above by Clopper and Pearson, and a
    mu-GDP mechanism allows no smaller ones: so mu is at least something, and epsilon what it is on that curve
    (nasr2023tight). The threshold is fixed beforehand, so nothing is lost to choosing it; for Gaussian scores it is the
    best one. Where the two bounds add up to 1 nothing is proved, and epsilon is at least 0.
    """
    from scipy.stats import norm

    level = (1 - confidence) / 2
    miss = _at_most(int((scores <= 0).sum()), len(scores), level)
    false_alarm = _at_most(int((other_scores > 0).sum()), len(other_scores), level)
    mu = float(norm.isf(false_alarm) + norm.isf(miss))
    return gdp_epsilon(2.0, mu**2, delta) if mu > 0 else 0.0


def _at_most(count: int, size: int, level: float) -> float:
    """The upper bound of Clopper and Pearson on a probability: too small no more often than `level`."""
    from scipy.stats import beta

    return float(beta.isf(level, count + 1, size - count)) if count < size else 1.0


def _failures(num_peeks: int, most: int, budget: int) -> list[str]:
    failures = [f"what is published tells the worlds apart in {num_peeks} runs"] if num_peeks else []
    return failures + ([f"the worlds are apart by {most / budget:.4g} times the budget"] if most > budget else [])


def _replays(step: ExactStep, worlds: Worlds, transcript: Transcript) -> list[str]:
    failures = []
    for run, (side, feed) in [(run, pair) for run in range(_NUM_REPLAYED) for pair in enumerate(worlds)]:
        weights = transcript.weights[run, 0 if transcript.truth[run] else 1]
        released = [
            Release(value, int(weight), None) for value, weight in zip(transcript.values[run], weights, strict=True)
        ]
        sums = replay(step, feed, released).sums
        if np.abs(sums - transcript.sums[run, side]).max() > _SAME_SUM:
            failures.append(f"run {run + 1} has other sums")
    return failures
