"""What every ledger keeps, whatever it is given; `ledger/test_writer.py` runs these tests."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse import Entry
from dpfuse.errors import BudgetExceeded, DpfuseError, LedgerRefused
from dpfuse.guarantee import Guarantee
from dpfuse.privacy import Noise

STREAMS = ("north", "south")
IDS = np.array([7, 2**63 - 1, 0, -1])


def make_ledger_design(accounting="total", budget=0.01, horizon=None, fingerprint="a" * 64, num_public=0):
    """The parts of a design that a ledger reads."""
    guarantee = Guarantee(order=2.0, budget=budget, adjacency="remove-one", accounting=accounting)
    structure = SimpleNamespace(features="ball", dimension=2, horizon=horizon, num_public=num_public)
    return SimpleNamespace(guarantee=guarantee, structure=structure, fingerprint=fingerprint)


def charge(ledger, stream="north", weight=0.01, ids=IDS):
    """A step charged to the ledger's own accounts; each sensor adds (weight, 0)."""
    values = np.zeros((len(ids), 2))
    values[:, 0] = 1.0 if ledger.terms.is_total else weight
    return ledger.terms.mechanism.charge(ledger.accounts(stream), weight, ids, values)


def entry(ledger, step, stream="north", weight=0.01, ids=IDS, inputs=None):
    return Entry(stream, step, charge(ledger, stream, weight, ids), ids, inputs)


def spent(ledger):
    return ledger.accounts("north").accounts()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("open")),
        st.tuples(
            st.just("commit"),
            st.integers(1, 12),
            st.sampled_from([("north",), ("south",), STREAMS]),
            st.sampled_from([0.0, 0.01, 0.05, 0.09]),
        ),
    ),
    max_size=12,
)


class Known(Noise):
    """Noise that the test can recognise."""

    def take(self):
        super().take()
        return 5 + np.arange(self.size)


class LedgerContract:
    """Needs the fixtures `place` and `make_place`, see `ledger/conftest.py`."""

    @pytest.fixture(params=["total", "individual"])
    def design(self, request):
        return make_ledger_design(request.param)

    @pytest.fixture
    def ledger(self, place, design):
        with place.create(design, STREAMS) as ledger:
            yield ledger

    def test_a_committed_row_is_what_was_drawn_and_what_is_read(self, ledger):
        [row] = ledger.commit([entry(ledger, 1)])
        assert list(ledger.rows("north")) == [row] and list(ledger.rows("south")) == []
        release = row.to_release()
        assert release.value.dtype == np.int64 and release.value.shape == (2,)
        assert row.to_dict()["release"] == release.value.tolist()
        weight = 10485 if ledger.terms.is_total else 10486  # of 10485.76: in individual accounting it is rounded up
        assert (row.step, row.fusion_weight, ledger.last_step("north")) == (1, weight, 1)

    def test_a_committed_step_is_returned_as_stored_and_not_charged_again(self, ledger, place, design):
        [first] = ledger.commit([entry(ledger, 1)])
        again = entry(ledger, 1, weight=0.02)
        assert ledger.commit([again]) == [first]
        assert again.charged.exact_sum is not None  # no noise was drawn for it
        ledger.close()
        with place.open(design) as reopened:
            assert reopened.commit([entry(reopened, 1)]) == [first]
            assert list(reopened.rows("north")) == [first]

    def test_several_streams_are_committed_at_once_and_a_stored_row_among_them_is_returned(self, ledger):
        [south] = ledger.commit([entry(ledger, 1, "south")])
        rows = ledger.commit([entry(ledger, 1, "south"), entry(ledger, 1, "north")])
        assert rows[0] == south and (rows[1].stream, rows[1].step) == ("north", 1)
        assert ledger.commit([]) == []

    def test_noise_begun_ahead_is_added_and_used_once(self, ledger):
        noise, both = Known(4), [entry(ledger, 1, stream) for stream in STREAMS]
        sums = [one.charged.exact_sum for one in both]
        rows = ledger.commit(both, noise)
        values = [(row.to_release().value - total).tolist() for row, total in zip(rows, sums, strict=True)]
        assert values == [[5, 6], [7, 8]]
        with pytest.raises(RuntimeError, match="used already"):
            noise.take()

    def test_noise_is_not_used_if_a_step_was_committed_before(self, ledger):
        [south] = ledger.commit([entry(ledger, 1, "south")])
        noise, both = Known(4), [entry(ledger, 1, stream) for stream in STREAMS]
        total = both[0].charged.exact_sum
        north, again = ledger.commit(both, noise)
        assert again == south and noise.take().tolist() == [5, 6, 7, 8]
        assert np.abs(north.to_release().value - total).max() > 8

    def test_a_step_behind_the_last_is_refused_and_a_gap_is_not(self, ledger):
        ledger.commit([entry(ledger, 5)])
        with pytest.raises(LedgerRefused, match="step 4 of stream 'north' was skipped: step 5 is committed"):
            ledger.commit([entry(ledger, 4)])
        assert [row.step for row in ledger.commit([entry(ledger, 9)])] == [9]
        assert [row.step for row in ledger.rows("north", start=6)] == [9]

    def test_a_step_that_was_drawn_outside_is_refused(self, ledger):
        drawn = entry(ledger, 1)
        ledger.terms.mechanism.draw(drawn.charged)
        with pytest.raises(RuntimeError, match="let the ledger draw"):
            ledger.commit([drawn])
        assert list(ledger.rows("north")) == []

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"stream": "west"}, "stream must be one of north, south, got 'west'"),
            ({"step": 0}, "step must be at least 1, got 0"),
            ({"step": 2**63}, "step must be below 2\\^63"),
        ],
    )
    def test_an_entry_that_no_ledger_can_hold_is_refused(self, ledger, change, message):
        fields = {"stream": "north", "step": 1, "charged": charge(ledger), "ids": IDS} | change
        with pytest.raises(ValueError, match=message):
            ledger.commit([Entry(**fields)])
        with pytest.raises(ValueError, match="entries must be of different streams"):
            ledger.commit([entry(ledger, 1), entry(ledger, 2)])

    def test_a_step_past_the_end_of_the_design_is_refused(self, place):
        with place.create(make_ledger_design(horizon=3), STREAMS) as ledger:
            ledger.commit([entry(ledger, 3)])
            with pytest.raises(ValueError, match="step must be at most 3, got 4; the design ends there"):
                ledger.commit([entry(ledger, 4)])

    def test_another_design_is_refused(self, ledger, place, design):
        ledger.close()
        for other in (make_ledger_design(fingerprint="b" * 64), make_ledger_design(budget=0.02)):
            with pytest.raises(LedgerRefused, match="belongs to another design"):
                place.open(other)

    def test_a_stream_without_budget_goes_on_with_noise_alone(self, place):
        with place.create(make_ledger_design("total"), STREAMS) as ledger:
            budget = ledger.terms.mechanism.budget
            rows = [ledger.commit([entry(ledger, step, weight=0.06)])[0] for step in range(1, 6)]
            assert sum(row.cost for row in rows) <= budget and rows[-1].budget_left == budget - sum(
                r.cost for r in rows
            )
            assert ledger.accounts("south").left == budget

    def test_a_cost_that_does_not_fit_is_refused_and_a_smaller_one_may_follow(self, place):
        with place.create(make_ledger_design("total"), STREAMS) as ledger:
            stale = ledger.accounts("north")
            ledger.commit([entry(ledger, 1, weight=0.06)])
            beyond = ledger.terms.mechanism.charge(stale, 0.09, IDS, np.zeros((4, 2)))
            with pytest.raises(BudgetExceeded, match="squared grid steps left and the step costs"):
                ledger.commit([Entry("north", 2, beyond)])
            assert len(ledger.commit([entry(ledger, 2, weight=0.01)])) == 1

    def test_an_id_has_one_account_for_all_streams_which_survives_a_restart(self, place):
        design = make_ledger_design("individual")
        with place.create(design, STREAMS) as ledger:
            cost = 10485**2
            ledger.commit([entry(ledger, 1, "north"), entry(ledger, 1, "south", ids=IDS[:1])])
            assert ledger.accounts("north") is ledger.accounts("south")
            expected = {7: 2 * cost, 2**63 - 1: cost, 0: cost}
            assert spent(ledger) == expected
        with place.open(design) as ledger:
            assert spent(ledger) == expected

    def test_a_step_charged_to_other_accounts_is_refused_as_a_whole(self, place):
        design = make_ledger_design("individual")
        with place.create(design, STREAMS) as ledger:
            ledger.commit([entry(ledger, 1, weight=0.09)])
            before = spent(ledger)
            mechanism = ledger.terms.mechanism
            values = np.array([[0.01, 0.0], [0.09, 0.0]])
            charged = mechanism.charge(mechanism.open_accounts(), 0.09, [99, 7], values)
            with pytest.raises(LedgerRefused, match="charged to other accounts than the ledger's"):
                ledger.commit([Entry("north", 2, charged, [99, 7])])
        with place.open(design) as ledger:
            assert spent(ledger) == before and ledger.last_step("north") == 1

    @given(operations=operations)
    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_the_budget_holds_and_rows_stay_for_any_sequence_of_calls(self, make_place, accounting, operations):
        run_against_a_model(make_place(), accounting, operations)


def run_against_a_model(place, accounting, operations):
    """The model: the rows as they were first returned."""
    design, published = make_ledger_design(accounting), {}
    ledger = place.create(design, STREAMS)
    for kind, *arguments in operations:
        if kind == "open":
            ledger.close()
            ledger = place.open(design)
            continue
        step, streams, weight = arguments
        try:
            rows = ledger.commit([entry(ledger, step, stream, weight) for stream in streams])
        except DpfuseError:
            assert any(ledger.last_step(stream) > step for stream in streams)
            continue
        for row in rows:
            assert published.setdefault((row.stream, row.step), row) == row
    ledger.close()
    with place.open(design) as ledger:
        stored = {(row.stream, row.step): row for stream in STREAMS for row in ledger.rows(stream)}
        budget = ledger.terms.mechanism.budget
        if accounting == "individual":
            assert all(0 <= paid <= budget for paid in spent(ledger).values())
        else:
            assert all(ledger.accounts(stream).spent == cost_of(stored, stream) <= budget for stream in STREAMS)
    assert stored == published


def cost_of(rows, stream):
    return sum(row.cost for (name, _), row in rows.items() if name == stream)
