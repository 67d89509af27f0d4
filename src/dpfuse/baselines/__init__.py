"""What one would use instead of a learned design, for the same guarantee and with the same report."""

from dpfuse.baselines.evaluate import evaluate
from dpfuse.baselines.features import Features
from dpfuse.baselines.fit import BASELINES, Baseline, fit
from dpfuse.baselines.mechanism import LinearMechanism
from dpfuse.baselines.sensitivity import squared_sensitivity, worst_trajectory

__all__ = [
    "BASELINES",
    "Baseline",
    "Features",
    "LinearMechanism",
    "evaluate",
    "fit",
    "squared_sensitivity",
    "worst_trajectory",
]
