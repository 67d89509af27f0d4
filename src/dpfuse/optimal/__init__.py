"""Theorem 1 on finite systems: the least cost that any spending rule can reach, and the rule that reaches it."""

from dpfuse.optimal.gap import Gap, measure_gap
from dpfuse.optimal.gaussian import solve
from dpfuse.optimal.general import GeneralSolution, solve_general
from dpfuse.optimal.problem import PRESETS, Problem
from dpfuse.optimal.schedule import Schedule, best_schedule
from dpfuse.optimal.simulation import Simulation, simulate
from dpfuse.optimal.solution import Solution

__all__ = [
    "PRESETS",
    "Gap",
    "GeneralSolution",
    "Problem",
    "Schedule",
    "Simulation",
    "Solution",
    "best_schedule",
    "measure_gap",
    "simulate",
    "solve",
    "solve_general",
]
