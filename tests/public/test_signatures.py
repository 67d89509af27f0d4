"""Signed releases: what is signed, and who can sign."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.errors import FileRefused
from dpfuse.public.rows import Row
from dpfuse.public.signatures import Signatory, Signer, make_key
from support.rows import make_row


@pytest.fixture(scope="module")
def signer(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key"
    make_key(path)
    return Signer(path, "a-ledger", "f" * 64)


def sign(signer, row):
    return json.loads(signer.to_message(row).content)


class TestSigning:
    def test_a_signature_covers_every_field_ledger_and_design(self, signer):
        row, signatory = make_row(), signer.signatory
        signature = sign(signer, row)["signature"]
        assert signatory.has_signed(row, signature)
        changed = [row._replace(stream="other"), row._replace(step=2), row._replace(release=bytes(16))]
        changed += [row._replace(fusion_weight=6), row._replace(cost=8), row._replace(budget_left=None)]
        changed += [row._replace(design="f" * 16), row._replace(hash=bytes(32)), row._replace(period=3)]
        changed.append(row._replace(inputs=bytes(6)))
        assert len(changed) == len(Row._fields)
        assert not any(signatory.has_signed(other, signature) for other in changed)
        assert not signatory._replace(ledger="b-ledger").has_signed(row, signature)
        assert not signatory._replace(design="e" * 64).has_signed(row, signature)

    def test_the_same_row_has_the_same_bytes_after_a_restart(self, signer, tmp_path):
        make_key(tmp_path / "key")
        first, again = (Signer(tmp_path / "key", "a-ledger", "f" * 64).to_message(make_row()) for _ in range(2))
        assert first == again != signer.to_message(make_row())

    @given(st.integers(1, 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
    def test_signed_releases_have_one_width(self, signer, step, value):
        width = len(signer.to_message(make_row()).content)
        assert len(signer.to_message(make_row(step=step, release=(value, -value // 2))).content) == width

    @pytest.mark.parametrize("signature", [None, 5, "", "zz" * 64, "00" * 64, "00" * 63, b"00" * 64, ["00" * 64]])
    def test_what_is_no_signature_is_none(self, signer, signature):
        assert not signer.signatory.has_signed(make_row(), signature)


class TestKeys:
    def test_a_key_is_readable_by_its_owner_alone(self, tmp_path):
        make_key(tmp_path / "key")
        assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
        (tmp_path / "key").chmod(0o640)
        with pytest.raises(FileRefused, match="only its owner may read the signing key"):
            Signer(tmp_path / "key", "a", "b")

    def test_a_key_is_not_overwritten_shown_or_made_up(self, tmp_path):
        make_key(tmp_path / "key")
        secret = (tmp_path / "key").read_text().strip()
        with pytest.raises(FileExistsError):
            make_key(tmp_path / "key")
        assert secret not in repr(Signer(tmp_path / "key", "a", "b"))
        with pytest.raises(FileRefused, match="no signing key at"):
            Signer(tmp_path / "nowhere", "a", "b")
        (tmp_path / "key").write_text("short\n")
        with pytest.raises(FileRefused, match="one line of 64 hex digits"):
            Signer(tmp_path / "key", "a", "b")


@pytest.mark.parametrize("fields", [None, {}, {"public_key": "0"}, {"public_key": "0" * 64, "ledger": 1, "design": ""}])
def test_a_signatory_has_three_names(fields):
    with pytest.raises(ValueError, match="signed_by must have"):
        Signatory.from_dict(fields)
