"""Attacks on a design: what they find, held against what it promises."""

from dpfuse.evaluation.auditing.attacks import Attack, Bound, Findings, attack, epsilon_at_least
from dpfuse.evaluation.auditing.audit import Audit, audit
from dpfuse.evaluation.auditing.checks import Check
from dpfuse.evaluation.auditing.figure import plot_audit
from dpfuse.evaluation.auditing.text import to_text

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
