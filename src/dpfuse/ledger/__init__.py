"""Trusted and durable: a step is checked, debited and recorded here before it is published, and never drawn again."""

from dpfuse.ledger.backups import backup, restore
from dpfuse.ledger.entries import Entry
from dpfuse.ledger.events import Restored
from dpfuse.ledger.progress import LedgerCheck, StreamCheck
from dpfuse.ledger.reader import public_rows, verify
from dpfuse.ledger.signed import Signed
from dpfuse.ledger.terms import Terms
from dpfuse.ledger.upgrades import upgrade
from dpfuse.ledger.writer import Ledger
from dpfuse.public.rows import Row

__all__ = [
    "Entry",
    "Ledger",
    "LedgerCheck",
    "Restored",
    "Row",
    "Signed",
    "StreamCheck",
    "Terms",
    "backup",
    "public_rows",
    "restore",
    "upgrade",
    "verify",
]
