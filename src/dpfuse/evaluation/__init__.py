"""How good a design is, with intervals, and what it spent."""

from dpfuse.evaluation.report import Comparison, Report, compare, evaluate
from dpfuse.evaluation.text import to_text

__all__ = ["Comparison", "Report", "compare", "evaluate", "to_text"]
