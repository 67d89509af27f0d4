"""Attacks on a design: what they find, held against what it promises."""

from dpfuse.evaluation.auditing.audit import Attack, Audit, Bound, Findings, attack, audit, epsilon_at_least, to_text
from dpfuse.evaluation.auditing.checks import Check
from dpfuse.evaluation.auditing.figure import plot_audit

__all__ = [
    "Attack",
    "Audit",
    "Bound",
    "Check",
    "Findings",
    "attack",
    "audit",
    "epsilon_at_least",
    "plot_audit",
    "to_text",
]
