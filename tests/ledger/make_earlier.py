"""Write a ledger of the version of this dpfuse, `individual.sql` and `individual.head`, into `version8` or its like.

Run as `PYTHONPATH=tests python tests/ledger/make_earlier.py` with the last dpfuse of a version, before it goes up. The
ledger has accounts that are sealed and debits that are not, a retired stream, and signatures.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from dpfuse.ledger import Ledger, upgrade
from dpfuse.ledger.head import head_path
from dpfuse.public.signatures import Signer, make_key
from support.ledger_contract import entry, make_ledger_design

DESIGN = make_ledger_design("individual")


def write(path: Path) -> None:
    """A ledger as a kill leaves it: the commits since the last seal have debits of their own."""
    Ledger.create(path, DESIGN, ("north", "south")).close()
    make_key(path.with_suffix(".key"))
    with Ledger.open(path, DESIGN) as ledger:
        ledger.sign_with(Signer(path.with_suffix(".key"), ledger.terms.ledger_id, ledger.terms.fingerprint))
        for step in range(1, 6):
            ledger.commit([entry(ledger, step, stream) for stream in ledger.streams])
    upgrade(path, add=["east"], retire=["south"])
    with Ledger.open(path, DESIGN) as ledger:
        for step in range(6, 9):
            ledger.commit([entry(ledger, step, stream) for stream in ledger.streams])
        ledger._close_files()  # nothing more is sealed


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        write(path)
        with closing(sqlite3.connect(path)) as connection:
            pragmas = [
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            ]
            lines = [*connection.iterdump(), "PRAGMA application_id = {}; PRAGMA user_version = {};".format(*pragmas)]
        here = Path(__file__).parent / f"version{pragmas[1]}"
        here.mkdir(exist_ok=True)
        (here / "individual.sql").write_text("\n".join(lines) + "\n")
        shutil.copy(head_path(path), here / "individual.head")


if __name__ == "__main__":
    main()
