"""The ledger: check, record, publish. What is not in it was never released, and what is in it is never redrawn."""

from dpfuse.runtime.ledger.audit import Audit, StreamStory, public_rows, verify
from dpfuse.runtime.ledger.places import open_ledger
from dpfuse.runtime.ledger.rows import Entry, Row, Terms
from dpfuse.runtime.ledger.writer import Ledger

__all__ = ["Audit", "Entry", "Ledger", "Row", "StreamStory", "Terms", "open_ledger", "public_rows", "verify"]
