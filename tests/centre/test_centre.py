"""A live centre step by step: what it publishes, what it charges, and what it never shows."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import dpfuse
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import public_rows
from support.centres import STREAMS, held_releases, public_part, reports
from support.designs import make_design

CANARY, SENT = 7_654_321, 0.123456789


class TestTicks:
    def test_tick_returns_the_committed_rows(self, design, open_centre):
        centre = open_centre(design, streams=STREAMS)
        assert centre.streams == STREAMS and centre.now == 1
        published = [centre.tick() for _ in range(3)]
        assert centre.now == 4
        for number, stream in enumerate(STREAMS):
            rows = [step[number].row for step in published]
            assert list(centre._ledger.rows(stream)) == rows
            assert [row.step for row in rows] == [1, 2, 3]
        for one in published[-1]:
            assert np.isfinite(one.mean).all() and (np.array(one.std) > 0).all()
            assert all(type(number) is float for number in (*one.mean, *one.std))

    def test_step_takes_reports_and_returns_what_to_publish(self, individual, tmp_path):
        with dpfuse.FusionCentre(individual, tmp_path / "new.db", create=True) as centre:
            with held_releases() as steps:
                published = centre.step({3: [0.5, 0.5], 4: (0.1, 0.2), 5: "nothing"})
            assert published.row.stream == "main" and set(steps[0]) == {(0, 3), (0, 4)}
            with pytest.raises(ValueError, match="stream must be one of main, got 'west'"):
                centre.step({}, stream="west")
        with dpfuse.FusionCentre(individual, str(tmp_path / "new.db")) as centre:
            assert centre.now == 2

    def test_a_ledger_is_created_only_on_request_and_once(self, individual, tmp_path, open_centre):
        path = tmp_path / "new.db"
        with pytest.raises(LedgerRefused, match="new.db is missing; put the ledger back, .* create=True"):
            dpfuse.FusionCentre(individual, path)
        assert not list(tmp_path.iterdir())
        dpfuse.FusionCentre(individual, path, create=True).close()
        with pytest.raises(LedgerRefused, match="is there already; open it"):
            dpfuse.FusionCentre(individual, path, create=True)
        with pytest.raises(ValueError, match="create must be False for a ledger that is open"):
            open_centre(individual, create=True)

    def test_a_step_without_reports_looks_like_any_other(self, design, open_centre):
        centre = open_centre(design)
        with held_releases():
            quiet = centre.tick()
        other = open_centre(design, "other.db")
        with held_releases():
            busy = [other.step(dict(enumerate(reports()[0].tolist())))]
        assert public_part(quiet[0]) == public_part(busy[0])  # the releases were held, and nothing else moves these

    def test_a_finite_design_never_starts_again_after_its_end(self, open_centre):
        design = make_design(horizon=3)
        centre = open_centre(design)
        centre.tick()
        centre.skip()
        assert not centre.is_over
        centre.tick()
        assert centre.is_over
        for act in (centre.tick, centre.skip):
            with pytest.raises(ValueError, match="the design ends after 3 releases; it never starts again"):
                act()
        centre.close()
        assert open_centre(design).is_over

    def test_after_the_end_no_report_is_kept(self, open_centre):
        centre = open_centre(make_design(horizon=2))
        for step in (1, 2, 3):
            centre.receive("main", 1, step, [0.5, 0.5])
        assert set(centre._inboxes) == {1, 2}
        centre.tick()
        centre.receive("main", 1, 3, [0.5, 0.5])
        centre.tick()
        for step in (1, 2, 3, 4):
            centre.receive("main", 1, step, [0.5, 0.5])
            centre.receive_many([0], [1], step, [[0.5, 0.5]])
        assert centre.is_over and not centre._inboxes

    def test_a_stationary_design_has_no_end(self, individual, open_centre):
        assert not open_centre(individual).is_over

    def test_a_ledger_that_fails_stops_the_centre(self, design, open_centre):
        centre = open_centre(design)
        centre.tick()
        centre._ledger.close()
        for _ in range(2):
            with pytest.raises(LedgerRefused, match="is closed"):
                centre.tick()

    def test_total_accounting_publishes_the_budget_left(self, open_centre):
        design = make_design("total", horizon=3, spending="constant")
        centre = open_centre(design)
        left = [centre.tick()[0].row.budget_left for _ in range(3)]
        assert left == sorted(left, reverse=True) and 0 <= left[-1] < 0.001 * centre._step.mechanism.budget


class TestAccounts:
    def test_an_id_in_several_streams_pays_for_each_and_never_more_than_its_budget(self, open_centre):
        design = make_design("individual", spread=0.5, horizon=None, expected_stay=2.0, budget=0.5)
        centre, sent = open_centre(design, streams=STREAMS), reports(4, num_steps=12)
        totals, budget = {}, centre._step.mechanism.budget
        with held_releases() as steps:
            for step in sent:
                for stream in STREAMS:
                    for sensor, values in enumerate(step.tolist()):
                        centre.receive(stream, sensor, centre.now, values)
                centre.tick()
        for step in steps:
            for (_, sensor), row in step.items():
                totals[sensor] = totals.get(sensor, 0) + centre._step.mechanism.factor * sum(q * q for q in row)
        assert centre._ledger.accounts("north").accounts() == totals
        assert all(0.9 * budget < total <= budget for total in totals.values())

    def test_one_charge_for_all_streams_is_the_charge_of_each(self, design):
        """`charge_many` against `charge`, stream after stream; ids are in several streams, and accounts run dry."""
        mechanism = dpfuse.ExactStep(design, 1).mechanism
        rng = np.random.default_rng(0)
        is_individual = design.guarantee.accounting == "individual"
        together, apart = (
            mechanism.open_accounts() if is_individual else tuple(mechanism.open_accounts() for _ in STREAMS)
            for _ in range(2)
        )
        for _ in range(30):
            stream, ids = np.sort(rng.integers(0, 3, 20)), rng.integers(-1, 12, 20)
            values, weights = rng.normal(0, 0.4, (20, 2)), rng.uniform(0, 0.5, 3)
            many = mechanism.charge_many(together, weights.tolist(), stream, ids, values)
            for number, one in enumerate(many):
                own = apart if is_individual else apart[number]
                rows = stream == number
                expected = mechanism.charge(own, weights[number], ids[rows], values[rows])
                assert (one.fusion_weight, one.budget_left) == (expected.fusion_weight, expected.budget_left)
                assert one.debits.tolist() == expected.debits.tolist()
                assert one.exact_sum.tolist() == expected.exact_sum.tolist()


def test_nothing_private_is_shown(individual, open_centre, capfd, caplog):
    centre = open_centre(individual)
    shown = []
    for _ in range(3):
        centre.receive("main", CANARY, centre.now, [SENT, -SENT])
        shown.append(repr(centre.tick()))
    before = repr(centre)
    centre.step({sensor: [0.1, 0.1] for sensor in range(10)})
    shown += [before, repr(centre._carry.memory), str(centre), repr(centre._carry.accounts)]
    assert repr(centre) == before.replace("step 4", "step 5")  # nothing about who is there
    centre._ledger.close()
    centre.receive("main", CANARY, centre.now, [SENT, -SENT])
    with pytest.raises(LedgerRefused) as caught:
        centre.tick()
    text = "\n".join([*shown, str(caught.value), *capfd.readouterr(), caplog.text])
    assert str(CANARY) not in text and str(SENT) not in text and "0.1234" not in text
    assert str(SENT) in repr([SENT])  # the search would find it


def test_settings_are_checked(individual, tmp_path):
    with pytest.raises(ValueError, match="forget_after must be at least 0, got -1"):
        dpfuse.FusionCentre(individual, tmp_path / "a.db", forget_after=-1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(LedgerRefused, match="belongs to another design"):
        dpfuse.FusionCentre(individual, tmp_path / "b.db", create=True).close()
        dpfuse.FusionCentre(make_design("individual", seed=1, horizon=None), tmp_path / "b.db")


def test_the_documented_example_runs(individual, tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs/live.md").read_text()
    with contextlib.chdir(tmp_path):
        exec(page.split("```py\n")[1].split("```")[0], {"design": individual})
    assert "'step': 1" in capsys.readouterr().out
    assert [row.step for row in public_rows(tmp_path / "library.db")][:1] == [1]
