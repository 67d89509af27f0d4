"""Simulated systems. Each module has a class that describes a system and a function `simulate` that runs it."""

from dpfuse.systems import freeway, hidden_markov, linear_gaussian
from dpfuse.systems.freeway import Freeway
from dpfuse.systems.hidden_markov import HiddenMarkov
from dpfuse.systems.linear_gaussian import LinearGaussian

__all__ = ["Freeway", "HiddenMarkov", "LinearGaussian", "freeway", "hidden_markov", "linear_gaussian"]
