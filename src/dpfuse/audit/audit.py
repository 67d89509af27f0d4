"""An audit: a design is attacked, and what the attacks find is held against what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpfuse import _check
from dpfuse.audit.attacks import Attack, Bound, attack
from dpfuse.audit.checks import Check
from dpfuse.audit.noise import check_noise
from dpfuse.audit.search import find_pair
from dpfuse.audit.worlds import NUM_ROWS, loud_pair, make_worlds, steps_of, with_loud_filter
from dpfuse.policy.design import Design
from dpfuse.policy.exact import ExactStep
from dpfuse.privacy.conversion import chance_to_tell, gdp_epsilon
from dpfuse.types import Guarantee

WORST, OWN = "the worst f", "the design's f"
"""Attacks on the design with the loudest filter that its feature set allows, and with the one that it learned."""


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


def audit_design(
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
    that hand and gradients find. The score is the log-likelihood ratio given the whole transcript, the bound on epsilon
    that for Gaussian mechanisms.

    **Guarantees**
        - A design that keeps its promise passes but for a share of `Audit.false_alarm` of audits, at most; what is
          checked without chance has no part in it.
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
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence must be in [0.5, 1), got {confidence!r}; 0.95 is a usual choice")
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
    with _Bar(len(plan) * 2 * num_runs * length, progress) as advance:
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
            *(check for one in findings for check in one.checks),
            *check_noise(np.concatenate([one.noise for one in findings])),
        ),
    )


def _length(design: Design, num_steps: int | None) -> int:
    length = steps_of(design) if num_steps is None else _check.is_count("num_steps", num_steps)
    horizon = design.structure.horizon
    if horizon is not None and length > horizon:
        raise ValueError(f"num_steps must be at most the design's horizon, {horizon}, got {length}")
    return length


class _Bar:
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
