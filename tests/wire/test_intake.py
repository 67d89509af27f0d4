"""The intake: which reports of a transport reach the centre, and when."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from dpfuse.public.replay_notes import ReplayNotes
from dpfuse.wire import intake as intake_module
from dpfuse.wire.intake import Intake
from dpfuse.wire.messages import MAX_BATCH
from dpfuse.wire.tokens import Tokens
from support.wire import SECRET, Recorder, make_report, rig

TOKENS = Tokens(SECRET)


@pytest.fixture
def centre():
    return Recorder()


def test_reports_with_a_valid_token_reach_the_centre_and_the_others_are_refused(centre):
    forged = make_report(TOKENS, 7) | {"token": "7." + "0" * 64}
    messages = [make_report(TOKENS, 7, step=3), forged, None, make_report(TOKENS, 8) | {"values": "fast"}, 5]
    assert Intake(centre, TOKENS).accept(messages) == [1, 2, 4]
    assert centre.got == [("main", 7, 3, [0.5, -0.5])]


@pytest.mark.parametrize("sender", [("main", 8), ("other", 7)])
def test_a_report_that_contradicts_the_sender_named_by_the_transport_is_refused(centre, sender):
    intake = Intake(centre, TOKENS)
    assert intake.accept([make_report(TOKENS, 7)], sender) == [0] and centre.got == []
    assert intake.accept([make_report(TOKENS, 7)], ("main", 7)) == [] and len(centre.got) == 1


def test_a_message_without_a_report_is_refused_only_if_the_transport_names_the_sender(centre):
    message = {"token": TOKENS.issue(7)}
    intake = Intake(centre, TOKENS)
    assert intake.accept([message]) == [] and intake.accept([message], ("main", 7)) == [0]


def test_in_a_replay_reports_to_known_streams_are_counted(centre):
    intake = Intake(centre, TOKENS, ReplayNotes())
    intake.accept([make_report(TOKENS, 7), make_report(TOKENS, 8), make_report(TOKENS, 8, stream="other"), {}])
    assert intake.notes.num_reports == {("main", 1): 2}


def test_other_requests_are_answered_while_a_large_batch_is_taken(tmp_path):
    class Slow(Recorder):
        def receive(self, *report):
            super().receive(*report)
            time.sleep(0.0001)

    with rig(tmp_path, centre=Slow()) as live:
        batch = {"reports": [live.report(sensor) for sensor in range(MAX_BATCH)]}

        async def both():
            transport = httpx.ASGITransport(live.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://centre") as client:
                sending = asyncio.ensure_future(client.post("/v1/reports", json=batch))
                while not live.centre.got:
                    await asyncio.sleep(0)
                assert (await client.get("/v1/clock")).status_code == 200
                num_taken = len(live.centre.got)
                assert (await sending).status_code == 202
                return num_taken

        assert 0 < asyncio.run(both()) < MAX_BATCH


@pytest.mark.parametrize(("due_in_s", "waits_s"), [(0.002, 0.005), (0.0, 0.003), (0.004, 0), (0.19, 0)])
def test_no_report_is_taken_around_the_moment_of_a_release(tmp_path, monkeypatch, due_in_s, waits_s):
    """The intake waits for the release before it parses the body, and before each part of a batch."""
    waited = []

    async def sleep(seconds):
        waited.append((pytest.approx(seconds), len(live.centre.got)))

    closes_in_s = (due_in_s - 0.1) % 0.2
    monkeypatch.setattr(intake_module.asyncio, "sleep", sleep)
    with rig(tmp_path, centre=Recorder()) as live:
        live.watch.clock = lambda: {"closes_in_s": closes_in_s, "delay_s": 0.1, "interval_s": 0.2}
        live.send(*(live.report(sensor) for sensor in range(intake_module._PART_SIZE + 1)))
    assert waited == [(waits_s, 0), (waits_s, 0), (waits_s, intake_module._PART_SIZE)]
