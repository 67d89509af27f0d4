"""Fusion policy and estimator: their parts, the one step of Algorithm 1, rollouts of it, and designs on disk."""

from dpfuse.policy.check_parts import check_estimator, check_filter, check_spending
from dpfuse.policy.design import Design, load
from dpfuse.policy.estimators import Estimator
from dpfuse.policy.exact import ExactStep
from dpfuse.policy.filters import RecurrentFilter, into_set
from dpfuse.policy.policy import Constants, Networks, Policy, make_policy
from dpfuse.policy.rollout import PackedWindows, Rollout, rollout
from dpfuse.policy.spending import AgentSpending, SpendingRule
from dpfuse.policy.step import Estimate, PrivateCarry, PublicCarry, Reports
from dpfuse.policy.structure import Structure

__all__ = [
    "AgentSpending",
    "Constants",
    "Design",
    "Estimate",
    "Estimator",
    "ExactStep",
    "Networks",
    "PackedWindows",
    "Policy",
    "PrivateCarry",
    "PublicCarry",
    "RecurrentFilter",
    "Reports",
    "Rollout",
    "SpendingRule",
    "Structure",
    "check_estimator",
    "check_filter",
    "check_spending",
    "into_set",
    "load",
    "make_policy",
    "rollout",
]
