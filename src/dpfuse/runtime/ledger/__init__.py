"""The ledger: check, record, publish. What is not in it was never released, and what is in it is never redrawn."""

from dpfuse.runtime.ledger.audit import Audit, StreamStory
from dpfuse.runtime.ledger.places import create_ledger, name_of, open_ledger, public_rows, verify
from dpfuse.runtime.ledger.postgres import PostgresLedger
from dpfuse.runtime.ledger.postgres_audit import join
from dpfuse.runtime.ledger.rows import Entry, Row, Terms
from dpfuse.runtime.ledger.writer import Ledger

__all__ = [
    "Audit",
    "Entry",
    "Ledger",
    "PostgresLedger",
    "Row",
    "StreamStory",
    "Terms",
    "create_ledger",
    "join",
    "name_of",
    "open_ledger",
    "public_rows",
    "verify",
]
