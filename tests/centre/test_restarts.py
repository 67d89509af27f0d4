"""A centre that is opened again continues with the same weights, estimates and accounts; memories of sensors."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import dpfuse
from dpfuse.centre import rebuild as centre_module
from dpfuse.privacy.budget import TotalFilter
from support.centres import STREAMS, held_releases, public_part, reports
from support.designs import make_design
from support.ledger_files import edit


class TestRestarts:
    def run(self, open_centre, design, name, stops):
        """Ten steps, one of them skipped, with a restart after each step in `stops`; reports come every third step."""
        centre, published = open_centre(design, name, STREAMS), []
        sent = reports(num_steps=10)
        with held_releases():
            for step in range(10):
                if step % 3 == 0:
                    for sensor, values in enumerate(sent[step].tolist()):
                        centre.receive("south", sensor, centre.now, values)
                if step == 4:
                    centre.skip()
                else:
                    published.append([public_part(one) for one in centre.tick()])
                if step in stops:
                    centre.close()
                    centre = open_centre(design, name)
        return published, centre

    def asked(self, centre):
        """What the sensors will be asked next, to the last bit."""
        return [np.asarray(part).tobytes() for part in jax.tree.leaves(centre._carry.query)]

    def test_weights_and_estimates_are_the_same_to_the_bit_after_restarts(self, design, open_centre):
        plain, unstopped = self.run(open_centre, design, "plain.db", stops=())
        stopped, centre = self.run(open_centre, design, "stopped.db", stops=(0, 3, 6, 9))
        assert stopped == plain  # weights and estimates to the last bit, given the same releases
        assert self.asked(centre) == self.asked(unstopped) and len(self.asked(centre)) == 2
        assert centre.now == 11

    def test_a_skipped_step_counts_after_a_restart_too(self, design, open_centre):
        plain, _ = self.run(open_centre, design, "plain.db", stops=())
        stopped, _ = self.run(open_centre, design, "stopped.db", stops=(5,))
        assert stopped == plain
        centre = open_centre(design, "other.db")
        with held_releases():
            first = [public_part(centre.tick()[0]) for _ in range(5)]
        assert first[4][0] != plain[4][0][0]  # without the gap the weight is another one

    @pytest.fixture
    def followed(self, monkeypatch):
        """The steps that were followed once more."""
        steps, own = [], dpfuse.ExactStep.follow

        def follow(step, carry, *released):
            steps.append(carry.num_steps + 1)
            return own(step, carry, *released)

        monkeypatch.setattr(dpfuse.ExactStep, "follow", follow)
        return steps

    @pytest.mark.parametrize("num_steps", [1, 150, 200])
    def test_a_design_without_an_end_reads_its_last_steps_again(
        self, individual, open_centre, monkeypatch, followed, num_steps
    ):
        """Up to there it is the same to the last bit; past it, what is forgotten had faded."""
        monkeypatch.setattr(centre_module, "_REBUILT_STEPS", 150)
        plain, stopped = open_centre(individual, "plain.db", STREAMS), open_centre(individual, "stopped.db", STREAMS)
        with held_releases():
            for _ in range(num_steps):
                plain.tick()
            expected = [public_part(one) for one in plain.tick()]
        with held_releases():
            for _ in range(num_steps):
                stopped.tick()
            stopped.close()
            stopped = open_centre(individual, "stopped.db")
            assert followed == list(range(max(1, num_steps - 149), num_steps + 1)) and stopped.now == num_steps + 1
            found = [public_part(one) for one in stopped.tick()]
        if num_steps <= 150:
            assert found == expected
        for one, two in zip(found, expected, strict=True):
            assert one[0] == pytest.approx(two[0], rel=1e-3)
            np.testing.assert_allclose(one[2:], two[2:], rtol=1e-3)

    @pytest.mark.parametrize(
        "change", [None, "UPDATE memories SET content = x'00'", "UPDATE memories SET step = step - 1"]
    )
    def test_a_stored_memory_gives_the_same_to_the_bit_and_a_changed_one_is_not_used(
        self, design, open_centre, monkeypatch, followed, change
    ):
        """What g and E remember is stored every fourth step; the page wants the last three."""
        monkeypatch.setattr(centre_module, "_MEMORY_STEPS", 4)
        monkeypatch.setattr(centre_module, "num_in_memory", lambda num_streams: 3)
        plain, stopped = open_centre(design, "plain.db", STREAMS), open_centre(design, "stopped.db", STREAMS)
        with held_releases():
            expected = [[public_part(one) for one in plain.tick()] for _ in range(15)]
        with held_releases():
            for _ in range(14):
                stopped.tick()
                stopped.maintain()
            stopped.close()
            if change is not None:
                edit(stopped._ledger.path, change)
            stopped = open_centre(design, "stopped.db")
            assert followed == list(range(9 if change is None else 1, 15))
            assert [public_part(one) for one in stopped.tick()] == expected[-1]
        past = [expected[step][place] for step in (11, 12, 13) for place in range(len(STREAMS))]
        assert [public_part(one) for one in stopped.past] == past

    def test_a_finite_design_reads_all_its_steps_again(self, open_centre, monkeypatch, followed):
        monkeypatch.setattr(centre_module, "_REBUILT_STEPS", 3)
        design = make_design(horizon=10)
        centre = open_centre(design)
        for _ in range(8):
            centre.tick()
        centre.close()
        assert open_centre(design).now == 9 and followed == list(range(1, 9))

    def test_steps_skipped_before_a_restart_are_repeated_and_cost_nothing(self, design, open_centre):
        def books(centre):
            accounts = centre._ledger.accounts("main")
            spent = accounts.spent if isinstance(accounts, TotalFilter) else accounts.accounts()
            return spent, list(centre._ledger.rows("main"))

        centre = open_centre(design)
        centre.step({3: [0.5, 0.5]})
        before = books(centre)
        for _ in range(4):
            centre.receive("main", 3, centre.now, [0.5, 0.5])
            centre.skip()
        assert centre.now == 6
        centre.close()
        again = open_centre(design)
        assert again.now == 2 and before[0] and books(again) == before
        with held_releases() as steps:
            assert again.tick()[0].row.step == 2
        assert steps == [{}]

    def test_accounts_survive_a_restart_and_memories_do_not(self, individual, open_centre):
        centre = open_centre(individual)
        sent = reports(num_steps=3)
        for step in sent[:2].tolist():
            centre.step(dict(enumerate(step)))
        spent = centre._ledger.accounts("main").accounts()
        assert set(spent) == set(range(5))
        centre.close()
        again = open_centre(individual)
        assert again._ledger.accounts("main").accounts() == spent
        with held_releases() as steps:
            again.receive("main", 0, 3, sent[2, 0].tolist())
            again.receive("main", 99, 3, sent[2, 0].tolist())  # a newcomer with the same to say
            again.tick()
        assert steps[0][0, 0] == steps[0][0, 99]


class TestMemory:
    def rows_after_a_silence(self, individual, open_centre, silence, forget_after=3):
        centre = open_centre(individual, f"{silence}.db", forget_after=forget_after)
        with held_releases() as steps:
            centre.step({5: [0.9, -0.9]})
            for _ in range(silence):
                centre.skip() if silence % 2 else centre.tick()
            centre.step({5: [0.1, 0.2], 6: [0.1, 0.2]})
        return steps[-1][0, 5], steps[-1][0, 6]

    @pytest.mark.parametrize(("silence", "is_remembered"), [(0, True), (1, True), (2, True), (3, True), (4, False)])
    def test_a_silent_sensor_is_remembered_for_a_while(self, individual, open_centre, silence, is_remembered):
        known, newcomer = self.rows_after_a_silence(individual, open_centre, silence)
        assert (known != newcomer) == is_remembered

    def test_memory_is_kept_for_each_sensor_and_stream(self, individual, open_centre):
        centre = open_centre(individual, streams=STREAMS)
        with held_releases() as steps:
            centre.step({5: [0.9, -0.9]}, stream="north")
            for stream in STREAMS:
                centre.receive(stream, 5, 2, [0.1, 0.2])
            centre.tick()
        north, south, west = (steps[1][number, 5] for number in range(3))
        assert north != south and any(south) and any(west)

    def test_maintain_makes_room_so_that_the_next_step_need_not(self, individual, open_centre):
        """Nothing that grows with those who came does so in the step that they come in."""
        centre = open_centre(individual)

        def report(ids):
            centre.receive_many(np.zeros_like(ids), ids, centre.now, np.full((len(ids), 2), 0.5))
            centre.tick()

        def rooms():
            memory, accounts, balances = centre._carry.memory, centre._carry.accounts, centre._ledger._balances
            keyed = memory._sensors, accounts._accounts, balances._accounts
            return [array for each in keyed for array in (*each._arrays.values(), each._keys, each._slots)]

        report(np.arange(60))
        before = rooms()
        centre.maintain()
        after = rooms()
        assert not any(new is old for new, old in zip(after, before, strict=True))  # there was not enough
        report(np.arange(60 + 16))
        assert all(new is old for new, old in zip(rooms(), after, strict=True))
