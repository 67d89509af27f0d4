"""The estimator's file is signed: what one makes of the public file and the public key is refused."""

from __future__ import annotations

import equinox as eqx
import pytest

from dpfuse import _archive
from dpfuse.errors import FileRefused
from dpfuse.policy.estimator_file import export_estimator, import_estimator
from dpfuse.public.signatures import Signer, make_key
from dpfuse.public.signed_estimator import read_signatory, sign_estimator
from dpfuse.remote import RemoteEstimator
from support.designs import make_design


@pytest.fixture(scope="module")
def signers(tmp_path_factory):
    """The centre's, and a stranger's who names the same ledger and design."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("centre", "stranger"):
        make_key(folder / name)
    return [Signer(folder / name, "a-ledger", "f" * 64) for name in ("centre", "stranger")]


@pytest.fixture(scope="module")
def path(tmp_path_factory, signers):
    path = tmp_path_factory.mktemp("estimator") / "road.estimator"
    make_design(spread=0.3).export_estimator(path)
    sign_estimator(path, signers[0])
    return path


def changed(path, to, metadata=None, arrays=None):
    """The file with other metadata or arrays."""
    known, stored = _archive.read(path, "estimator")
    _archive.write(to, known | (metadata or {}), stored | (arrays or {}))
    return to


def refused_as_not_signed(path, key):
    for public_key in (None, key):
        with pytest.raises(FileRefused, match="is not what the centre signed; fetch it again"):
            RemoteEstimator.load(path, public_key=public_key)


def test_the_file_of_a_centre_is_read_with_and_without_its_key(path, signers):
    signatory = signers[0].signatory
    for public_key in (None, signatory.public_key, signatory.public_key.upper()):
        assert RemoteEstimator.load(path, public_key=public_key).signatory == signatory


def test_a_file_with_other_estimates_and_the_genuine_names_is_refused(path, signers, tmp_path):
    """All that it is made of is public: E, the key, the ledger, the design, and the genuine signature."""
    policy = import_estimator(path)
    moved = eqx.tree_at(lambda each: each.constants.state_mean, policy, policy.constants.state_mean + 1e6)
    export_estimator(moved, tmp_path / "forged")
    genuine = _archive.read(path, "estimator")[0]
    names = {name: genuine[name] for name in ("signed_by", "signature")}
    refused_as_not_signed(changed(tmp_path / "forged", tmp_path / "b", names), signers[0].signatory.public_key)


def test_the_signature_covers_every_array_all_metadata_ledger_and_design(path, signers, tmp_path):
    metadata, arrays = _archive.read(path, "estimator")
    key, named = signers[0].signatory.public_key, metadata["signed_by"]
    for name, array in arrays.items():
        refused_as_not_signed(changed(path, tmp_path / "a", arrays={name: array + 1}), key)
    for change in ({"structure": metadata["structure"] | {"horizon": 7}}, {"fingerprint": "0" * 64}, {"more": 1},
                   {"signed_by": named | {"ledger": "b-ledger"}}, {"signed_by": named | {"design": "e" * 64}},
                   {"signature": None}, {"signature": "00" * 64}, {"signature": 5}):  # fmt: skip
        refused_as_not_signed(changed(path, tmp_path / "b", change), key)
    changed(path, tmp_path / "c")  # negative control: nothing changed
    assert read_signatory(tmp_path / "c", key) == signers[0].signatory


def test_a_stranger_can_sign_with_another_key_alone(path, signers, tmp_path):
    changed(path, tmp_path / "a", {"signed_by": None, "signature": None})
    assert read_signatory(tmp_path / "a") is None
    sign_estimator(tmp_path / "a", signers[1])
    assert read_signatory(tmp_path / "a") == signers[1].signatory  # who knows no key cannot tell
    with pytest.raises(FileRefused, match="does not have the public key that was given"):
        read_signatory(tmp_path / "a", signers[0].signatory.public_key)


def test_a_file_of_a_design_alone_is_not_signed(path, signers, tmp_path):
    make_design(spread=0.3).export_estimator(tmp_path / "a")
    assert RemoteEstimator.load(tmp_path / "a").signatory is None
    with pytest.raises(FileRefused, match="does not have the public key that was given"):
        RemoteEstimator.load(tmp_path / "a", public_key=signers[0].signatory.public_key)


@pytest.mark.parametrize(
    "signed_by", [{}, {"public_key": "x"}, {"public_key": "0" * 64, "ledger": "", "design": "a"}, 3]
)
def test_names_that_are_none_are_refused(path, tmp_path, signed_by):
    with pytest.raises(FileRefused, match="is not an estimator that this version can read: signed_by must"):
        read_signatory(changed(path, tmp_path / "a", {"signed_by": signed_by}))


def test_a_signature_of_a_release_is_none_of_an_estimator(path, signers):
    signer = signers[0]
    digest = _archive.digest_of(path, "estimator", without=("signed_by", "signature"))
    text = signer.signatory.signed_estimator_text(digest)
    assert text.startswith(b"dpfuse estimator 1\n") and text.count(b"\n") == 3
    assert signer.signatory.has_signed_estimator(digest, signer.sign_estimator(digest).hex())
    assert not signer.signatory.has_signed_estimator("0" * 64, signer.sign_estimator(digest).hex())
