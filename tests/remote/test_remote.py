"""The remote estimator: the centre's own numbers from E's file and the releases alone, whatever comes in."""

from __future__ import annotations

import copy
import json
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import equinox as eqx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import dpfuse
from dpfuse.cli import app
from dpfuse.errors import FileRefused, ReleaseRefused
from dpfuse.privacy.release import Release
from dpfuse.public.rows import Row, release_message, to_bytes
from dpfuse.remote import client as client_module
from dpfuse.remote import follower as follower_module
from dpfuse.remote.follower import fetch_estimator, follow
from support.designs import SOME_CASES, make_design, with_networks

NUM_STEPS = 6


def releases_of(design, num_steps=NUM_STEPS, skipped=(), seed=0):
    """The rows that a centre with a ledger in memory publishes, and its own estimates."""
    rng = np.random.default_rng(seed)
    step = dpfuse.ExactStep(design, num_rows=4)
    carry, last = step.init(), bytes(32)
    rows, estimates = [], []
    for number in range(1, num_steps + 1):
        if number in skipped:
            nothing = Release(np.zeros(design.structure.dimension, np.int64), 0, None)
            carry, _ = step.estimate(carry, nothing)
            continue
        carry, charged = step.contribute(carry, np.arange(4), rng.uniform(-1, 1, (4, design.structure.num_channels)))
        released = step.release(charged)
        carry, (mean, std) = step.estimate(carry, released)
        left, cost = released.budget_left, None if released.budget_left is None else 7
        row = Row.after(last, "main", number, to_bytes(released), int(released.fusion_weight), cost, left)
        last = row.hash
        rows.append(row)
        estimates.append((np.asarray(mean)[0], np.asarray(std)[0]))
    return rows, estimates


class Usual:
    """A design, what it released and what the centre made of it: compiled once for all tests."""

    def __init__(self, design, folder, **options):
        self.rows, self.estimates = releases_of(design, **options)
        self.messages = [json.loads(release_message(row)) for row in self.rows]
        self.path = folder / "e.estimator"
        design.export_estimator(self.path)
        self._estimator = dpfuse.RemoteEstimator.load(self.path)

    def estimator(self):
        """One that has read nothing."""
        fresh = copy.copy(self._estimator)
        fresh._streams = {}
        return fresh


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return Usual(make_design(spread=0.5), tmp_path_factory.mktemp("usual"))


@pytest.fixture(scope="module")
def gappy(tmp_path_factory):
    """Without an end, and three steps skipped."""
    design = make_design("individual", horizon=None, spread=0.5)
    return Usual(design, tmp_path_factory.mktemp("gappy"), skipped=(1, 3, 4))


def arrays_in(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class TestFile:
    @pytest.mark.parametrize("options", [{}, {"accounting": "individual", "horizon": None}, {"spending": "constant"}])
    def test_nothing_of_f_and_g_is_in_it(self, tmp_path, options):
        design = make_design(spread=0.3, **options)
        design.export_estimator(tmp_path / "a")
        names = {name.removesuffix(".npy") for name in arrays_in(tmp_path / "a")} - {"metadata.json"}
        assert {name.split(".")[0] for name in names} == {"estimator", "squared_radius", "state_mean", "state_std"}
        text = arrays_in(tmp_path / "a")["metadata.json"].decode()
        assert "filter" not in text and "fusion" not in text and "stay" not in text

    def test_other_f_and_g_change_no_byte(self, tmp_path):
        design = make_design(spread=0.3)
        other = with_networks(design.policy, lambda leaf, rng: leaf + rng.normal(size=leaf.shape), seed=1)
        same_e = eqx.tree_at(lambda p: p.networks.estimator, other, design.policy.networks.estimator)
        wider = eqx.tree_at(
            lambda p: p.constants.measurement_high, same_e, 5 * design.policy.constants.measurement_high
        )
        for name, policy in [("a", design.policy), ("b", same_e), ("c", wider), ("d", other)]:
            replace(design, policy=policy).export_estimator(tmp_path / name)
        a, b, c, d = ((tmp_path / name).read_bytes() for name in "abcd")
        assert a == b == c
        assert a != d  # negative control: another E is another file

    def test_a_design_is_no_estimator_and_an_estimator_no_design(self, tmp_path):
        design = make_design()
        design.save(tmp_path / "design")
        design.export_estimator(tmp_path / "estimator")
        with pytest.raises(FileRefused, match="must hold a estimator"):
            dpfuse.RemoteEstimator.load(tmp_path / "design")
        with pytest.raises(FileRefused, match="must hold a design"):
            dpfuse.load(tmp_path / "estimator")

    def test_the_floor_has_none(self, tmp_path):
        with pytest.raises(ValueError, match="must have a guarantee to be released"):
            make_design(features="unbounded", spending="constant").export_estimator(tmp_path / "a")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 1}, "has estimator version 1, this is 2; export it again"),
            ({"structure": {}}, "is not an estimator that this version can read"),
            ({"fingerprint": "0" * 64}, "its fingerprint does not match"),
        ],
    )
    def test_a_file_that_was_edited(self, tmp_path, change, message):
        make_design().export_estimator(tmp_path / "a")
        entries = arrays_in(tmp_path / "a")
        entries["metadata.json"] = json.dumps(json.loads(entries["metadata.json"]) | change)
        with zipfile.ZipFile(tmp_path / "a", "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, content)
        with pytest.raises(FileRefused, match=message):
            dpfuse.RemoteEstimator.load(tmp_path / "a")


def assert_close(estimate, expected):
    np.testing.assert_allclose([estimate.mean, estimate.std], expected, rtol=1e-5)


class TestNumbers:
    @pytest.mark.parametrize("case", SOME_CASES, ids="-".join)
    def test_they_are_the_centres_own(self, designs, tmp_path, case):
        run = Usual(designs[case], tmp_path)
        remote = run.estimator()
        for message, expected in zip(run.messages, run.estimates, strict=True):
            estimate = remote.update(message)
            assert (estimate.stream, estimate.step) == ("main", message["step"])
            assert_close(estimate, expected)

    def test_a_skipped_step_counts_as_no_news(self, gappy):
        assert [message["step"] for message in gappy.messages] == [2, 5, 6]
        remote = gappy.estimator()
        for message, expected in zip(gappy.messages, gappy.estimates, strict=True):
            estimate = remote.update(message)
            assert_close(estimate, expected)
            assert estimate.is_chained == (message["step"] != 2)
        # Negative control: had nothing been skipped, the estimate would be another.
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            assert_close(gappy.estimator().update(gappy.messages[0] | {"step": 1}), gappy.estimates[0])

    def test_a_live_centre_finds_the_same(self, gappy, tmp_path):
        """Through its ledger, with skipped ticks, and after a restart."""
        design, remote, rng = (
            make_design("individual", horizon=None, spread=0.5),
            gappy.estimator(),
            np.random.default_rng(0),
        )
        for number in range(8):
            if number in (0, 5):
                centre = dpfuse.FusionCentre(design, tmp_path / "l.db", create=number == 0)
            if number in (2, 3, 6):
                centre.skip()
            else:
                row, mean, std = centre.step({sensor: rng.uniform(-1, 1, 2) for sensor in range(3)})
                assert_close(remote.update(json.loads(release_message(row))), (mean, std))
            if number in (4, 7):
                centre.close()
        assert remote.last_step("main") == 8

    def test_a_row_and_its_message_give_the_same_estimate(self, usual):
        """The message holds the fields of `Row.to_dict()`, with the same names and units."""
        for message, row in zip(usual.messages, usual.rows, strict=True):
            assert message == row.to_dict()
        by_row, by_message = usual.estimator(), usual.estimator()
        for message, row in zip(usual.messages, usual.rows, strict=True):
            assert by_row.update(row.to_dict()) == by_message.update(message) is not None

    def test_streams_do_not_meet(self, usual):
        alone, mixed = usual.estimator(), usual.estimator()
        for message in usual.messages:
            assert mixed.update(message) == alone.update(message)
            if message["step"] == 1:
                assert mixed.update(message | {"stream": "north"}).stream == "north"
        assert (mixed.last_step("main"), mixed.last_step("north"), mixed.last_step("south")) == (NUM_STEPS, 1, 0)

    def test_nothing_is_compiled_anew_after_the_first_releases(self, gappy, num_traces):
        for message in gappy.messages:
            gappy.estimator().update(message)
        remote, before = gappy.estimator(), num_traces()
        for message in gappy.messages:
            remote.update(message)
        assert num_traces() == before


class TestWhatComesIn:
    def test_duplicates_are_ignored(self, usual):
        remote, once, messages = usual.estimator(), usual.estimator(), usual.messages
        twice = [remote.update(message) for message in [*messages[:3], *messages[:3], *messages[3:]]]
        assert twice[3:6] == [None] * 3
        assert [one for one in twice if one] == [once.update(message) for message in messages]

    def test_a_step_released_twice_with_other_noise_is_reported(self, usual):
        remote = usual.estimator()
        for message in usual.messages[:3]:
            remote.update(message)
        other = Row.after(bytes(32), "main", 2, bytes(16), 5, 7, 7)
        with pytest.raises(ReleaseRefused, match="step 2 of stream 'main' was released twice, with different contents"):
            remote.update(json.loads(release_message(other)))

    def test_a_changed_release_does_not_follow(self, usual):
        remote = usual.estimator()
        remote.update(usual.messages[0])
        second = usual.messages[1]
        with pytest.raises(ReleaseRefused, match="step 2 of stream 'main' does not follow from step 1"):
            remote.update(second | {"release": [second["release"][0] + 1, second["release"][1]]})
        assert remote.update(second).is_chained  # the refused one left no trace

    def test_missing_releases_are_told(self, usual):
        remote = usual.estimator()
        assert [remote.update(usual.messages[at]).is_chained for at in (0, 1, 4, 5)] == [False, True, False, True]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"stream": None}, "stream must be a name"),
            ({"stream": "x" * 2000}, "stream must be a name"),
            ({"step": 0}, "step must be a whole number from 1 to 6"),
            ({"step": 7}, "step must be a whole number from 1 to 6"),
            ({"step": True}, "step must be a whole number"),
            ({"step": "1"}, "step must be a whole number"),
            ({"release": [1]}, "release must be 2 whole numbers of 64 bits"),
            ({"release": [1, 2.5]}, "release must be 2 whole numbers"),
            ({"release": [1, 2**63]}, "release must be 2 whole numbers"),
            ({"release": "12"}, "release must be 2 whole numbers"),
            ({"fusion_weight": -1}, "fusion_weight must be a whole number"),
            ({"fusion_weight": float("nan")}, "fusion_weight must be a whole number"),
            ({"fusion_weight": 10**400}, "fusion_weight must be a whole number"),
            ({"grid": 1}, "grid must be 1048576"),
            ({"cost": -3}, "cost and budget_left must be whole numbers"),
            ({"budget_left": "much"}, "cost and budget_left must be whole numbers"),
            ({"hash": "ab"}, "hash must be 64 hexadecimal digits"),
            ({"hash": 5}, "hash must be 64 hexadecimal digits"),
        ],
    )
    def test_what_is_no_release_is_refused(self, usual, change, message):
        remote = usual.estimator()
        with pytest.raises(ReleaseRefused, match=message):
            remote.update(usual.messages[0] | change)
        assert remote.last_step("main") == 0
        assert remote.update(usual.messages[0]) is not None

    def test_a_step_out_of_all_reach_takes_no_longer_than_a_night_without_news(self, gappy):
        began = time.process_time()
        far = gappy.estimator().update(gappy.messages[0] | {"step": 2**62})
        assert time.process_time() - began < 30  # the processor's, whatever else it does
        # By then E is at rest: another day makes no difference.
        longer = gappy.estimator().update(gappy.messages[0] | {"step": 90_000})
        assert_close(longer, (far.mean, far.std))

    def test_anything_else_is_refused_too(self, usual):
        remote, names = usual.estimator(), ("step", "release", "fusion_weight", "hash")

        @given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=9), st.lists))
        def refuses(value):
            for release in [value, *(usual.messages[0] | {name: value} for name in names)]:
                with pytest.raises(ReleaseRefused):
                    remote.update(release)

        refuses()


class FlakyCentre(ThreadingHTTPServer):
    """Serves releases and does everything wrong that a network can: cuts, gaps, repeats, and an hour of 503."""

    daemon_threads = True

    def __init__(self, messages, *, per_connection=2, left_out=(), failures=0, changed=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.messages, self.per_connection, self.left_out = messages, per_connection, set(left_out)
        self.failures, self.changed = failures, changed or {}
        self.last_event_ids = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        path = urlsplit(self.path)
        start = int(parse_qs(path.query).get("start", ["1"])[0])
        centre = self.server
        known = [message for message in centre.messages if message["step"] >= start]
        if centre.failures:
            centre.failures -= 1
            self.answer(b"{}", 503)
        elif path.path == "/v1/streams/main/releases/events":
            centre.last_event_ids.append(int(self.headers["last-event-id"]))
            again = [message for message in centre.messages if message["step"] == start - 1]
            sent = [
                message
                for message in [*again, *known][: centre.per_connection]
                if message["step"] not in centre.left_out
            ]
            sent = [centre.changed.get(message["step"], message) for message in sent]
            frames = [f": running\n\nid: {each['step']}\ndata: {json.dumps(each)}   \n\n" for each in sent]
            self.answer("".join(frames).encode() + b"data", kind="text/event-stream")
        elif path.path == "/v1/streams/main/releases":
            self.answer(json.dumps({"releases": known[:2]}).encode())
        elif path.path == "/v1/clock":
            is_over = centre.last_event_ids[-1:] == [centre.messages[-1]["step"]]
            self.answer(json.dumps({"is_over": is_over}).encode())
        else:
            self.answer(b"{}", 404)

    def answer(self, content, status=200, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def flaky(monkeypatch):
    centres = []
    monkeypatch.setattr(follower_module, "_FIRST_PAUSE_S", 0.01)

    def start(*arguments, **options):
        centres.append(centre := FlakyCentre(*arguments, **options))
        threading.Thread(target=centre.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return centre

    yield start
    for centre in centres:
        centre.shutdown()
        centre.server_close()


class TestFollowing:
    def test_nothing_is_lost_and_nothing_is_taken_twice(self, usual, flaky):
        """Cut off after every second event, gaps in the events, repeats, a centre that is away: the same estimates."""
        remote, told = usual.estimator(), []
        centre = flaky(usual.messages, left_out=(2, 5), failures=2, per_connection=3)
        found = list(follow(centre.url, "main", usual.estimator(), tell=told.append))
        assert found == [remote.update(message) for message in usual.messages]
        assert centre.last_event_ids[0] == 0 and centre.last_event_ids[-1] == 6  # it went on where it was
        assert any("is away (TryAgain)" in line for line in told) and any("is back" in line for line in told)

    def test_a_step_that_the_centre_skipped_is_no_gap(self, gappy, flaky):
        found = list(follow(flaky(gappy.messages).url, "main", gappy.estimator()))
        for estimate, expected in zip(found, gappy.estimates, strict=True):
            assert_close(estimate, expected)

    def test_it_begins_where_it_is_told_to(self, usual, flaky):
        centre = flaky(usual.messages, per_connection=9)
        assert [found.step for found in follow(centre.url, "main", usual.estimator(), start=4)] == [4, 5, 6]

    def test_it_goes_on_after_what_was_read(self, usual, flaky):
        remote = usual.estimator()
        for message in usual.messages[:3]:
            remote.update(message)
        centre = flaky(usual.messages, per_connection=9)
        assert [found.step for found in follow(centre.url, "main", remote)] == [4, 5, 6]

    def test_a_past_that_was_changed_is_reported(self, usual, flaky):
        """Step 3 is missing from what the centre has now, though step 4 was chained to it."""
        centre = flaky([message for message in usual.messages if message["step"] != 3])
        with pytest.raises(ReleaseRefused, match="step 4 of stream 'main' does not follow from the release before it"):
            list(follow(centre.url, "main", usual.estimator()))

    @pytest.mark.parametrize(
        ("release", "message"),
        [({"step": "x"}, "step must be a whole number"), ({"step": 1, "stream": "other"}, "of another stream")],
    )
    def test_what_is_no_release_ends_it(self, usual, flaky, release, message):
        centre = flaky(usual.messages, changed={1: release})
        with pytest.raises(ReleaseRefused, match=message):
            list(follow(centre.url, "main", usual.estimator()))

    def test_an_unknown_stream_or_no_centre_at_all(self, usual, flaky):
        centre = flaky(usual.messages)
        with pytest.raises(ReleaseRefused, match="answered with status 404; is this the right address"):
            list(follow(centre.url, "nowhere", usual.estimator()))
        with pytest.raises(ReleaseRefused, match="status 404"):
            fetch_estimator(centre.url)
        with pytest.raises(ConnectionError, match="no centre answers at http://127.0.0.1:1 .ConnectError.; is it runn"):
            fetch_estimator("http://127.0.0.1:1")
        with pytest.raises(ValueError, match="url must begin with http"):
            fetch_estimator("127.0.0.1:8765")

    def test_the_command_prints_a_line_for_each(self, usual, flaky):
        remote, centre = usual.estimator(), flaky(usual.messages, per_connection=9)
        arguments = ["estimate", "--from", centre.url, "--estimator", str(usual.path), "--steps", "4"]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        expected = [remote.update(message) for message in usual.messages[:4]]
        assert [json.loads(line) for line in result.stdout.splitlines()] == [
            {"stream": "main", "step": each.step, "mean": list(each.mean), "std": list(each.std)} for each in expected
        ]

    def test_a_line_without_end_is_refused(self, usual, flaky, monkeypatch):
        monkeypatch.setattr(client_module, "_MAX_LINE", 3)
        with pytest.raises(ReleaseRefused, match="must fit a line of 3 bytes"):
            list(follow(flaky(usual.messages).url, "main", usual.estimator()))
