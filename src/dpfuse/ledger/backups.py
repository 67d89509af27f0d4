"""Back up a ledger while it is written to, and restore it so that nobody can spend more than the budget in all."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dpfuse import _check
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.events import RESTORE, Restored
from dpfuse.ledger.head import HeadFile, head_path, read_head
from dpfuse.ledger.migrations import bring_up_to_date
from dpfuse.ledger.progress import LedgerCheck
from dpfuse.ledger.reader import check, check_pages, head_of_copy, verify
from dpfuse.ledger.store import check_exists, connect, raising_ledger_refused, sqlite, sync_folder
from dpfuse.ledger.stored_rows import find_row
from dpfuse.ledger.terms import Terms
from dpfuse.ledger.witness import read_witness
from dpfuse.ledger.writer import Ledger
from dpfuse.public.rows import Row


def backup(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> LedgerCheck:
    """Copy the ledger as it is at one moment, also while it is written to; returns what a check of the copy found.

    The copy is one new file, as private as the ledger, and without a head file. Only `restore` makes a ledger of it.

    Raises:
        LedgerRefused: the ledger is not in order, or there is such a file.
    """
    source, copy = Path(path).resolve(), Path(target).resolve()
    with raising_ledger_refused(source):
        check_exists(source)
        head = read_head(head_path(source))  # read first: the copy must hold the commit that it names
    with _new_file(copy) as part, raising_ledger_refused(copy):
        apsw = sqlite()
        with closing(connect(source, read_only=True)) as origin, closing(apsw.Connection(str(part))) as destination:
            with destination.backup("main", origin, "main") as copying:
                copying.step(-1)  # all pages under one read lock, which does not hinder the writer
            destination.pragma("journal_mode", "delete")  # one file, without a log beside it
        with closing(connect(part, read_only=True)) as connection:
            check_pages(connection, copy)
            found, _ = check(connection, copy, head)
    return found


def restore(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    witness: str | os.PathLike[str] | None = None,
    public_key: str = "",
    last_step: int | None = None,
    now_s: float | None = None,
) -> tuple[LedgerCheck, Restored]:
    """Make a ledger of a backup. What may have been spent after the backup counts as spent.

    **Guarantees**
        - With a witness that holds every row that anybody else has, no sensor spends more than its budget in all.
          Individual accounting: every sensor, known or new, is charged the most that the witness's later rows
          can have cost it, c G_k^2 for each (c d G_k^2 for a box). Total accounting: the rows say what they cost.
        - Without a witness no sensor and no stream, known or new, has anything left; without periods, for ever.
        - With periods both charges are for the period of the restore alone. Later ones start afresh. Without a witness
          it is assumed that the clock of the lost machine was not in a later period than `now_s`.
        - The ledger goes on after the last step of the witness, or after `last_step`. The witness's rows become rows of
          the ledger. No step is released a second time.
        - With a bank the restored ledger is a new generation of its centre: what was lent to the lost one counts as
          spent at the bank, and nothing is charged here. Its period is that of the bank's clock.
        - An error leaves no ledger behind.

    Args:
        source: a file that `backup` wrote.
        path: of the ledger to make; refused if it is there.
        witness: the release messages that were kept elsewhere, see `read_witness`.
        public_key: of the centre, 64 hex digits; needed with a witness.
        last_step: without a witness, the last step that anybody may have; if the backup has it, too, one step after the
            backup's last is skipped.
        now_s: the moment of the restore in seconds since 1970, which decides the period; by default now.

    Returns:
        What a check of the new ledger finds, and what was charged.
    """
    if (witness is None) == (last_step is None):
        raise ValueError("give a witness or, if there is none, the last step that anybody may have")
    if last_step is not None:
        _check.is_count("last_step", last_step, 0)
    now_s = time.time() if now_s is None else now_s
    copy, target = Path(source).resolve(), Path(path).resolve()
    if not copy.is_file():
        raise LedgerRefused(f"{copy} is missing; name a file that `dpfuse ledger backup` wrote")
    _check_no_writer(target)
    with _new_file(target, "restoring") as part:
        shutil.copyfile(copy, part)
        with raising_ledger_refused(part):
            bring_up_to_date(part, None)
        _write_head(part)
        with Ledger.open_for_events(part) as ledger:
            if last_step is not None:
                # A gap shows readers that the hashes begin anew; without it they would refuse the next row as forged.
                last_step = max(last_step, ledger.newest_step + 1)
            rows = [] if witness is None else _read_lost(part, Path(witness), ledger.found, public_key)
            known = [ledger.period, *(together[0].period for together in rows)]
            if ledger.terms.bank_id is None:
                known.append(ledger.terms.guarantee.period_at(now_s))
            period = max((one for one in known if one is not None), default=None)
            restored = _charge(ledger.terms, rows, last_step, period)
            ledger.append_event(RESTORE, restored.to_json(), rows, period)
        found = verify(part)
        os.replace(head_path(part), head_path(target))  # first: a head file without a ledger is refused
    return found, restored


def _charge(terms: Terms, rows: list[list[Row]], last_step: int | None, period: int | None) -> Restored:
    """What everybody is charged in this period; `last_step` is None if there is a witness, which has these rows."""
    mechanism, lost = terms.mechanism, [row for together in rows for row in together]
    # A bank counts what it had lent as spent. In total accounting the rows say what they cost.
    has_bank = terms.bank_id is not None
    if last_step is not None:
        return Restored(charge=0 if has_bank else mechanism.budget, last_step=last_step, is_witnessed=False)
    costs = (mechanism.largest_cost(row.fusion_weight) for row in lost if row.period == period)
    most = 0 if terms.is_total or has_bank else sum(costs)
    last = max((row.step for row in lost), default=0)
    return Restored(charge=min(most, mechanism.budget), last_step=last, is_witnessed=True)


def _read_lost(part: Path, witness: Path, found: LedgerCheck, public_key: str) -> list[list[Row]]:
    """The witness's rows that the copy lacks, by step."""
    with closing(connect(part, read_only=True)) as connection:

        def stored_hash(stream: str, step: int) -> bytes:
            row = find_row(connection, stream, step)
            return b"" if row is None else row.hash

        return read_witness(witness, found, stored_hash, public_key)


def _write_head(part: Path) -> None:
    """A head file for a copy that has none."""
    with raising_ledger_refused(part):
        with closing(connect(part, read_only=True)) as connection:
            head = head_of_copy(connection, part)
        with closing(HeadFile(head_path(part), create=True)) as file:
            file.write(head, sync=True)


def _check_no_writer(target: Path) -> None:
    """Refuse a place where a ledger is, or where a centre still runs on one that was deleted."""
    if target.exists():
        raise LedgerRefused(f"{target} is there; move it away first, with its head file, and never run a centre on it")
    if head_path(target).exists():
        HeadFile(head_path(target)).close()


@contextmanager
def _new_file(target: Path, suffix: str = "part") -> Iterator[Path]:
    """A path beside the target for a private file, which becomes the target at the end; after an error none stays."""
    if target.exists():
        raise LedgerRefused(f"{target} is there already; choose another name")
    part = target.with_name(f"{target.name}.{suffix}")
    _remove(part)
    with raising_ledger_refused(target):
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        try:
            yield part
            if (log := part.with_name(f"{part.name}-wal")).exists() and log.stat().st_size:
                raise LedgerRefused(f"{part} still has a log beside it; is another program reading it?")
            _sync(part)
            os.link(part, target)  # unlike a rename it never overwrites
            sync_folder(target.parent)
        finally:
            _remove(part)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(part: Path) -> None:
    for path in (part, *(part.with_name(part.name + end) for end in ("-wal", "-shm", "-journal", ".head"))):
        path.unlink(missing_ok=True)
