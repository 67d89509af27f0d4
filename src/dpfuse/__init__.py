"""Real-time fusion of private sensor streams under a hard Rényi differential privacy budget."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfuse.attributes import SensorAttributes
    from dpfuse.audit import Audit, audit_design
    from dpfuse.centre import FusionCentre
    from dpfuse.errors import (
        BudgetExceeded,
        DatasetMissing,
        DataWarning,
        DesignChanged,
        DpfuseError,
        FileRefused,
        LedgerMismatch,
        LedgerRefused,
        LedgerUnavailable,
        MissingExtra,
        PastChanged,
        ReleaseRefused,
        TrainingDiverged,
        TrainingWarning,
    )
    from dpfuse.evaluation import Comparison, Report, compare, evaluate
    from dpfuse.guarantee import Guarantee
    from dpfuse.ledger import Entry, Ledger
    from dpfuse.policy import Design, ExactStep, check_estimator, check_filter, check_spending, load
    from dpfuse.remote import RemoteEstimator
    from dpfuse.sweeps.result import SweepResult
    from dpfuse.sweeps.sweep import sweep
    from dpfuse.training import PPO, Architecture, Optimisation, use_all_cores
    from dpfuse.training.train import train, train_many
    from dpfuse.trajectories import NOBODY, Trajectories

__version__ = "0.1.0"

__all__ = [
    "NOBODY",
    "PPO",
    "Architecture",
    "Audit",
    "BudgetExceeded",
    "Comparison",
    "DataWarning",
    "DatasetMissing",
    "Design",
    "DesignChanged",
    "DpfuseError",
    "Entry",
    "ExactStep",
    "FileRefused",
    "FusionCentre",
    "Guarantee",
    "Ledger",
    "LedgerMismatch",
    "LedgerRefused",
    "LedgerUnavailable",
    "MissingExtra",
    "Optimisation",
    "PastChanged",
    "ReleaseRefused",
    "RemoteEstimator",
    "Report",
    "SweepResult",
    "SensorAttributes",
    "TrainingDiverged",
    "TrainingWarning",
    "Trajectories",
    "audit_design",
    "check_estimator",
    "check_filter",
    "check_spending",
    "compare",
    "evaluate",
    "load",
    "sweep",
    "train",
    "train_many",
    "use_all_cores",
]

# Imported at first use: JAX takes a second to load, and `dpfuse account` has no need of it.
_HOME = {
    "attributes": ("SensorAttributes",),
    "audit": ("Audit", "audit_design"),
    "centre": ("FusionCentre",),
    "errors": (
        "BudgetExceeded",
        "DataWarning",
        "DatasetMissing",
        "DesignChanged",
        "DpfuseError",
        "FileRefused",
        "LedgerMismatch",
        "LedgerRefused",
        "LedgerUnavailable",
        "MissingExtra",
        "PastChanged",
        "ReleaseRefused",
        "TrainingDiverged",
        "TrainingWarning",
    ),
    "evaluation": ("Comparison", "Report", "compare", "evaluate"),
    "ledger": ("Entry", "Ledger"),
    "policy": ("Design", "ExactStep", "check_estimator", "check_filter", "check_spending", "load"),
    "remote": ("RemoteEstimator",),
    "sweeps.result": ("SweepResult",),
    "sweeps.sweep": ("sweep",),
    "training": ("PPO", "Architecture", "Optimisation", "use_all_cores"),
    "training.train": ("train", "train_many"),
    "guarantee": ("Guarantee",),
    "trajectories": ("NOBODY", "Trajectories"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"dpfuse.{module}"), name)
    raise AttributeError(f"module 'dpfuse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
