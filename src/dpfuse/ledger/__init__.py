"""Trusted and durable: a step is checked, debited and recorded here before it is published, and never drawn again."""

from dpfuse.ledger.entries import Entry
from dpfuse.ledger.places import create_ledger, name_of, open_ledger, public_rows, verify
from dpfuse.ledger.postgres import PostgresLedger
from dpfuse.ledger.postgres_reader import join
from dpfuse.ledger.reader import LedgerCheck, StreamCheck
from dpfuse.ledger.terms import Terms
from dpfuse.ledger.writer import Ledger
from dpfuse.public.rows import Row

__all__ = [
    "Entry",
    "Ledger",
    "LedgerCheck",
    "PostgresLedger",
    "Row",
    "StreamCheck",
    "Terms",
    "create_ledger",
    "join",
    "name_of",
    "open_ledger",
    "public_rows",
    "verify",
]
