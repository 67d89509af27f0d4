"""Attacks on designs that keep their guarantee: all checks pass, and the bound on epsilon is close to the claim.

The noise is OpenDP's and has no seed. Where a design must pass, bounds have a confidence of 1 - 1e-6, and each check of
the noise fails once in ten million; the other checks are exact.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpfuse.audit import epsilon_at_least
from dpfuse.audit.runs import run_worlds
from dpfuse.audit.worlds import NUM_ROWS, make_worlds, with_worst_filter, worst_pair
from dpfuse.policy import ExactStep
from dpfuse.privacy import GRID, gdp_epsilon
from support.attacks import INDIVIDUAL, SURE, TOTAL, attack_worst, failed, small
from support.designs import SOME_CASES, make_design


class TestChecks:
    @pytest.mark.slow
    @pytest.mark.parametrize("case", SOME_CASES)
    def test_every_accounting_and_adjacency_passes(self, case):
        found, _ = attack_worst(small(case))
        assert failed(found.checks) == set()
        assert 0.999 < found.attack.reach <= 1

    @pytest.mark.parametrize(
        ("design", "reach"),
        [
            (small(INDIVIDUAL, horizon=None, spending="adaptive"), 0.5),
            (small(("individual", "replace-one", "box"), dimension=1, num_channels=1), 0.999),
        ],
        ids=["stationary", "half-line"],
    )
    @pytest.mark.slow
    def test_stationary_designs_and_features_on_a_half_line_pass(self, design, reach):
        found, _ = attack_worst(design)
        assert failed(found.checks) == set()
        assert reach < found.attack.reach <= 1

    @pytest.mark.slow
    @pytest.mark.parametrize("case", [TOTAL, ("individual", "replace-one", "orthant")])
    def test_the_bound_is_below_the_claim_and_close_to_it(self, case):
        """Expected is 93% of the claimed mu, with a standard deviation of 1.8%; 88% would be enough."""
        found, claim = attack_worst(small(case, horizon=2), num_runs=2500, confidence=0.99)
        assert found.attack.reach > 0.999
        assert 0.85 * claim < found.attack.epsilon_bound <= claim
        assert found.attack.accuracy == pytest.approx(norm.cdf(1.5), abs=0.025)

    def test_the_bound_exceeds_the_claim_no_more_often_than_stated(self):
        """Gaussian scores with exactly the claimed mu; 400 audits, with a seed."""
        rng, mu, size, claim = np.random.default_rng(0), 1.2, 300, gdp_epsilon(2.0, 1.44, 1e-5)
        bounds = [
            epsilon_at_least(*(rng.normal(sign * mu**2 / 2, mu, size) for sign in (1, -1)), 1e-5, 0.9)
            for _ in range(400)
        ]
        assert sum(bound > claim for bound in bounds) <= 40  # about 4 are expected: both errors must be too small
        assert np.mean(bounds) > 0.7 * claim
        too_much = [rng.normal(sign * (1.3 * mu) ** 2 / 2, 1.3 * mu, 3000) for sign in (1, -1)]
        assert epsilon_at_least(*too_much, 1e-5, 0.95) > claim  # negative control

    @pytest.mark.parametrize("mu", [0.5, 1.2, 3.0])
    def test_the_bound_agrees_with_jax_privacy(self, mu):
        """jax-privacy divides its significance by three thresholds, of which two always name the same world."""
        from jax_privacy.auditing import CanaryScoreAuditor

        rng = np.random.default_rng(1)
        scores = [rng.normal(sign * mu**2 / 2, mu, 1000) for sign in (1, -1)]
        auditor = CanaryScoreAuditor(*((part > 0).astype(float) for part in scores))
        theirs = auditor.epsilon_from_gdp(significance=3 * 0.05, delta=1e-5)
        assert epsilon_at_least(*scores, 1e-5, 0.95) == pytest.approx(theirs, rel=1e-4)

    def test_a_few_runs_give_a_bound_of_zero(self):
        """With few runs the upper bounds on both errors are above 1/2."""
        rng = np.random.default_rng(0)
        for size in (1, 5, 50):
            assert epsilon_at_least(rng.normal(size=size), rng.normal(size=size), 1e-5, SURE) == 0
        ones = np.ones(200)
        assert epsilon_at_least(ones, -ones, 1e-5, 0.95) > 10
        assert epsilon_at_least(-ones, ones, 1e-5, 0.95) == 0  # the wrong sign


class TestRuns:
    def test_scores_are_gaussian_with_the_distance_of_the_worlds(self):
        """Paths differ in how they spend, but each spends the whole budget."""
        num_runs, design = 400, with_worst_filter(small(spending="adaptive", spread=1.0))
        transcript = run_worlds(ExactStep(design, NUM_ROWS), make_worlds(design, *worst_pair(design, 4), 0), num_runs)
        distances = np.array(transcript.distances(), float)
        assert len(set(transcript.weights[:, 0, 1].tolist())) > num_runs / 2
        mu, scores = math.sqrt(distances.mean()) / GRID, transcript.scores()
        assert np.sqrt(distances) / GRID == pytest.approx(3.0, rel=1e-3)
        for own, sign in [(scores[transcript.truth], 1), (scores[~transcript.truth], -1)]:
            standard = (own - sign * mu**2 / 2) / mu
            assert abs(standard.mean()) < 5 / math.sqrt(num_runs)  # false alarm below 1e-6
            assert abs((standard**2).mean() - 1) < 5.5 * math.sqrt(2 / num_runs)
        assert transcript.is_public.all()

    def test_worlds_differ_in_the_canary_alone(self):
        for case in SOME_CASES:
            design = with_worst_filter(small(case))
            one, other = make_worlds(design, *worst_pair(design, 4), 0)
            for sensor in (1, 2, 3):
                rows = [world.measurements[world.ids == sensor] for world in (one, other)]
                assert np.array_equal(*rows)
            assert (case[1] == "remove-one") == (7 not in other.ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "order", "budget"), list(zip(SOME_CASES, [2.0, 8.0] * 2, [1.5, 6.0] * 2, strict=True))
)
def test_the_bound_reaches_85_percent_of_usual_claims(case, order, budget):
    """Adaptive steps at the paper's budget; expected is about 93% of epsilon, with a standard deviation of 1.3%."""
    design = make_design(*case, order=order, budget=budget, spread=0.3, horizon=10, expected_stay=3.0)
    found, claim = attack_worst(design, num_runs=20_000, confidence=0.999)
    assert failed(found.checks) == set()  # a false alarm of the bound takes 4.6 standard deviations
    assert found.attack.reach > 0.99
    assert found.attack.epsilon_bound > 0.85 * claim


def test_threshold_zero_is_the_best_for_gaussian_scores():
    """The sum of the standard deviations of both errors, as quantiles, is smallest where the errors are equal."""

    def spread(threshold, mu=1.2):
        deviations = [norm.sf(mu / 2 + threshold), norm.sf(mu / 2 - threshold)]
        return sum(math.sqrt(p * (1 - p)) / norm.pdf(norm.ppf(p)) for p in deviations)

    assert all(spread(0) < spread(t) for t in (-0.5, -0.1, 0.1, 0.5))
