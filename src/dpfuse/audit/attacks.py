"""One attack: runs in two neighbouring worlds, their scores, the lower bound on epsilon, and the checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Floats
from dpfuse.audit.checks import Check, exact_check
from dpfuse.audit.noise import check_live
from dpfuse.audit.runs import Transcript, run_worlds
from dpfuse.audit.scenarios import check_exactly, live_noise, run_live, run_scenarios
from dpfuse.audit.worlds import Worlds
from dpfuse.policy.exact import ExactStep
from dpfuse.privacy.budget import GRID
from dpfuse.privacy.conversion import gdp_epsilon
from dpfuse.privacy.release import Release

# The networks of the runs are compiled for many streams. The live step gives the same sums up to float32 rounding. The
# rounding is largest where a contribution is the square root of what an account has left.
_ROUNDING = GRID // 200
_NUM_REPLAYED = 2


@dataclass(frozen=True, eq=False)
class Attack:
    """The result of one attack.

    Attributes:
        name: which f was attacked, the design's own or the worst one.
        reach: the squared distance of the two worlds as a share of the budget, averaged over the runs; exact.
        accuracy: the share of runs in which the best test named the right world; guessing has one half.
        epsilon_bound: a lower bound on epsilon, at the confidence of the audit.
        scores, other_scores: log-likelihood ratios of the runs in the canary's world, and in its neighbour.
        by_hand, by_ascent: the reach of the best hand-made canary, and of the best one that gradient ascent found, in
            simulation.
    """

    name: str
    reach: float
    accuracy: float
    epsilon_bound: float
    scores: Floats = field(repr=False)
    other_scores: Floats = field(repr=False)
    by_hand: float | None = None
    by_ascent: float | None = None


class Claim(NamedTuple):
    """The claimed epsilon at delta, and the confidence of the lower bound that is compared with it."""

    delta: float
    confidence: float
    epsilon: float


class Findings(NamedTuple):
    """One attack, its checks, and the noise of all its runs, shape (draws,)."""

    attack: Attack
    checks: list[Check]
    noise: NDArray[Any]


def attack(
    name: str,
    step: ExactStep,
    worlds: Worlds,
    num_runs: int,
    claim: Claim,
    advance: Callable[[int], object] = lambda steps: None,
) -> Findings:
    """The findings of one attack on a step, with `num_runs` runs in each world."""
    transcript = run_worlds(step, worlds, num_runs, advance)
    scenarios, crashes = run_scenarios(step, worlds)
    noise = live_noise(step, worlds, scenarios)
    scores, truth = transcript.scores(), transcript.truth
    distances = transcript.distances()
    found = Attack(
        name=name,
        reach=float(np.mean([distance / step.mechanism.budget for distance in distances])),
        accuracy=float(np.mean((scores > 0) == truth)),
        epsilon_bound=epsilon_at_least(scores[truth], scores[~truth], claim.delta, claim.confidence),
        scores=scores[truth],
        other_scores=scores[~truth],
    )
    comparison = f"epsilon is at least {found.epsilon_bound:.3f}, the claim is {claim.epsilon:.3f}"
    checks = [
        Check("leakage", bool(found.epsilon_bound <= claim.epsilon), comparison, 1 - claim.confidence),
        exact_check(
            "every run",
            "in every run both worlds have the same weights and a distance within the budget",
            _failures(int((~transcript.is_public).sum()), max(distances), step.mechanism.budget),
        ),
        exact_check(
            "live step",
            "the live step gives the sums of the runs up to float32 rounding",
            _live_differences(step, worlds, transcript),
        ),
        *check_exactly(step.mechanism, scenarios, crashes),
        check_live(noise),
    ]
    checks = [replace(check, name=f"{check.name}, {name}") for check in checks]
    return Findings(found, checks, np.concatenate([transcript.noise.ravel(), noise]))


def epsilon_at_least(scores: Floats, other_scores: Floats, delta: float, confidence: float) -> float:
    """A lower bound on epsilon from scores in two neighbouring worlds; a positive score favours the first.

    The sign of the score is a test with two error probabilities. Clopper and Pearson give upper bounds on both. A
    mechanism that is mu-GDP allows errors this small only if mu is large enough. The GDP curve turns the smallest such
    mu into a bound on epsilon (nasr2023tight). The threshold 0 is fixed before the runs and needs no correction;
    for Gaussian scores it is the best one. If the two upper bounds add up to 1 or more, the bound on epsilon is 0.
    """
    from scipy.stats import norm

    level = (1 - confidence) / 2
    miss = _at_most(int((scores <= 0).sum()), len(scores), level)
    false_alarm = _at_most(int((other_scores > 0).sum()), len(other_scores), level)
    mu = float(norm.isf(false_alarm) + norm.isf(miss))
    return gdp_epsilon(2.0, mu**2, delta) if mu > 0 else 0.0


def _at_most(count: int, size: int, level: float) -> float:
    """The upper bound of Clopper and Pearson on a probability; it is too small with probability at most `level`."""
    from scipy.stats import beta

    return float(beta.isf(level, count + 1, size - count)) if count < size else 1.0


def _failures(num_different: int, largest: int, budget: int) -> list[str]:
    failures = [f"weights or budget left tell the worlds apart in {num_different} runs"] if num_different else []
    return failures + ([f"the distance is {largest / budget:.4g} of the budget"] if largest > budget else [])


def _live_differences(step: ExactStep, worlds: Worlds, transcript: Transcript) -> list[str]:
    failures = []
    for run, (side, world) in [(run, pair) for run in range(_NUM_REPLAYED) for pair in enumerate(worlds)]:
        weights = transcript.weights[run, 0 if transcript.truth[run] else 1]
        released = [
            Release(value, int(weight), None) for value, weight in zip(transcript.values[run], weights, strict=True)
        ]
        sums = run_live(step, world, released).sums
        if np.abs(sums - transcript.sums[run, side]).max() > _ROUNDING:
            failures.append(f"the live step gives other sums for run {run + 1}")
    return failures
