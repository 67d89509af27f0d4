"""A guarantee in numbers and in words."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from fractions import Fraction

import pytest

from dpfuse.privacy import CONVERSIONS, chance_to_tell, epsilons, gdp_epsilon, in_short, state_guarantee
from dpfuse.privacy.statement import ASSUMED, CONVERSIONS_EXPLAINED, UNCOVERED
from support.designs import ACCOUNTINGS, ADJACENCIES, make_guarantee


class TestNumbers:
    def test_a_finite_design_has_an_epsilon_by_every_conversion(self):
        statement = state_guarantee(make_guarantee("total"), horizon=6, dimension=2, delta=1e-6)
        assert statement.epsilon == epsilons(2.0, 1.5, 1e-6) | {"gdp": gdp_epsilon(2.0, 1.5, 1e-6, 6 * 2)}
        assert statement.chance_to_tell == chance_to_tell(2.0, 1.5)

    @pytest.mark.parametrize(("accounting", "factor"), [("total", 1), ("individual", 3)])
    def test_individual_budgets_pay_for_the_coordinates_of_all_streams(self, accounting, factor):
        guarantee, steps = make_guarantee(accounting), 10**5
        statement = state_guarantee(guarantee, horizon=steps, dimension=2, num_streams=3)
        assert statement.epsilon["gdp"] == gdp_epsilon(2.0, 1.5, 1e-5, steps * 2 * factor)
        assert gdp_epsilon(2.0, 1.5, 1e-5, steps * 2 * 3) > gdp_epsilon(2.0, 1.5, 1e-5, steps * 2)

    @pytest.mark.parametrize("horizon", [None, 10**9])
    def test_gdp_is_left_out_where_the_surcharge_is_unknown_or_too_large(self, horizon):
        statement = state_guarantee(make_guarantee("individual"), horizon=horizon, dimension=2)
        assert set(statement.epsilon) == set(CONVERSIONS) - {"gdp"}
        assert "5.98 at δ = 10⁻⁵, by zCDP" in dict(statement.facts)["As (ε, δ)"]
        assert all(map(math.isfinite, statement.epsilon.values()))

    def test_with_a_bank_the_unit_is_one_sensor_over_all_its_centres(self):
        own = state_guarantee(make_guarantee("individual"), horizon=6, dimension=2, has_bank=True)
        assert "over all centres of one bank" in dict(own.facts)["Unit of privacy"]
        assert "by all centres of one bank together" in own.sentence and "gdp" not in own.epsilon
        assert any("The bank that lends the accounts" in words for words in own.to_dict()["assumed"])
        alone = state_guarantee(make_guarantee("individual"), horizon=6, dimension=2).to_dict()
        assert "bank" not in json.dumps(alone)

    def test_public_inputs_are_named_among_what_is_assumed_and_what_is_not_covered(self):
        plain, own = (
            state_guarantee(make_guarantee(), horizon=6, dimension=2, has_inputs=has).to_dict() for has in (False, True)
        )
        [assumed] = set(own["assumed"]) - set(plain["assumed"])
        assert "from no report, count, load or connection" in assumed and "see releases only" in assumed
        [uncovered] = set(own["uncovered"]) - set(plain["uncovered"])
        assert "a detector in the road counts all cars" in uncovered

    @pytest.mark.parametrize("period", ["day", "hour", 0.3 * 86_400, 86_400 / 7, 30 * 86_400.0])
    def test_a_span_of_time_is_charged_for_every_period_that_it_can_touch(self, period):
        guarantee = make_guarantee("individual", period=period)
        length_s = Fraction(guarantee.period_s)
        days = {"any 7 days": 7, "any 365 days": 365}
        answer = state_guarantee(guarantee, horizon=None, dimension=2).to_dict()["over_time"]
        losses = {own["span"]: own["loss"] for own in answer}
        one, across = (span for span in losses if span not in days)
        assert set(days) < set(losses) and one.startswith("one ") and across.startswith("any ")
        assert (losses[one], losses[across]) == (guarantee.budget, 2 * guarantee.budget)
        for span, number in days.items():
            starts = [length_s * share / 997 for share in range(997)]
            last = [start + number * 86_400 - Fraction(1, 1000) for start in starts]
            touched = max(end // length_s - start // length_s + 1 for start, end in zip(starts, last, strict=True))
            assert losses[span] == touched * guarantee.budget

    def test_json_takes_it(self):
        answer = state_guarantee(make_guarantee("total"), horizon=None, dimension=2, num_streams=2).to_dict()
        assert json.loads(json.dumps(answer)) == answer
        assert answer["guarantee"] == make_guarantee("total").to_dict()
        assert (answer["horizon"], answer["streams_in_ledger"]) == (None, 2)
        assert (answer["assumed"], answer["uncovered"]) == ([*ASSUMED], [*UNCOVERED])


class TestWords:
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    @pytest.mark.parametrize("accounting", ACCOUNTINGS)
    def test_the_paragraph_names_every_part_of_the_guarantee(self, accounting, adjacency):
        guarantee = make_guarantee(accounting, adjacency)
        text = state_guarantee(guarantee, horizon=6, dimension=2).to_text()
        phrases = [
            "in 6 steps",
            "(2, 1.5)-Rényi",
            adjacency,
            "whole trajectory",
            "delta = 1e-05",
            "5.54 by GDP",
            "13.01",
        ]
        phrases.append({"remove-one": "or it never reports", "replace-one": "or any other data"}[adjacency])
        phrases.append({"total": "worst possible sensor", "individual": "for what it adds"}[accounting])
        for phrase in [*phrases, in_short(guarantee), *ASSUMED]:
            assert phrase in text

    def test_a_design_without_an_end_is_stated_without_gdp(self):
        text = state_guarantee(make_guarantee("individual"), horizon=None, dimension=2).to_text()
        assert "for as long as the design runs" in text and "GDP" not in text

    @pytest.mark.parametrize(
        ("adjacency", "phrase"), [("remove-one", "had never reported"), ("replace-one", "had reported something else")]
    )
    def test_the_sentence_names_the_other_world(self, adjacency, phrase):
        sentence = state_guarantee(make_guarantee("total", adjacency), horizon=6, dimension=2).sentence
        assert phrase in sentence and "everything ever published here" in sentence

    def test_the_sentence_rounds_the_chance_up(self):
        statement = state_guarantee(make_guarantee("total"), horizon=6, dimension=2)
        assert 0.72 < statement.chance_to_tell < 0.73
        assert "is right at most 73 times in 100" in statement.sentence

    @pytest.mark.parametrize("accounting", ACCOUNTINGS)
    def test_with_several_streams_a_total_budget_is_for_one_of_them(self, accounting):
        statement = state_guarantee(make_guarantee(accounting), horizon=6, dimension=2, num_streams=2)
        is_total = accounting == "total"
        assert ("everything that one stream ever publishes" in statement.sentence) == is_total
        assert ("a sensor in all 2 streams has 2 budgets" in dict(statement.facts)["Unit of privacy"]) == is_total

    def test_other_deltas_are_written_as_they_are(self):
        statement = state_guarantee(make_guarantee("total"), horizon=6, dimension=2, delta=2e-6)
        assert "at δ = 2e-06, by GDP" in dict(statement.facts)["As (ε, δ)"]

    def test_every_conversion_is_explained(self):
        assert tuple(CONVERSIONS_EXPLAINED) == CONVERSIONS


def test_importing_it_loads_no_accountant():
    code = "import sys, dpfuse.privacy.statement; print('dp_accounting' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert loaded.stdout.strip() == "False"
