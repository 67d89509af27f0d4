"""Mechanisms from the literature to compare a learned design with: the same guarantee and the same report."""

from dpfuse.baselines.evaluate import evaluate
from dpfuse.baselines.features import Features
from dpfuse.baselines.fit import BASELINES, Baseline, fit
from dpfuse.baselines.mechanism import LinearMechanism
from dpfuse.baselines.sensitivity import squared_sensitivity

__all__ = [
    "BASELINES",
    "Baseline",
    "Features",
    "LinearMechanism",
    "evaluate",
    "fit",
    "squared_sensitivity",
]
