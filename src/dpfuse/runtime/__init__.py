"""What runs live: the ledger that every release goes through, and the estimator that reads releases elsewhere."""

from dpfuse.runtime.estimator import RemoteEstimator
from dpfuse.runtime.ledger import Entry, Ledger, Row

__all__ = ["Entry", "Ledger", "RemoteEstimator", "Row"]
