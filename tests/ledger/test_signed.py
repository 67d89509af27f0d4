"""The centre's signatures in a ledger, and what `ledger verify` makes of them."""

from __future__ import annotations

import json
import sys

import pytest

from dpfuse import Ledger, cli
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import backup, restore, upgrade, verify
from dpfuse.ledger.reader import design_fingerprints
from dpfuse.public.signatures import Signer, make_key
from support.ledger_contract import STREAMS, entry, make_ledger_design
from support.ledger_files import edit

DESIGN = make_ledger_design()


def signer_of(ledger, name="key"):
    path = ledger.path.with_name(name)
    if not path.exists():
        make_key(path)
    terms = ledger.terms
    return Signer(path, terms.ledger_id, terms.fingerprint, design_fingerprints(ledger.path))


def write(ledger, steps, streams=STREAMS):
    for step in steps:
        ledger.commit([entry(ledger, step, stream, weight=0.0001) for stream in streams])


@pytest.fixture
def signed(place):
    """The path of a closed ledger whose last rows are signed, and the public key."""
    with place.create(DESIGN, STREAMS) as ledger:
        ledger.sign_with(signer := signer_of(ledger))
        write(ledger, (1, 2))
    return place.path, signer.signatory.public_key


def test_a_closed_ledger_is_signed_to_the_end_with_the_key_that_is_given(signed):
    path, key = signed
    assert verify(path).signed == (key, 0) == verify(path, f" {key.upper()}\n").signed
    with pytest.raises(LedgerRefused, match=f"is signed with the key {key}, not with 00"):
        verify(path, "0" * 64)


def test_while_a_centre_writes_few_rows_are_not_signed_yet(place):
    with place.create(DESIGN, STREAMS) as ledger:
        ledger.sign_with(signer := signer_of(ledger))
        key = signer.signatory.public_key
        write(ledger, [1])
        with pytest.raises(LedgerRefused, match="no release of stream 'north' is signed with the key"):
            verify(place.path, key)
        unsigned = []
        for step in range(2, 40):
            ledger.checkpoint()
            unsigned.append(verify(place.path, key).signed.num_unsigned)
            write(ledger, [step])
        assert unsigned[0] == 0 and 0 < max(unsigned) <= 16 * len(STREAMS) and 0 in unsigned[1:]
    assert verify(place.path, key).signed == (key, 0)


def test_a_ledger_that_was_rewritten_without_the_signing_key_is_refused(signed, tmp_path):
    """Its own id, hashes, tips and head file are all in order: only the signatures show it."""
    path, key = signed
    query = "SELECT hex(signature) FROM signatures WHERE stream = 'north'"
    with Ledger.open(path, DESIGN) as ledger:
        terms = ledger.terms
        [(signature,)] = ledger._connection.execute(query).fetchall()
    other = tmp_path / "other" / "ledger.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpfuse.ledger.writer.secrets.token_hex", lambda _: terms.ledger_id)
        Ledger.create(other, DESIGN, STREAMS).close()
    with Ledger.open(other, DESIGN) as ledger:
        write(ledger, (1, 2))
    assert verify(other).signed == (None, 4)
    with pytest.raises(LedgerRefused, match="no release of stream 'north' is signed with the key"):
        verify(other, key)
    edit(other, f"INSERT INTO signatures VALUES ('north', 2, '{key}', x'{signature}')")
    for known in (None, key):
        with pytest.raises(LedgerRefused, match="step 2 of stream 'north' is not the one that the centre signed"):
            verify(other, known)


@pytest.mark.parametrize(
    "change",
    ["SET signature = zeroblob(64)", "SET step = 1", "SET step = 9", "SET stream = 'west' WHERE stream = 'north'"],
)
def test_changed_signatures_are_refused(signed, change):
    path, _ = signed
    edit(path, f"UPDATE signatures {change}")
    with pytest.raises(LedgerRefused, match="is not the one that the centre signed"):
        verify(path)


def test_after_an_upgrade_and_with_another_key_every_stream_is_signed(signed):
    path, _ = signed
    better = make_ledger_design(fingerprint="b" * 64)
    upgrade(path, better, add=["west"], retire=["south"])
    with Ledger.open(path, better) as ledger:
        ledger.sign_with(signer := signer_of(ledger, "another-key"))
        assert verify(path, signer.signatory.public_key).signed.num_unsigned == 0
        write(ledger, [3], ("north", "west"))
    assert verify(path, signer.signatory.public_key).signed == (signer.signatory.public_key, 0)


def test_a_restored_ledger_with_another_key_is_in_order(signed, tmp_path):
    path, _ = signed
    backup(path, tmp_path / "copy")
    restore(tmp_path / "copy", place := tmp_path / "ledger.db", last_step=50)
    with Ledger.open(place, DESIGN) as ledger:
        ledger.sign_with(signer := signer_of(ledger, "another-key"))
        assert verify(place, signer.signatory.public_key).signed.num_unsigned == 0
        ledger.commit([entry(ledger, 51, weight=0.0)])
    assert verify(place, signer.signatory.public_key).signed.num_unsigned == 0


def test_the_command_takes_the_key_beside_the_ledger_and_says_who_signed(signed, monkeypatch, capsys):
    path, key = signed

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["dpfuse", "ledger", "verify", str(path), *options])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, capsys.readouterr()

    code, shown = run()
    assert code == 0 and f"all rows are signed with the key {key}" in shown.out
    found = json.loads(run("--key", key, "--json")[1].out)
    assert (found["signed_by"], found["unsigned_rows"]) == (key, 0)
    make_key(own := path.with_name(f"{path.name}.signing-key"))
    code, shown = run()
    assert code == 3 and "is signed with the key" in shown.err
    own.unlink()
    edit(path, "DELETE FROM signatures")
    assert "no row is signed" in run()[1].out
    assert run("--key", key)[0] == 3
