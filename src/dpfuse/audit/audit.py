"""An audit: attacks on a design, and their findings compared with its guarantee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from dpfuse import _check
from dpfuse.audit.attacks import Attack, Claim, attack
from dpfuse.audit.checks import Check
from dpfuse.audit.noise import check_noise
from dpfuse.audit.search import find_pair
from dpfuse.audit.worlds import NUM_ROWS, default_num_steps, make_attributes, make_worlds, with_worst_filter, worst_pair
from dpfuse.guarantee import Guarantee
from dpfuse.policy.design import Design
from dpfuse.policy.exact import ExactStep
from dpfuse.privacy.conversion import chance_to_tell, gdp_epsilon

WORST, OWN = "the worst f", "the design's f"
"""The two attacks: on the design with the worst filter of its feature set, and on the design with its own filter."""


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of an audit.

    Attributes:
        epsilon_claimed: the epsilon of the guarantee at this delta, by GDP with the surcharge for discrete noise.
        chance_claimed: the largest chance to tell the worlds apart that the guarantee allows.
        attacks: the result of each attack; `checks`: of each check.
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
        """The largest probability that a design that keeps its guarantee fails."""
        return sum(check.false_alarm for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """All fields but the scores of single runs, as JSON takes them."""
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


def make_exact_step(design: Design, num_rows: int) -> ExactStep:
    """The step that a live centre runs; the sensors of the audit have attributes if the design reads them."""
    return ExactStep(design, num_rows, attributes=make_attributes(design))


def audit_design(
    design: Design,
    *,
    num_runs: int = 2000,
    confidence: float = 0.95,
    delta: float = 1e-5,
    num_steps: int | None = None,
    seed: int = 0,
    make_step: Callable[[Design, int], ExactStep] = make_exact_step,
    progress: bool = False,
) -> Audit:
    """The audit of a design by an attacker who knows everything but one sensor, the canary.

    There are two attacks, each with `num_runs` runs of the exact release path in each of two neighbouring worlds. The
    first is on the design with the worst possible f, and a canary that spends its whole budget. The second is on the
    design as it is, with the worst canary that hand-made trajectories and gradient ascent find. Scores are
    log-likelihood ratios of all that is released, and the lower bound on epsilon is that for Gaussian mechanisms.

    **Guarantees**
        - A design that keeps its guarantee fails with probability at most `Audit.false_alarm`; exact checks add nothing
          to it.
        - A design that passes withstood these attacks. This is no proof against others.

    Args:
        num_runs: in each world.
        confidence: of each lower bound on epsilon.
        delta: of the claimed epsilon and of its lower bound.
        num_steps: releases in a run; by default all, and for a stationary design twice its expected stay.
        seed: of the search and of the reports of other sensors; the noise has no seed.
        make_step: makes the step to attack, from a design and a number of rows. Pass one to audit a centre of your own.
        progress: show a bar on stderr.
    """
    if design.guarantee is None:
        raise ValueError("design must have a guarantee; the non-private floor has none to audit")
    _check.is_count("num_runs", num_runs, 10)
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence must be in [0.5, 1), got {confidence!r}; 0.95 is a usual choice")
    length = _length(design, num_steps)
    epsilon = gdp_epsilon(design.guarantee.order, design.guarantee.budget, delta, length * design.structure.dimension)
    claim = Claim(delta, confidence, epsilon)
    found = find_pair(design, length, seed)
    worst = with_worst_filter(design)
    plan = {
        WORST: (worst, make_worlds(worst, *worst_pair(worst, length), seed)),
        OWN: (design, make_worlds(design, found.canary, found.replacement, seed)),
    }
    findings = []
    with Progress(console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("attacking", total=len(plan) * 2 * num_runs * length)
        for name, (attacked, worlds) in plan.items():
            step = make_step(attacked, NUM_ROWS)
            findings.append(attack(name, step, worlds, num_runs, claim, lambda steps: bar.advance(task, steps)))
    own = replace(findings[1].attack, by_hand=found.by_hand, by_ascent=found.by_ascent)
    return Audit(
        guarantee=design.guarantee,
        num_steps=length,
        num_runs=num_runs,
        delta=delta,
        confidence=confidence,
        epsilon_claimed=epsilon,
        chance_claimed=chance_to_tell(design.guarantee.order, design.guarantee.budget),
        attacks=(findings[0].attack, own),
        checks=(
            *(check for one in findings for check in one.checks),
            *check_noise(np.concatenate([one.noise for one in findings])),
        ),
    )


def _length(design: Design, num_steps: int | None) -> int:
    length = default_num_steps(design) if num_steps is None else _check.is_count("num_steps", num_steps)
    horizon = design.structure.horizon
    if horizon is not None and length > horizon:
        raise ValueError(f"num_steps must be at most the design's horizon, {horizon}, got {length}")
    return length
