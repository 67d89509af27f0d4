"""The exit code says whether to try again, to change settings, or to find out what happened to a ledger."""

from __future__ import annotations

import errno

import psycopg
import pytest

from dpfuse import Ledger, errors
from dpfuse.cli import exit_code
from dpfuse.ledger.bank.bank import BankBusy, Superseded
from dpfuse.ledger.bank.server import BankAddress, connect, raising_bank_refused
from dpfuse.ledger.store import raising_ledger_refused
from support.ledger_contract import STREAMS, make_ledger_design
from support.ledger_files import edit


@pytest.fixture
def path(tmp_path):
    Ledger.create(tmp_path / "a.db", make_ledger_design(), STREAMS).close()
    return tmp_path / "a.db"


def code_of(attempt):
    with pytest.raises(Exception) as found:
        attempt()
    return exit_code(found.value)


def test_what_passes_ends_with_75(path):
    design = make_ledger_design()
    with Ledger.open(path, design):
        assert code_of(lambda: Ledger.open(path, design)) == 75  # has a writer
    for number in (errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(errors.LedgerUnavailable), raising_ledger_refused(path):
            raise OSError(number, "")
    nobody = BankAddress.parse("postgresql://nobody@127.0.0.1:1/none")
    assert code_of(lambda: connect(nobody)) == 75
    with pytest.raises(errors.LedgerUnavailable), raising_bank_refused(nobody):
        raise psycopg.OperationalError
    assert exit_code(BankBusy()) == 75


def test_what_settings_cause_ends_with_2(path):
    assert code_of(lambda: Ledger.open(path, make_ledger_design("individual"))) == 2
    assert code_of(lambda: Ledger.open(path.with_name("missing.db"), make_ledger_design())) == 2
    path.chmod(0o644)
    assert code_of(lambda: Ledger.open(path, make_ledger_design())) == 2
    assert exit_code(ValueError()) == exit_code(TypeError()) == 2


def test_a_ledger_or_bank_that_is_refused_ends_with_3(path):
    edit(path, "DELETE FROM seals")
    assert code_of(lambda: Ledger.open(path, make_ledger_design())) == 3
    path.write_bytes(b"not a database" * 100)
    assert code_of(lambda: Ledger.open(path, make_ledger_design())) == 3
    path.unlink()
    assert code_of(lambda: Ledger.open(path, make_ledger_design())) == 3  # lost: the head file is there
    assert exit_code(Superseded()) == 3
    with pytest.raises(errors.LedgerRefused) as found, raising_bank_refused(BankAddress.parse("postgresql://b@h/d")):
        raise psycopg.errors.UndefinedTable
    assert exit_code(found.value) == 3


def test_other_errors_end_with_1():
    assert exit_code(OSError()) == exit_code(errors.FileRefused()) == 1
