"""The estimators of earlier designs are kept beside the ledger and handed out by the ids that rows have."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfuse.centre.centre import FusionCentre
from dpfuse.cli import app
from dpfuse.errors import FileRefused
from dpfuse.ledger import Ledger, upgrade
from dpfuse.ledger.reader import design_fingerprints
from dpfuse.public.reading import make_reading_app
from dpfuse.public.signatures import Signer, make_key
from dpfuse.public.signed_estimator import read_signatory
from dpfuse.remote import RemoteEstimator
from dpfuse.wire.feed_door import FeedDoor, make_feed_app
from dpfuse.wire.kept_estimators import keep_estimators
from dpfuse.wire.serve import make_feed, make_hub
from support.designs import make_design
from support.relays import following_relay
from support.wire import Watch, rig, serving


@pytest.fixture(scope="module")
def designs():
    return [make_design(spread=spread) for spread in (0.3, 0.5)]


def signer_for(design, folder, key="key", ledger="a-ledger"):
    if not (folder / key).exists():
        make_key(folder / key)
    return Signer(folder / key, ledger, design.fingerprint)


def test_each_design_that_the_ledger_had_has_its_signed_estimator(designs, tmp_path):
    for design in [*designs, designs[1]]:  # an upgrade and a restart
        kept = keep_estimators(tmp_path / "kept", design, signer_for(design, tmp_path))
    assert set(kept) == {design.fingerprint[:16] for design in designs}
    for design in designs:
        (path := tmp_path / "file").write_bytes(kept[design.fingerprint[:16]])
        assert RemoteEstimator.load(path).signatory == signer_for(design, tmp_path).signatory
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("change", [{"key": "another"}, {"ledger": "b-ledger"}])
def test_an_estimator_of_another_key_or_ledger_is_not_handed_out(designs, tmp_path, change, caplog):
    keep_estimators(tmp_path / "kept", designs[0], signer_for(designs[0], tmp_path, **change))
    kept = keep_estimators(tmp_path / "kept", designs[1], signer_for(designs[1], tmp_path))
    assert set(kept) == {designs[1].fingerprint[:16]}
    assert ("is not handed out" in caplog.text) == ("key" in change)


def test_a_file_that_is_damaged_or_has_another_name_is_not_handed_out(designs, tmp_path):
    first = keep_estimators(tmp_path / "kept", designs[0], signer_for(designs[0], tmp_path))
    own = tmp_path / "kept" / designs[0].fingerprint[:16]
    shutil.copy(own, own.with_name("0" * 16))
    own.with_name("1" * 16).write_bytes(b"no file")
    with pytest.raises(FileRefused):
        read_signatory(own.with_name("1" * 16))
    assert keep_estimators(tmp_path / "kept", designs[0], signer_for(designs[0], tmp_path)) == first


def test_readers_get_an_estimator_by_the_id_of_its_design(tmp_path):
    with rig(tmp_path) as live:
        [release] = [each.row for each in live.tick()]
        assert live.get("/v1/estimators").json() == {"designs": [release.design]}
        assert live.get(f"/v1/estimators/{release.design}").content == live.get("/v1/estimator").content
        refused = live.get("/v1/estimators/0000000000000000")
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "unknown_design"


@pytest.mark.slow
def test_the_estimates_of_a_ledger_that_was_upgraded_are_those_of_its_centre_from_the_first_step_on(tmp_path):
    """Two designs of different dimension; what is read comes over HTTP, from the centre or a relay, and is signed."""
    path, kept, expected = tmp_path / "road.db", tmp_path / "road.db.estimators", []
    make_key(tmp_path / "key")
    old, new = make_design(spread=0.5, horizon=4), make_design(spread=0.5, seed=1, horizon=7, dimension=3)
    for design in (old, new):
        if design is new:
            upgrade(path, new)
        with Ledger.create(path, old) if design is old else Ledger.open(path, new) as ledger:
            centre = FusionCentre(design, ledger)
            signer = Signer(tmp_path / "key", ledger.terms.ledger_id, design.fingerprint, design_fingerprints(path))
            watch = Watch(centre, hub := make_hub(ledger, centre, signer))
            expected += [one for _ in range(3) for one in watch.tick()]
            files = keep_estimators(kept, design, signer)
            if design is new:
                feed = make_feed(centre, watch, hub, SimpleNamespace(notes=None), signer.signatory)
                reading = make_reading_app(feed, files[design.fingerprint[:16]], watch.clock, by_design=files)
                door = FeedDoor(make_feed_app(feed, files[design.fingerprint[:16]], watch.clock, files)).start()
                with serving(reading) as address:
                    found = [estimates_at(address, signer)]
                    for upstream in (address, f"unix:{door.path}"):
                        with following_relay(upstream) as relay, serving(relay.app) as relayed:
                            found.append(estimates_at(relayed, signer))
                            assert relay.hub.messages("main") == hub.messages("main")
                door.stop()
            hub.close()
    for estimates in found:
        assert [each["step"] for each in estimates] == [1, 2, 3, 4, 5, 6]
        for each, one in zip(estimates, expected, strict=True):
            np.testing.assert_allclose([each["mean"], each["std"]], [one.mean, one.std], rtol=1e-5)


def estimates_at(address, signer):
    """What `dpfuse estimate` prints of six releases."""
    options = ("--from", address, "--key", signer.signatory.public_key, "--steps", "6")
    result = CliRunner().invoke(app, ["estimate", *options], catch_exceptions=False)
    return [json.loads(line) for line in result.stdout.splitlines()]
