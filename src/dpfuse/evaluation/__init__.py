"""Errors of a design with confidence intervals, the budget that it spent, and figures of both."""

from dpfuse.evaluation import figures
from dpfuse.evaluation.report import LEVELS, Comparison, Report, compare, evaluate
from dpfuse.evaluation.text import to_text

__all__ = ["LEVELS", "Comparison", "Report", "compare", "evaluate", "figures", "to_text"]
