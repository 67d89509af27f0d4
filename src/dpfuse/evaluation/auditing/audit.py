"""An audit: a design is attacked, and what the attacks find is held against what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse import _check
from dpfuse.errors import MissingExtra
from dpfuse.evaluation.auditing.checks import Check, exact
from dpfuse.evaluation.auditing.noise import check_noise
from dpfuse.evaluation.auditing.replays import check_exactly, replay
from dpfuse.evaluation.auditing.runs import Transcript, run_worlds
from dpfuse.evaluation.auditing.search import find_pair
from dpfuse.evaluation.auditing.worlds import NUM_ROWS, Worlds, loud_pair, make_worlds, steps_of, with_loud_filter
from dpfuse.policy.design import Design
from dpfuse.policy.exact import ExactStep
from dpfuse.privacy.budget import GRID
from dpfuse.privacy.conversion import chance_to_tell, gdp_epsilon
from dpfuse.privacy.release import Release
from dpfuse.types import Guarantee

WORST, OWN = "the worst f", "the design's f"
"""Attacks on the design with the loudest filter that its feature set allows, and with the one that it learned."""

# The runs go through networks compiled for many streams: replayed through the live step their sums agree up to rounding
# in float32, of which the last contribution out of an account takes the root.
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
    scores: NDArray[np.float64] = field(repr=False)
    other_scores: NDArray[np.float64] = field(repr=False)
    by_hand: float | None = None
    by_ascent: float | None = None


@dataclass(frozen=True, eq=False)
class Audit:
    """A verdict, and what it rests on.

    Attributes:
        epsilon_claimed: what the design promises at this delta, by GDP with the surcharge for discrete noise.
        chance_claimed: how often the best observer may at most tell the worlds apart.
        attacks: what each attack found; `checks`: everything that was checked.
    """

    guarantee: Guarantee
    num_steps: int
    num_runs: int
    delta: float
    confidence: float
    epsilon_claimed: float
    chance_claimed: float
    attacks: tuple[Attack, ...]
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def false_alarm(self) -> float:
        """How often, at most, a design that keeps its promise fails."""
        return sum(check.false_alarm for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single scores, as JSON takes it."""
        return {
            "passed": self.passed,
            "false_alarm": self.false_alarm,
            "guarantee": self.guarantee.to_dict(),
            "num_steps": self.num_steps,
            "num_runs": self.num_runs,
            "delta": self.delta,
            "confidence": self.confidence,
            "epsilon_claimed": self.epsilon_claimed,
            "chance_claimed": self.chance_claimed,
            "attacks": [
                {name: value for name, value in vars(attack).items() if not name.endswith("scores")}
                for attack in self.attacks
            ],
            "checks": [vars(check) for check in self.checks],
        }


def audit(
    design: Design,
    *,
    num_runs: int = 2000,
    confidence: float = 0.95,
    delta: float = 1e-5,
    num_steps: int | None = None,
    seed: int = 0,
    make_step: Callable[[Design, int], ExactStep] = ExactStep,
    progress: bool = False,
) -> Audit:
    """Attack a design as somebody would who knows everything but one sensor, and hold the findings against its promise.

    Two attacks, each on `num_runs` runs of the exact release path in either of two neighbouring worlds: on the design
    with the worst f there could be and a canary that saturates it, and on the design as it is with the worst canary
    that hand and gradients find. The score is the log-likelihood ratio given the whole transcript; the bound on epsilon
    is that of jax-privacy's estimator for Gaussian mechanisms.

    **Guarantees**
        - A design that keeps its promise passes but for a share of `Audit.false_alarm` of audits, at most; what is
          checked in exact arithmetic has no part in it.
        - Passing proves nothing beyond the attacks made.

    Args:
        num_runs: in each world.
        confidence: of each bound on epsilon.
        delta: at which epsilon is claimed and bounded.
        num_steps: releases in a run; by default all, and for a stationary design twice the stay that it was made for.
        seed: of the search and of the other sensors' reports; noise has none.
        make_step: makes the step to attack, from a design and a number of rows; another one to audit a centre of yours.
        progress: show a bar on stderr.
    """
    if design.guarantee is None:
        raise ValueError("design must have a guarantee; the non-private floor promises nothing to audit")
    _check.is_count("num_runs", num_runs, 10)
    if not 0.85 <= confidence < 1:
        raise ValueError(f"confidence must be in [0.85, 1), got {confidence!r}; 0.95 is a usual choice")
    _auditing()  # better now than after the runs
    length = _length(design, num_steps)
    claim = gdp_epsilon(design.guarantee.order, design.guarantee.budget, delta, length * design.structure.dimension)
    bound = Bound(delta, confidence, claim)
    found = find_pair(design, length, seed)
    loud = with_loud_filter(design)
    plan = {
        WORST: (loud, make_worlds(loud, *loud_pair(loud, length), seed)),
        OWN: (design, make_worlds(design, found.canary, found.stand_in, seed)),
    }
    findings = []
    with _bar(len(plan) * 2 * num_runs * length, progress) as advance:
        for name, (attacked, worlds) in plan.items():
            findings.append(attack(name, make_step(attacked, NUM_ROWS), worlds, num_runs, bound, advance))
    own = replace(findings[1].attack, by_hand=found.by_hand, by_ascent=found.by_ascent)
    return Audit(
        guarantee=design.guarantee,
        num_steps=length,
        num_runs=num_runs,
        delta=delta,
        confidence=confidence,
        epsilon_claimed=claim,
        chance_claimed=chance_to_tell(design.guarantee.order, design.guarantee.budget),
        attacks=(findings[0].attack, own),
        checks=(
            *(check for found in findings for check in found.checks),
            *check_noise(np.concatenate([found.noise for found in findings])),
        ),
    )


class Bound(NamedTuple):
    """At which delta and confidence epsilon is bounded, and what is claimed."""

    delta: float
    confidence: float
    claim: float


class Findings(NamedTuple):
    """One attack, what was checked on the way, and all noise that was drawn, shape (draws,)."""

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
        exact(
            "every run",
            "in every run both worlds publish the same weights and stay within the budget of each other",
            _failures(int((~transcript.is_public).sum()), max(distances), step.mechanism.budget),
        ),
        exact(
            "live step", "runs replayed through the live step have the same sums", _replays(step, worlds, transcript)
        ),
        *check_exactly(step, worlds),
    ]
    checks = [replace(check, name=f"{check.name}, {name}") for check in checks]
    return Findings(found, checks, transcript.noise.ravel())


def _length(design: Design, num_steps: int | None) -> int:
    length = steps_of(design) if num_steps is None else _check.is_count("num_steps", num_steps)
    horizon = design.structure.horizon
    if horizon is not None and length > horizon:
        raise ValueError(f"num_steps must be at most the design's horizon, {horizon}, got {length}")
    return length


def epsilon_at_least(
    scores: NDArray[np.float64], other_scores: NDArray[np.float64], delta: float, confidence: float
) -> float:
    """A lower bound on epsilon from scores in two neighbouring worlds: positive ones speak for the first.

    Whoever decides by the sign of a score errs with two probabilities, bounded from above by Clopper and Pearson, and a
    mu-GDP mechanism allows no smaller ones. The threshold is fixed beforehand, so nothing is lost to choosing it; for
    Gaussian scores it is the best one.
    """
    auditor = _auditing().CanaryScoreAuditor((scores > 0).astype(float), (other_scores > 0).astype(float))
    # It divides the significance among three thresholds, of which two decide for one world always: these never err.
    return float(auditor.epsilon_from_gdp(significance=3 * (1 - confidence), delta=delta))


def _auditing() -> Any:
    try:
        import jax_privacy.auditing
    except ImportError as error:
        raise MissingExtra("an audit needs jax-privacy: pip install 'dpfuse[theory]'") from error
    return jax_privacy.auditing


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


class _bar:
    """A progress bar on stderr, as a context that gives the function to advance it."""

    def __init__(self, total: int, is_shown: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), disable=not is_shown)
        self._task = self._progress.add_task("attacking", total=total)

    def __enter__(self) -> Callable[[int], None]:
        self._progress.start()
        return lambda steps: self._progress.advance(self._task, steps)

    def __exit__(self, *raised: Any) -> None:
        self._progress.stop()


def to_text(result: Audit) -> str:
    """The audit in words."""
    heads = [
        "attack on",
        "told apart",
        "at most",
        f"epsilon at least ({result.confidence:g})",
        "claimed",
        "share",
        "reach",
    ]
    rows = [
        [
            attack.name,
            f"{attack.accuracy:.1%}",
            f"{result.chance_claimed:.1%}",
            f"{attack.epsilon_bound:.3f}",
            f"{result.epsilon_claimed:.3f}",
            f"{attack.epsilon_bound / result.epsilon_claimed:.0%}",
            f"{attack.reach:.1%}",
        ]
        for attack in result.attacks
    ]
    table = "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])
    lines = [f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.found}" for check in result.checks]
    return "\n".join([table, "", *lines, "", _verdict(result)])


def _verdict(result: Audit) -> str:
    guarantee = result.guarantee
    promise = f"({guarantee.order:g}, {guarantee.budget:g})-Rényi differential privacy, {guarantee.adjacency}"
    tried = f"{result.num_runs} + {result.num_runs} runs of {result.num_steps} releases in each attack"
    if not result.passed:
        failed = sum(not check.passed for check in result.checks)
        return f"BROKEN: {failed} checks speak against {promise} ({tried})."
    return f"Passed: nothing was found against {promise} ({tried}; false alarms at most {result.false_alarm:.2g})."
