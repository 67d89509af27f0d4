"""Simulated systems. Each module has a class that describes a system and a function `simulate` that runs it."""

from dpfuse.systems import freeway, growth, hidden_markov, linear_gaussian, sumo, tracking
from dpfuse.systems.freeway import Freeway
from dpfuse.systems.growth import Growth
from dpfuse.systems.hidden_markov import HiddenMarkov
from dpfuse.systems.linear_gaussian import LinearGaussian
from dpfuse.systems.sumo import SumoFreeway
from dpfuse.systems.tracking import Tracking

__all__ = [
    "Freeway",
    "Growth",
    "HiddenMarkov",
    "LinearGaussian",
    "SumoFreeway",
    "Tracking",
    "freeway",
    "growth",
    "hidden_markov",
    "linear_gaussian",
    "sumo",
    "tracking",
]
