"""Errors of a design with confidence intervals, and the budget that it spent."""

from dpfuse.evaluation.report import Comparison, Report, compare, evaluate
from dpfuse.evaluation.text import to_text

__all__ = ["Comparison", "Report", "compare", "evaluate", "to_text"]
