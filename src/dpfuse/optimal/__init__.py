"""Theorem 1 on finite systems: how good a fusion policy can be, and how the best one spends."""

from dpfuse.optimal.belief import first_belief, posterior_of_state, update_belief
from dpfuse.optimal.crosscheck import crosscheck
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
    "crosscheck",
    "first_belief",
    "measure_gap",
    "posterior_of_state",
    "simulate",
    "solve",
    "solve_general",
    "update_belief",
]
