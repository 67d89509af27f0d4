"""Attacks on a design, and their findings compared with its guarantee."""

from dpfuse.audit.attacks import Attack, Claim, Findings, attack, epsilon_at_least
from dpfuse.audit.audit import Audit, audit_design
from dpfuse.audit.checks import Check
from dpfuse.audit.figure import plot_audit
from dpfuse.audit.text import to_text

__all__ = [
    "Attack",
    "Audit",
    "Check",
    "Claim",
    "Findings",
    "attack",
    "audit_design",
    "epsilon_at_least",
    "plot_audit",
    "to_text",
]
