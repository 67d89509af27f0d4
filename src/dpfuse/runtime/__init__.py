"""What runs live: the ledger that every release goes through."""

from dpfuse.runtime.ledger import Entry, Ledger, Row

__all__ = ["Entry", "Ledger", "Row"]
