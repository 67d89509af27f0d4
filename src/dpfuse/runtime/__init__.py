"""What runs live: the fusion centre, its clock, the ledger that every release goes through, and who reads them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpfuse.runtime.estimator import RemoteEstimator
from dpfuse.runtime.ledger import Entry, Ledger, Row

if TYPE_CHECKING:
    from dpfuse.runtime.centre import FusionCentre, Published
    from dpfuse.runtime.ticker import Ticker

__all__ = ["Entry", "FusionCentre", "Ledger", "Published", "RemoteEstimator", "Row", "Ticker"]

# Imported at first use: a ledger has no need of JAX.
_HOME = {"centre": ("FusionCentre", "Published"), "ticker": ("Ticker",)}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"dpfuse.runtime.{module}"), name)
    raise AttributeError(f"module 'dpfuse.runtime' has no attribute {name!r}")
