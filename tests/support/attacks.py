"""Attacks on small designs, shared by the tests of the audit."""

from __future__ import annotations

from dpfuse.audit import Claim, attack
from dpfuse.audit.noise import check_noise
from dpfuse.audit.worlds import NUM_ROWS, default_num_steps, make_worlds, with_worst_filter, worst_pair
from dpfuse.policy import ExactStep
from dpfuse.privacy import gdp_epsilon
from support.designs import make_design

SURE = 1 - 1e-6
TOTAL, INDIVIDUAL = ("total", "remove-one", "ball"), ("individual", "remove-one", "ball")
# A budget at which two worlds are three standard deviations apart, so that few runs are enough.
_SMALL = {"horizon": 4, "budget": 9.0, "spread": 0.5, "expected_stay": 2.0, "spending": "constant"}


def small(case=TOTAL, **options):
    return make_design(*case, **_SMALL | options)


def attack_worst(design, make_step=ExactStep, num_runs=20, confidence=SURE):
    """The attack on the worst f alone: it has all checks, and compiles less than a whole audit."""
    worst = with_worst_filter(design)
    num_steps = default_num_steps(worst)
    worlds = make_worlds(worst, *worst_pair(worst, num_steps), seed=0)
    epsilon = gdp_epsilon(design.guarantee.order, design.guarantee.budget, 1e-5, num_steps * design.structure.dimension)
    found = attack("worst", make_step(worst, NUM_ROWS), worlds, num_runs, Claim(1e-5, confidence, epsilon))
    return found._replace(checks=[*found.checks, *check_noise(found.noise)]), epsilon


def failed(checks):
    """The names of failed checks, without that of the attack."""
    return {check.name.split(",")[0] for check in checks if not check.passed}
