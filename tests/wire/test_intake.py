"""One way for reports of every transport: whose it is, what it holds, and who is told."""

from __future__ import annotations

import pytest

from dpfuse.public.replay_notes import ReplayNotes
from dpfuse.wire.intake import Intake
from dpfuse.wire.tokens import Tokens
from support.wire import SECRET, Recorder, make_report

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
