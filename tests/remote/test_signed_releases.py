"""A reader of signed releases: forged, replayed and reordered ones are refused, and the genuine ones still read."""

from __future__ import annotations

import json

import pytest

import dpfuse
from dpfuse.errors import FileRefused, ReleaseRefused
from dpfuse.public.rows import Row, release_message
from dpfuse.public.signatures import Signer, make_key
from dpfuse.remote.follower import follow
from support.designs import make_design
from support.remote import Run
from support.rows import make_row


@pytest.fixture(scope="module")
def signer(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key"
    make_key(path)
    return Signer(path, "a-ledger", "f" * 64)


@pytest.fixture(scope="module")
def signed(tmp_path_factory, signer):
    """The releases of a design, signed, and an estimator that asks for the signature."""
    return Run(make_design(spread=0.5), tmp_path_factory.mktemp("signed"), signer=signer)


def test_from_a_public_hash_anybody_makes_a_next_release_and_it_is_refused(signed, signer):
    """Before there were signatures the forged release was read, and the genuine one refused after it."""
    remote = signed.estimator()
    remote.update(signed.messages[0])
    seen = bytes.fromhex(signed.messages[0]["hash"])
    forged = Row.after(seen, "main", 2, bytes(16), 10**6, 7, 7)
    message = json.loads(release_message(forged).content)
    for signature in (None, signed.messages[0]["signature"], "00" * 64):
        with pytest.raises(ReleaseRefused, match="step 2 of stream 'main' is not signed by the centre"):
            remote.update(message | {"signature": signature})
    expected = signed.estimator()
    expected.update(signed.messages[0])
    assert remote.update(signed.messages[1]) == expected.update(signed.messages[1])


def test_without_a_signatory_the_forged_release_is_read(signed):
    """Negative control: what an estimator file without a public key leads to."""
    remote = dpfuse.RemoteEstimator.load(signed.unsigned_path)
    remote.update(signed.messages[0])
    forged = Row.after(bytes.fromhex(signed.messages[0]["hash"]), "main", 2, bytes(16), 10**6, 7, 7)
    assert remote.update(forged.to_dict()) is not None
    with pytest.raises(ReleaseRefused, match="released twice"):
        remote.update(signed.messages[1])


def test_releases_of_another_ledger_with_the_same_key_are_refused(signed, signer, tmp_path):
    make_key(tmp_path / "key")
    other = Signer(tmp_path / "key", "b-ledger", signer.signatory.design)
    other._key = signer._key
    with pytest.raises(ReleaseRefused, match="not signed by the centre"):
        signed.estimator().update(json.loads(other.to_message(signed.rows[0]).content))


def test_replayed_and_reordered_releases_change_nothing(signed):
    remote, in_order = signed.estimator(), signed.estimator()
    expected = [in_order.update(message) for message in signed.messages]
    remote.update(signed.messages[0])
    remote.update(signed.messages[1])
    assert remote.update(signed.messages[0]) is None
    with pytest.raises(ReleaseRefused, match="releases between them were not read"):
        remote.update(signed.messages[4])
    assert [remote.update(message) for message in signed.messages[2:]] == expected[2:]


def test_a_follower_leaves_forged_releases_out_and_reads_the_genuine_ones(signed, flaky):
    """The forged ones are ahead of the genuine ones, and would make the follower skip them."""
    forged = [json.loads(release_message(make_row(step=step)).content) for step in (2, 6)]
    told, expected = [], signed.estimator()
    centre = flaky(signed.messages, forged=forged, per_connection=3)
    found = list(follow(centre.url, "main", signed.estimator(), tell=told.append))
    assert found == [expected.update(message) for message in signed.messages]
    assert any("sent step 6 without the centre's signature; it is left out" in line for line in told)


def test_a_public_key_known_from_elsewhere_must_be_that_of_the_file(signed, signer):
    key = signer.signatory.public_key
    assert dpfuse.RemoteEstimator.load(signed.path, public_key=key.upper()).signatory == signer.signatory
    for path, other in [(signed.path, "0" * 64), (signed.unsigned_path, key)]:
        with pytest.raises(FileRefused, match="does not have the public key that was given"):
            dpfuse.RemoteEstimator.load(path, public_key=other)
