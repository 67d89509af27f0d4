"""The intake: which reports of a transport reach the centre, and when."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.public.replay_notes import ReplayNotes
from dpfuse.wire import intake as intake_module
from dpfuse.wire.intake import Intake
from dpfuse.wire.keys import Keys
from support.wire import SECRET, Recorder, lines_of, make_report, rig

KEYS = Keys.from_secret(SECRET)


def lines(*messages):
    return [json.dumps(message).encode() for message in messages]


@pytest.fixture
def centre():
    return Recorder()


def test_reports_with_a_valid_mac_reach_the_centre_and_the_others_are_refused(centre):
    forged = make_report(KEYS, 7) | {"mac": "0" * 32}
    messages = [make_report(KEYS, 7, step=3), forged, None, make_report(KEYS, 8) | {"values": "fast"}, 5]
    assert Intake(centre, KEYS).accept(lines(*messages)) == [1, 2, 3, 4]
    assert centre.got == [("main", 7, 3, [0.5, -0.5])]


@pytest.mark.parametrize("sender", [("main", "8.1.0"), ("other", "7.1.0"), ("main", "7.1.1")])
def test_a_report_that_contradicts_the_sender_named_by_the_transport_is_refused(centre, sender):
    intake = Intake(centre, KEYS)
    assert intake.accept(lines(make_report(KEYS, 7)), sender) == [0] and centre.got == []
    assert intake.accept(lines(make_report(KEYS, 7)), ("main", "7.1.0")) == [] and len(centre.got) == 1


def test_in_a_replay_reports_to_known_streams_are_counted(centre):
    intake = Intake(centre, KEYS, ReplayNotes())
    intake.accept(lines(make_report(KEYS, 7), make_report(KEYS, 8), make_report(KEYS, 8, stream="other"), {}))
    assert intake.notes.num_reports == {("main", 1): 2}


def test_reports_inputs_and_refused_lines_are_counted_apart_and_all_bytes_together(centre):
    """For the operator; in a replay only reports are counted by step."""
    intake = Intake(centre, KEYS, ReplayNotes())
    reports = lines(make_report(KEYS, 7), make_report(KEYS, 8) | {"mac": "0" * 32})
    inputs = lines(KEYS.issue_publisher(1).sign("main", 1, [0.5]))
    assert (intake.accept(reports), intake.accept_inputs(inputs)) == ([1], [])
    num_bytes = sum(map(len, reports + inputs))
    assert intake.counts == {"taken": 1, "inputs": 1, "wrong MAC": 1, "bytes": num_bytes}
    assert intake.notes.num_reports == {("main", 1): 1}


@given(st.lists(st.integers(0, 4097) | st.integers(0, 200), max_size=500))
def test_a_part_has_a_bounded_number_of_lines_and_bytes(lengths):
    """A line of 4 KB with a wrong MAC takes about twenty times as long as a report of a sensor."""
    lines = [b"x" * length for length in lengths]
    parts = list(intake_module.split_parts(lines))
    assert [line for part in parts for line in part] == lines
    for part in parts:
        assert 0 < len(part) <= 100 and sum(map(len, part[:-1])) < 2**15
    for part in parts[:-1]:  # and no part ends early
        assert len(part) == 100 or sum(map(len, part)) >= 2**15


def test_other_requests_are_answered_while_a_large_batch_is_taken(tmp_path):
    class Slow(Recorder):
        def receive(self, *report):
            super().receive(*report)
            time.sleep(0.0001)

    with rig(tmp_path, centre=Slow()) as live:
        num_reports = 2000
        batch = lines_of(*(live.report(sensor) for sensor in range(num_reports)))

        async def both():
            transport = httpx.ASGITransport(live.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://centre") as client:
                sending = asyncio.ensure_future(client.post("/v1/reports", **batch))
                while not live.centre.got:
                    await asyncio.sleep(0)
                assert (await client.get("/v1/clock")).status_code == 200
                num_taken = len(live.centre.got)
                assert (await sending).status_code == 202
                return num_taken

        assert 0 < asyncio.run(both()) < num_reports


@pytest.mark.parametrize(("due_in_s", "waits_s"), [(0.002, 0.005), (0.0, 0.003), (0.004, 0), (0.19, 0)])
def test_no_report_is_taken_around_the_moment_of_a_release(tmp_path, monkeypatch, due_in_s, waits_s):
    """The intake waits for the release before it parses each part of a batch."""
    waited = []

    async def sleep(seconds):
        waited.append((pytest.approx(seconds), len(live.centre.got)))

    closes_in_s = (due_in_s - 0.1) % 0.2
    monkeypatch.setattr(intake_module.asyncio, "sleep", sleep)
    with rig(tmp_path, centre=Recorder()) as live:
        live.watch.clock = lambda: {"closes_in_s": closes_in_s, "delay_s": 0.1, "interval_s": 0.2}
        live.send(*(live.report(sensor) for sensor in range(intake_module._PART_SIZE + 1)))
    assert waited == [(waits_s, 0), (waits_s, intake_module._PART_SIZE)]
