"""How good a design is, with intervals, what it spent, and whether its promise stands up to an attack."""

from dpfuse.evaluation.auditing import Audit, audit
from dpfuse.evaluation.report import Comparison, Report, compare, evaluate
from dpfuse.evaluation.text import to_text

__all__ = ["Audit", "Comparison", "Report", "audit", "compare", "evaluate", "to_text"]
