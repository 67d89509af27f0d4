"""Releases that name another design: believed if the centre has signed them and the estimator of that design."""

from __future__ import annotations

import copy
import json
import shutil

import pytest
from typer.testing import CliRunner

from dpfuse import _archive
from dpfuse.cli import app
from dpfuse.errors import DesignChanged, FileRefused
from dpfuse.public.rows import Row
from dpfuse.public.signatures import Signer, make_key
from dpfuse.public.signed_estimator import sign_estimator
from dpfuse.remote import RemoteEstimator
from dpfuse.remote import follower as follower_module
from dpfuse.remote.follower import fetch_estimator, follow

CURRENT = "/v1/estimator"


def at(design):
    return f"/v1/estimators/{design * 16}"


class Upgraded:
    """A ledger that goes from design a to design b after step 3, and the estimators that its centre signs."""

    def __init__(self, usual, folder):
        for name in ("key", "strange"):
            make_key(folder / name)
        self.folder, self.unsigned = folder, usual.unsigned_path
        last, self.messages = bytes(32), []
        for row in usual.rows:
            design = "a" if row.step <= 3 else "b"
            row = Row.after(last, *row[:6], design * 16)
            last = row.hash
            self.messages.append(json.loads(self.signer(design).to_message(row).content))
        self._estimators = {design: RemoteEstimator.load(self.file(design)) for design in "ab"}

    def signer(self, design, key="key", ledger="a-ledger"):
        return Signer(self.folder / key, ledger, design * 64)

    def file(self, design, **options):
        path = self.folder / "-".join((design, *options.values()))
        if not path.exists():
            shutil.copy(self.unsigned, path)
            sign_estimator(path, self.signer(design, **options))
        return path

    def estimator(self, design):
        fresh = copy.copy(self._estimators[design])
        fresh._streams = {}
        return fresh

    @property
    def key(self):
        return self.signer("a").signatory.public_key


@pytest.fixture(scope="module")
def upgraded(usual, tmp_path_factory):
    return Upgraded(usual, tmp_path_factory.mktemp("upgraded"))


def test_the_reader_learns_of_another_design_from_its_signed_estimator(upgraded, flaky):
    centre = flaky(upgraded.messages, estimators={at("b"): upgraded.file("b").read_bytes()})
    found = follow(centre.url, "main", upgraded.estimator("a"))
    assert [next(found).step for _ in range(3)] == [1, 2, 3]
    with pytest.raises(DesignChanged, match="whose design is aaaaaaaaaaaaaaaa; if the centre's ledger was upgraded"):
        next(found)


@pytest.mark.parametrize(("step", "more"), [(2, {}), (10**9, {"signature": "00" * 64, "release": [1, 2]})])
def test_a_forged_release_of_another_design_does_not_end_the_reader(upgraded, flaky, monkeypatch, step, more):
    monkeypatch.setattr(follower_module, "_ASK_EVERY_S", 1e9)  # it is asked once, however slow the machine is
    told, messages = [], upgraded.messages[:3]
    forged = {"stream": "main", "step": step, "design": "f" * 16, **more}
    centre = flaky(messages, forged=[forged], estimators={at("a"): upgraded.file("a").read_bytes()})
    assert [each.step for each in follow(centre.url, "main", upgraded.estimator("a"), tell=told.append)] == [1, 2, 3]
    text = f"sent step {step} of another design, for which it hands out no estimator with the same key"
    assert any(text in line for line in told)
    assert centre.asked.count(at("f")) == 1  # however often it came


@pytest.mark.parametrize("change", [{"signature": "00" * 64}, {"fusion_weight": 1}, {"design": "c" * 16}])
def test_a_changed_release_of_the_next_design_is_left_out(upgraded, flaky, change):
    centre = flaky(
        [*upgraded.messages[:3], upgraded.messages[3] | change],
        per_connection=9,
        estimators={at("b"): upgraded.file("b").read_bytes()},
    )
    told = []
    found = follow(centre.url, "main", upgraded.estimator("a"), tell=told.append)
    assert [next(found).step for _ in range(3)] == [1, 2, 3]
    centre.messages = upgraded.messages[:3]  # the next connection finds the stream at its end
    assert list(found) == [] and any("sent step 4 of another design" in line for line in told)


@pytest.mark.parametrize("options", [{"key": "strange"}, {"ledger": "b-ledger"}, None])
def test_an_estimator_of_another_key_or_ledger_or_none_proves_nothing(upgraded, flaky, options):
    """The release is signed with the same other key, or for the other ledger: all of it is somebody else's."""
    signer = upgraded.signer("b", **(options or {}))
    row = Row.after(bytes.fromhex(upgraded.messages[2]["hash"]), "main", 4, bytes(16), 7, 7, 7, "b" * 16)
    forged = json.loads(signer.to_message(row).content)
    content = upgraded.unsigned.read_bytes() if options is None else upgraded.file("b", **options).read_bytes()
    centre = flaky(upgraded.messages[:3], forged=[forged], estimators={at("b"): content})
    assert [each.step for each in follow(centre.url, "main", upgraded.estimator("a"))] == [1, 2, 3]


def test_an_old_release_of_another_design_that_comes_again_is_ignored(upgraded, flaky):
    remote = upgraded.estimator("b")
    for message in upgraded.messages[3:5]:
        remote.update(message)
    centre = flaky(
        upgraded.messages, forged=upgraded.messages[:3], estimators={at("a"): upgraded.file("a").read_bytes()}
    )
    assert [each.step for each in follow(centre.url, "main", remote)] == [6]


def test_the_estimate_command_reads_history_over_an_upgrade_with_the_estimator_of_each_row(upgraded, flaky):
    files = {at(design): upgraded.file(design).read_bytes() for design in "ab"}
    centre = flaky(upgraded.messages, per_connection=9, estimators=files)
    result = CliRunner().invoke(app, ["estimate", "--from", centre.url], catch_exceptions=False)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    expected = [upgraded.estimator("a"), upgraded.estimator("b")]
    expected = [expected[each["step"] > 3].update(each).to_dict() for each in upgraded.messages]
    assert found == expected
    assert result.stderr.count(f"the centre's public key is {upgraded.key}, as {centre.url} says") == 1
    assert "has another design from step 4 on; fetching its estimator" in result.stderr


def test_rows_whose_estimator_nobody_kept_are_left_out(upgraded, flaky):
    file = upgraded.file("b").read_bytes()
    centre = flaky(upgraded.messages, per_connection=9, estimators={CURRENT: file, at("b"): file})
    result = CliRunner().invoke(app, ["estimate", "--from", centre.url], catch_exceptions=False)
    assert [json.loads(line)["step"] for line in result.stdout.splitlines()] == [4, 5, 6]
    assert result.stderr.count("of another design, for which it hands out no estimator with the same key") == 3


def test_the_estimate_command_refuses_another_key_after_a_change_of_design(upgraded, flaky, monkeypatch):
    centre = flaky(upgraded.messages, estimators={at("a"): upgraded.file("a").read_bytes()})

    def changed(*_, **__):
        centre.estimators = {at("a"): upgraded.file("a", key="strange").read_bytes()}
        raise DesignChanged("another design")
        yield

    monkeypatch.setattr(follower_module, "follow", changed)
    result = CliRunner().invoke(app, ["estimate", "--from", centre.url])
    assert "does not have the public key that was given" in str(result.exception)


def test_who_reads_an_unsigned_estimator_is_told(upgraded, flaky):
    centre = flaky(upgraded.messages[:3], per_connection=9)
    arguments = ["estimate", "--from", centre.url, "--estimator", str(upgraded.unsigned)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert f"{upgraded.unsigned} has no signature: whoever hands out the releases can make them up" in result.stderr
    signed = CliRunner().invoke(app, [*arguments[:-1], str(upgraded.file("a")), "--key", upgraded.key])
    assert "key" not in signed.stderr and len(signed.stdout.splitlines()) == 3


def with_version(path, version, signer):
    """The content of a copy of an estimator's file that names another version, signed."""
    metadata, arrays = _archive.read(path, "estimator")
    _archive.write(copied := path.with_name(f"version-{version}"), metadata | {"version": version}, arrays)
    sign_estimator(copied, signer)
    return copied.read_bytes()


def test_an_estimator_that_cannot_be_read_does_not_keep_the_reader_from_the_newest_design(upgraded, flaky):
    """As after a new version of dpfuse, which reads no older files."""
    old = with_version(upgraded.file("a"), 4, upgraded.signer("a"))
    new = upgraded.file("b").read_bytes()
    centre = flaky(upgraded.messages, per_connection=9, estimators={at("a"): old, at("b"): new, CURRENT: new})
    for key in ([], ["--key", upgraded.key]):
        result = CliRunner().invoke(app, ["estimate", "--from", centre.url, *key], catch_exceptions=False)
        assert [json.loads(line)["step"] for line in result.stdout.splitlines()] == [4, 5, 6]
        assert "estimator of design aaaaaaaaaaaaaaaa cannot be read" in result.stderr
        assert "has releases of an earlier design; they are left out" in result.stderr
    with pytest.raises(FileRefused, match="does not have the public key"):
        fetch_estimator(centre.url, "main", public_key="0" * 64)
    centre.estimators[CURRENT] = old
    with pytest.raises(FileRefused, match="has estimator version 4"):
        fetch_estimator(centre.url, "main")
