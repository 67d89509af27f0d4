"""The ledger: check, record, publish. What is not in it was never released, and what is in it is never redrawn."""

from dpfuse.ledger.places import create_ledger, name_of, open_ledger, public_rows, verify
from dpfuse.ledger.postgres import PostgresLedger
from dpfuse.ledger.postgres_audit import join
from dpfuse.ledger.reader import Audit, StreamStory
from dpfuse.ledger.terms import Entry, Terms
from dpfuse.ledger.writer import Ledger
from dpfuse.public.rows import Row

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
