"""Mechanisms from the literature to compare a learned design with: the same guarantee and the same report."""

from experiments.baselines.mechanisms.evaluate import evaluate
from experiments.baselines.mechanisms.features import Features
from experiments.baselines.mechanisms.fit import BASELINES, Baseline, fit
from experiments.baselines.mechanisms.mechanism import LinearMechanism
from experiments.baselines.mechanisms.sensitivity import squared_sensitivity

__all__ = [
    "BASELINES",
    "Baseline",
    "Features",
    "LinearMechanism",
    "evaluate",
    "fit",
    "squared_sensitivity",
]
