"""Following a centre's releases over HTTP: through lost connections, gaps, repeats and restarts."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading

import pytest
from typer.testing import CliRunner

from dpfuse.cli import app
from dpfuse.errors import DesignChanged, ReleaseRefused
from dpfuse.public.rows import Row
from dpfuse.remote import client as client_module
from dpfuse.remote.follower import fetch_estimator, follow
from support.remote import assert_close
from support.wire import certify


def test_every_release_is_read_once_through_cuts_gaps_and_repeats(usual, flaky):
    """Connections end after three events, events are missing or repeated, and the centre is away at first."""
    remote, told = usual.estimator(), []
    centre = flaky(usual.messages, left_out=(2, 5), failures=2, per_connection=3)
    found = list(follow(centre.url, "main", usual.estimator(), tell=told.append))
    assert found == [remote.update(message) for message in usual.messages]
    assert centre.last_event_ids[0] == 0 and centre.last_event_ids[-1] == 6  # it continued after the last step
    assert any("is away (TryAgain)" in line for line in told) and any("is back" in line for line in told)


def test_a_step_that_the_centre_skipped_is_not_a_gap(gappy, flaky):
    found = list(follow(flaky(gappy.messages).url, "main", gappy.estimator()))
    for estimate, expected in zip(found, gappy.estimates, strict=True):
        assert_close(estimate, expected)


def test_following_starts_at_the_given_step(usual, flaky):
    centre = flaky(usual.messages, per_connection=9)
    assert [found.step for found in follow(centre.url, "main", usual.estimator(), start=4)] == [4, 5, 6]


def test_following_continues_after_the_last_step_read(usual, flaky):
    remote = usual.estimator()
    for message in usual.messages[:3]:
        remote.update(message)
    centre = flaky(usual.messages, per_connection=9)
    assert [found.step for found in follow(centre.url, "main", remote)] == [4, 5, 6]


def test_a_release_missing_from_the_past_is_reported(usual, flaky):
    """Step 3 is missing, and the hash of step 4 follows from it."""
    centre = flaky([message for message in usual.messages if message["step"] != 3])
    with pytest.raises(ReleaseRefused, match="step 4 of stream 'main' does not follow from step 2: releases between"):
        list(follow(centre.url, "main", usual.estimator()))


@pytest.mark.parametrize(
    ("release", "message"),
    [({"step": "x"}, "step must be a whole number"), ({"step": 1, "stream": "other"}, "of another stream")],
)
def test_a_malformed_release_ends_the_following(usual, flaky, release, message):
    centre = flaky(usual.messages, changed={1: release})
    with pytest.raises(ReleaseRefused, match=message):
        list(follow(centre.url, "main", usual.estimator()))


def test_an_unknown_stream_or_address_is_reported(usual, flaky):
    centre = flaky(usual.messages)
    with pytest.raises(ReleaseRefused, match="answered with status 404; is this the right address"):
        list(follow(centre.url, "nowhere", usual.estimator()))
    with pytest.raises(ReleaseRefused, match="status 404"):
        fetch_estimator(centre.url)
    with pytest.raises(ConnectionError, match="no centre answers at http://127.0.0.1:1 .ConnectError.; is it runn"):
        fetch_estimator("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="url must begin with http"):
        fetch_estimator("127.0.0.1:8765")


def test_the_estimate_command_prints_a_line_for_each_release(usual, flaky):
    remote, centre = usual.estimator(), flaky(usual.messages, per_connection=9)
    arguments = ["estimate", "--from", centre.url, "--estimator", str(usual.path), "--steps", "4"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    expected = [remote.update(message) for message in usual.messages[:4]]
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"stream": "main", "step": each.step, "mean": list(each.mean), "std": list(each.std), "status": each.status}
        for each in expected
    ]


def test_an_endless_line_is_refused(usual, flaky, monkeypatch):
    monkeypatch.setattr(client_module, "_MAX_LINE", 3)
    with pytest.raises(ReleaseRefused, match="must fit a line of 3 bytes"):
        list(follow(flaky(usual.messages).url, "main", usual.estimator()))


class TestUpgradedLedgers:
    """A ledger that goes from design a to design b after step 3; the estimator is of b, then of a."""

    @pytest.fixture
    def messages(self, usual):
        last, messages = bytes(32), []
        for row in usual.rows:
            row = Row.after(last, *row[:-4], ("a" if row.step <= 3 else "b") * 16)
            last = row.hash
            messages.append(row.to_dict())
        return messages

    def of_design(self, usual, letter):
        estimator = usual.estimator()
        estimator._design_id = letter * 16
        return estimator

    def test_releases_of_an_earlier_design_are_left_out(self, usual, flaky, messages):
        told = []
        found = list(follow(flaky(messages).url, "main", self.of_design(usual, "b"), tell=told.append))
        assert [each.step for each in found] == [4, 5, 6]
        assert sum("releases of an earlier design; they are left out" in text for text in told) == 1

    def test_following_ends_with_the_reason_when_the_design_changes(self, usual, flaky, messages):
        found = follow(flaky(messages).url, "main", self.of_design(usual, "a"))
        assert [next(found).step for _ in range(3)] == [1, 2, 3]
        with pytest.raises(DesignChanged, match="was upgraded, fetch its estimator again"):
            next(found)

    def test_the_estimate_command_fetches_the_new_estimator(self, usual, flaky, messages, monkeypatch):
        fetched = iter([self.of_design(usual, "a"), self.of_design(usual, "b")])
        monkeypatch.setattr("dpfuse.remote.follower.fetch_estimator", lambda *_, **__: next(fetched))
        result = CliRunner().invoke(app, ["estimate", "--from", flaky(messages).url])
        assert [json.loads(line)["step"] for line in result.stdout.splitlines()] == [1, 2, 3, 4, 5, 6]
        assert "has another design from step 4 on; fetching its estimator" in result.stderr


def test_an_address_with_a_password_is_refused_and_never_shown():
    with pytest.raises(ValueError, match="no user and no password") as caught:
        client_module.make_client("https://me:secret@host:8765")
    assert "secret" not in str(caught.value)


def test_the_estimate_command_waits_for_a_centre_that_is_not_there_yet(usual, flaky, monkeypatch):
    centre, attempts = flaky(usual.messages, per_connection=9), []

    def get_file(client, path):
        attempts.append(path)
        if len(attempts) < 4:
            raise client_module.TryAgain
        return usual.path.read_bytes()

    monkeypatch.setattr("dpfuse.remote.follower.get_file", get_file)
    arguments = ["estimate", "--from", centre.url, "--steps", "2"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and len(attempts) == 4 and len(result.stdout.splitlines()) == 2
    assert result.stderr.count("waiting for it") == 1  # said once


def test_a_certificate_that_is_not_trusted_is_named_with_the_remedy(tmp_path):
    certificate = certify(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def shake_hands():
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                context.wrap_socket(connection, server_side=True)

        server = threading.Thread(target=shake_hands)
        server.start()
        with pytest.raises(ConnectionError, match="certificate is not trusted: self.signed certificate; .* as --ca"):
            fetch_estimator(f"https://127.0.0.1:{listener.getsockname()[1]}")
        server.join()
