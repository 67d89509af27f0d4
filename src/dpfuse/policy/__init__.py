"""Fusion policy and estimator: the one step of Algorithm 1, rollouts of it, and designs on disk."""

from dpfuse.policy.design import Design, load
from dpfuse.policy.exact import ExactStep
from dpfuse.policy.rollout import PackedWindows, Rollout, rollout
from dpfuse.policy.step import Constants, Estimate, Networks, Policy, Private, Public, Reports, make_policy
from dpfuse.policy.structure import Structure

__all__ = [
    "Constants",
    "Design",
    "Estimate",
    "ExactStep",
    "Networks",
    "Policy",
    "Private",
    "Public",
    "Reports",
    "Rollout",
    "Structure",
    "PackedWindows",
    "load",
    "make_policy",
    "rollout",
]
