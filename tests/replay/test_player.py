"""The replay: a report for every sensor and step, at the pace of the centre's clock, through outages."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from dpfuse.centre.held_inputs import HeldInputs
from dpfuse.public_inputs import NEVER
from dpfuse.remote.client import make_client
from dpfuse.replay import player as player_module
from dpfuse.replay.scenes import SceneSequence
from dpfuse.wire.keys import Keys
from support.replay import INTERVAL_S, SECRET, Listener, play, scenes


def on_time(centre):
    """The number of reports in time, by step and sensor."""
    found = Counter()
    for now, report in centre.reports:
        if report["step"] in (now, now + 1):
            found[report["step"], int(report["key"].partition(".")[0])] += 1
    return found


def test_every_sensor_reports_once_a_step_with_its_own_key(listen):
    centre = listen()
    tally, told = play(centre, 0.6)
    assert not told and tally.speed == pytest.approx(1.0)
    assert tally.num_reports == 3 * tally.num_steps == len(centre.reports)
    by_step = {}
    for _, report in centre.reports:
        sensor, step = int(report["key"].partition(".")[0]), report["step"]
        number = centre.truth[step][0]
        assert report["values"] == [sensor + 0.5, number] and report["stream"] == "main"
        by_step.setdefault(step, []).append(sensor)
    for step, sensors in by_step.items():
        assert sensors == [7, 8, 100 + int(centre.truth[step][0]) // 10]
    # Each step has its own scene.
    assert sorted(centre.truth) == list(range(1, 14)) and {step - n for step, (n,) in centre.truth.items()} == {1}
    assert sum(on_time(centre).values()) == len(centre.reports)


def test_a_pause_of_the_player_skips_scenes_and_shifts_none(listen, clock):
    """As on a busy machine: the player stops for four steps in the middle of one."""
    centre = listen()
    clock.plans = [(clock.now + 0.22, lambda: clock.sleep(0.2))]
    tally, _ = play(centre, 0.6)
    assert set(range(1, 14)) - set(centre.truth) == {7, 8}
    assert {step - n for step, (n,) in centre.truth.items()} == {1} and tally.num_reports == 3 * tally.num_steps


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_a_step_holds_the_public_inputs_of_its_own_scene(listen, clock, speed):
    """Published in the step before; also after the player has stopped, or after a publication is lost."""

    def with_inputs():
        for number, scene in enumerate(scenes()):
            yield scene._replace(inputs=(np.array([number // 4, np.nan]), np.array([number % 4, NEVER])))

    centre, held = listen(), HeldInputs(1, [0.0, 0.0], [1000.0, 1.0])
    clock.plans = [(clock.now + 0.22, lambda: clock.sleep(0.2))]
    play(centre, 1.2, with_inputs(), speed=speed)
    num_checked = 0
    for step in range(2, max(centre.truth) + 1):
        news = [message for now, message in centre.inputs if now == step - 1 and now % 5]  # the others are lost
        for message in news:
            assert message["key"] == "p0.1.0" and message["stream"] == "main"
            values = [np.nan if value is None else value for value in message["values"]]
            held.give(0, message["step"], values, usable_from=step)
        value, missing, age, _ = held.at(step)[0]
        if news and step in centre.truth:
            number, num_checked = int(centre.truth[step][0]), num_checked + 1
            assert (value, age) == (number // 4, number % 4 // speed) and np.isnan(missing)
    assert num_checked > 10


def test_the_replay_continues_after_a_restart_of_the_centre(listen, clock, monkeypatch):
    monkeypatch.setattr(player_module, "_LONGEST_PAUSE_S", 0.1)
    first, later = listen(), []
    clock.plans = [
        (clock.now + 0.31, first.close),
        (clock.now + 0.56, lambda: later.append(listen(first.server_port, first_step=7))),
    ]
    tally, told = play(first, 1.2)
    [second] = later
    assert tally.num_outages == 1 and "is away" in told[0] and "is back" in told[-1] and len(told) == 2
    assert len(second.reports) >= 6
    # The scenes of the outage have passed.
    assert min(number for (number,) in second.truth.values()) >= max(n for (n,) in first.truth.values()) + 4


def test_the_scenes_of_an_outage_are_not_kept():
    most = [0]

    def watched():
        for scene in itertools.islice(scenes(), 1012):
            most[0] = max(most[0], len(player._ahead))
            yield scene

    with make_client("http://127.0.0.1:1") as client:
        player = player_module.Replay(client, SceneSequence(watched(), INTERVAL_S), Keys.from_secret(SECRET))
        numbers = [player._advance(2), player._look_ahead(3), player._advance(1), player._advance(1000)]
        numbers += [player._look_ahead(2), player._advance(5), player._advance(3), player._advance(4)]
    assert [one and int(one.state[0]) for one in numbers] == [1, 4, 2, 1002, 1004, 1007, 1010, None]
    assert most[0] < 4


def test_the_replay_ends_when_a_finite_design_is_over(listen, monkeypatch):
    monkeypatch.setattr(player_module, "_READ_CLOCK_EVERY_S", 0.1)
    tally, _ = play(listen(horizon=8), None)
    assert 8 <= tally.step <= 10  # it reads the clock every other step


def test_a_higher_speed_leaves_out_scenes(listen):
    centre = listen()
    tally, _ = play(centre, 0.4, speed=2.0)
    steps = sorted(centre.truth)
    assert tally.speed == 2.0
    assert all(
        centre.truth[b][0] - centre.truth[a][0] == 2 * (b - a) for a, b in itertools.pairwise(steps) if b == a + 1
    )


def test_a_speed_that_does_not_fit_the_clock_of_the_centre_is_refused(listen):
    with pytest.raises(ValueError, match="speed must be a multiple of 1 for a centre with steps of 0.05 s, got 1.5"):
        play(listen(), 9.0, speed=1.5)


def test_keys_of_another_key_file_are_reported(listen):
    with pytest.raises(PermissionError, match="refuses these messages; is this its key file"):
        play(listen(secret=bytes(32)), 9.0)


def test_an_address_without_a_centre_is_reported(listen, monkeypatch):
    monkeypatch.setattr(Listener, "clock", lambda _: {"detail": "not found"})
    with pytest.raises(ConnectionError, match="has no clock .status 200.; is it a centre?"):
        play(listen(), 9.0)


def test_a_centre_without_replay_gets_no_truth(listen):
    centre = listen(is_replay=False)
    _, told = play(centre, 0.6)
    assert told == ["the centre does not take the truth: it runs without --replay"]
    assert len(centre.truth) == 1 and centre.reports
