"""A ledger whose releases a witness keeps, that is lost and restored, and the test's own record of what was paid."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from dpfuse import Entry, Ledger
from dpfuse.ledger import backup, restore
from dpfuse.ledger.head import head_path
from dpfuse.public.signatures import Signer, make_key
from support.ledger_contract import STREAMS


class Site:
    """A ledger, its backups and its witness.

    Attributes:
        paid: what was charged for rows that were published, by sensor (individual) or stream (total).
        published: the row of each stream and step.
    """

    def __init__(self, folder: Path, design, streams=STREAMS) -> None:
        self.folder, self.design, self.streams = folder, design, streams
        self.path, self.rows_file, self.key = folder / "road.db", folder / "rows.jsonl", folder / "key"
        self.backups: list[Path] = []
        self.paid: Counter = Counter()
        self.published: dict = {}
        with Ledger.create(self.path, design, streams) as ledger:
            self.ledger_id, self.budget = ledger.terms.ledger_id, ledger.terms.mechanism.budget
        make_key(self.key)
        self.signer = Signer(self.key, self.ledger_id, design.fingerprint)
        self.rows_file.touch()

    @property
    def public_key(self):
        return self.signer.signatory.public_key

    def open(self):
        return Ledger.open(self.path, self.design)

    def step(self, weight=0.02, ids=(7, 8), *, is_published=True, is_witnessed=True):
        """Commit the next step of all streams and publish it; the witness comes first."""
        with self.open() as ledger:
            step = max(map(ledger.last_step, self.streams)) + 1
            entries = [Entry(name, step, self._charge(ledger, name, weight, ids), ids) for name in self.streams]
            rows = ledger.commit(entries)
        if not is_published:
            return
        if is_witnessed:
            with self.rows_file.open("ab") as file:
                file.writelines(self.signer.to_message(row).content + b"\n" for row in rows)
        for entry, row in zip(entries, rows, strict=True):
            assert self.published.setdefault((row.stream, row.step), row) == row
            owners = [row.stream] if ledger.terms.is_total else ids
            for owner, cost in zip(owners, entry.charged.debits.tolist(), strict=True):
                self.paid[owner] += cost

    def _charge(self, ledger, stream, weight, ids):
        values = np.zeros((len(ids), ledger.terms.dimension))
        values[:, 0] = 1.0 if ledger.terms.is_total else weight
        return ledger.terms.mechanism.charge(ledger.accounts(stream), weight, np.array(ids), values)

    def back_up(self):
        self.backups.append(self.folder / f"backup-{len(self.backups)}")
        backup(self.path, self.backups[-1])

    def lose(self):
        for path in (self.path, head_path(self.path)):
            path.unlink()

    def restore(self, number=-1, *, with_witness=True):
        """Restore that backup, and return what was charged."""
        how = {"witness": self.rows_file, "public_key": self.public_key}
        if not with_witness:
            how = {"last_step": max((step for _, step in self.published), default=0)}
        return restore(self.backups[number], self.path, **how)[1]

    def check(self):
        """Nobody paid more than the budget in all, and every published row is in the ledger or was lost."""
        assert max(self.paid.values(), default=0) <= self.budget
