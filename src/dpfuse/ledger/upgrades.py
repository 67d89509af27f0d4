"""Change the design or the streams of a ledger: the accounts stay."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dpfuse.ledger.events import TERMS
from dpfuse.ledger.reader import read_newest
from dpfuse.ledger.terms import Terms
from dpfuse.ledger.writer import Ledger

if TYPE_CHECKING:
    from dpfuse.policy.design import Design


def upgrade(
    path: str | os.PathLike[str],
    design: Design | None = None,
    *,
    add: Iterable[str] = (),
    retire: Iterable[str] = (),
) -> Terms:
    """Change what a ledger is for, in one durable transaction; returns the new terms.

    Steps go on: the next one follows the last one of all streams. g and E of a new design begin there with fresh
    memory.

    **Guarantees**
        - What was spent stays spent, by every sensor (individual accounting) and every stream (total accounting), also
          by a stream that is retired and added again. Nothing is refunded.
        - Rows keep the name of the design that made them, and both chains go on.
        - Refused while a centre writes to the ledger.

    Args:
        path: of the ledger.
        design: the new design, with the same guarantee; None keeps the design.
        add: names of new streams. In total accounting each has a budget of its own.
        retire: streams that get no more releases. Their rows and accounts stay.

    Raises:
        LedgerRefused: the design has another guarantee, or the ledger cannot be opened.
        ValueError: nothing would change, or the streams do not fit.
    """
    with Ledger.open_for_events(path) as ledger:
        terms = ledger.terms.change(design, add, retire, ledger.path)
        if terms == ledger.terms:
            raise ValueError("an upgrade must change something: give another design, or streams to add or retire")
        _check_horizon(terms, ledger.newest_step)
        ledger.append_event(TERMS, terms.to_json())
    return terms


def check_upgrade(path: str | os.PathLike[str], design: Design, streams: Iterable[str]) -> None:
    """Refuse what `upgrade` to that design and these streams would refuse; a centre may write to the ledger meanwhile.

    Raises:
        LedgerRefused, ValueError: as `upgrade`.
    """
    terms, last = read_newest(path)
    wanted, present = set(streams), set(terms.streams)
    changed = terms.change(design, wanted - present, present - wanted, path)
    if changed != terms:
        _check_horizon(changed, last)


def _check_horizon(terms: Terms, last: int) -> None:
    if terms.horizon is not None and terms.horizon <= last:
        raise ValueError(
            f"the design must end after step {last}, where the ledger is, got one that ends after {terms.horizon}; "
            f"steps go on and do not begin again"
        )
