"""The centre's side of a witness: it gets every release before any reader, and contradicts a rewritten ledger."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dpfuse.errors import LedgerRefused
from dpfuse.ledger import Ledger, public_rows
from dpfuse.ledger.witness import compare_rows, parse_lines
from dpfuse.public.rows import Message
from dpfuse.public.signatures import Signer
from dpfuse.public.witness_file import WitnessFile

# Messages that a witness gets at once when a centre starts.
_PAGE = 1000


@contextmanager
def witnessed(path: Path | None, ledger: Ledger, signer: Signer) -> Iterator[Callable[[list[Message]], object]]:
    """What hands messages to the witness, if there is one. It first gets those rows of the ledger that it lacks.

    A ledger that lacks what the witness has, or has something else in its place, is refused.
    """
    if path is None:
        yield lambda messages: None
        return
    with closing(WitnessFile(path)) as witness:
        if witness.last_step > ledger.newest_step:
            raise LedgerRefused(
                f"{ledger.path} is behind its witness {path}, which has step {witness.last_step}: it was rolled back; "
                f"put the right ledger back, or restore a backup with this witness"
            )
        compare_rows(ledger.path, ((str(path), one) for _, one in parse_lines(path, witness.recent)))
        # From its last step on: a crash may have left only some of the streams' messages of that step.
        lacking = public_rows(ledger.path, start=max(1, witness.last_step))
        while page := list(itertools.islice(lacking, _PAGE)):
            witness.append(map(signer.to_message, page))
        yield witness.append
