"""Events: commits that change what a ledger is for, or what everybody has left. They are part of the public chain."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apsw import Connection

TERMS, RESTORE, PERIOD = "terms", "restore", "period"
"""The kinds of events: new terms, a restore from a backup, and a period that begins, whose content is its number."""

_LAST_PERIOD = """SELECT {column} FROM events WHERE kind = ? AND commit_number <= ifnull(?, commit_number)
    ORDER BY commit_number DESC LIMIT 1"""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A restore from a backup. All of it is public: it follows from public rows.

    Attributes:
        charge: what every sensor (individual) or every stream (total) is charged for rows that were lost, in squared
            grid steps; in the period of the restore, if there are periods.
        last_step: no step up to this one is released again.
        is_witnessed: whether the lost rows are known. If not, the hashes of the streams begin anew, so that rows
            from after the restore cannot be taken for those that were lost.
    """

    charge: int
    last_step: int
    is_witnessed: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Restored:
        return cls(**json.loads(text))


def read_charged_to_all(connection: Connection, last_commit: int | None = None) -> int:
    """What the restores up to that commit charge to everybody within its period; up to the last commit if None."""
    query = f"""SELECT content FROM events WHERE kind = ? AND commit_number <= ifnull(?, commit_number)
        AND commit_number > ifnull(({_LAST_PERIOD.format(column="commit_number")}), -1)"""
    values = RESTORE, last_commit, PERIOD, last_commit
    found: list[Any] = connection.execute(query, values).fetchall()
    return sum(Restored.from_json(content).charge for (content,) in found)


def read_period(connection: Connection, last_commit: int) -> int | None:
    """The period after that commit; None before the first one."""
    found: list[Any] = connection.execute(_LAST_PERIOD.format(column="content"), (PERIOD, last_commit)).fetchall()
    return int(found[0][0]) if found else None
