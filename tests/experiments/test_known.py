"""The suite with known answers: its filters are right, and its aims are checked."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from dpfuse import Trajectories
from dpfuse.systems import growth, hidden_markov, linear_gaussian
from experiments.known import filters, report, systems


def test_the_kalman_filter_has_the_error_that_its_own_covariance_claims():
    walk = linear_gaussian.LinearGaussian.random_walk()
    runs = linear_gaussian.simulate(walk, num_runs=4000, num_steps=20, seed=1)
    variance, claimed = 1.0, []
    for _ in range(20):
        variance = 1 / (1 / variance + 20)
        claimed.append(variance)
        variance += 0.005
    # The mean of 4,000 runs of 20 steps has a standard error below 1.5%; 6% is off by chance once in 10,000 runs.
    assert filters.kalman_error(walk, runs) == pytest.approx(np.mean(claimed), rel=0.06)


def test_the_forward_filter_knows_a_state_that_sensors_show_and_not_one_that_they_hide():
    def error(probabilities: list[float]) -> float:
        chain = hidden_markov.HiddenMarkov(
            transition=np.full((2, 2), 0.5), sensor_probabilities=probabilities, initial=[0.5, 0.5], num_sensors=3
        )
        return filters.forward_error(chain, hidden_markov.simulate(chain, num_runs=50, num_steps=20, seed=0))

    assert error([0.001, 0.999]) < 0.01
    assert error([0.5, 0.5]) == pytest.approx(0.25)


@pytest.mark.slow
def test_the_particle_filter_beats_the_best_estimate_without_memory_of_the_sign():
    system = growth.Growth()
    runs = growth.simulate(system, num_runs=6, num_steps=20, seed=3)
    blind = Trajectories(state=runs.state, measurements=np.zeros_like(runs.measurements))
    seen = filters.growth_error(system, runs)
    assert seen < 0.6 * float(np.mean(runs.state**2))
    assert filters.growth_error(system, blind) > 2 * seen


def test_households_share_a_day_and_differ_in_size():
    runs = systems.simulate_households(num_runs=200, seed=0)
    by_step = runs.state[..., 0].mean(0)
    assert by_step.argmax() in range(36, 41) and by_step.min() < 0.5 * by_step.max()
    sizes = np.log(runs.measurements[..., 0].mean(1))
    # 8,000 draws with standard deviation 0.4, and the noise of the means over a day.
    assert 0.35 < sizes.std() < 0.65


@pytest.fixture
def perfect() -> dict[str, object]:
    """Results that miss no aim."""
    budgets = [f"{budget:g}" for budget in systems.BUDGETS]
    faults = {fault: {"mse": 0.1, "coverage": 0.95} for fault in report.FAULTS}
    one = {"mse": [0.1] * 5, "coverage": [0.95] * 5, "faults": faults}
    system = {
        "prior_mse": 1.0,
        "filter": {"name": "particle", "mse": 0.05},
        "solved": {},
        "floor": [0.05] * 5,
        "floor_coverage": [0.95] * 5,
        "kinds": {kind: {budget: copy.deepcopy(one) for budget in budgets} for kind in (*report.PRIVATE, "robust")},
    }
    return {"tracking": system}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(floor=[0.05, 0.11]), "floor: worst seed 2.20 times the filter"),
        (lambda s: s["kinds"]["ppo"]["0.5"].update(mse=[0.1] * 4 + [0.2]), "2.00 times the best"),
        (lambda s: s["kinds"]["adaptive"]["0.5"].update(mse=[0.11] * 5), "5 of 5 seeds above classical"),
        (lambda s: s["kinds"]["classical"]["0.15"].update(mse=[0.95] * 5), "0.95 of the prior"),
        (lambda s: s["kinds"]["individual"]["1.5"].update(coverage=[0.9] * 5), "covers 90.0%"),
        (
            lambda s: s["kinds"]["ppo"]["1.5"].update(mse=[0.11] * 5),
            "Algorithm 2, B = 1.5: 5 of 5 seeds above classical",
        ),
        (lambda s: s.update(floor=[0.05] * 4 + [0.07]), "floor: worst seed 1.40 times the best"),
        (lambda s: s["kinds"]["individual"]["1.5"].update(coverage=[0.95] * 4 + [0.91]), "covers 91.0% to 95.0%"),
        (lambda s: s["kinds"]["robust"]["0.5"]["faults"]["silent"].update(coverage=0.8), "trained with faults, silent"),
        (lambda s: s["kinds"].pop("robust"), "no design was trained with faults"),
        (lambda s: s["kinds"]["classical"]["1.5"].update(mse=[0.41] * 5), "worst seed 0.410 of the prior"),
        (lambda s: s["kinds"]["robust"]["0.5"]["faults"]["silent"].update(mse=0.05), "silent: 2.00 times"),
        (lambda s: s["kinds"]["individual"]["0.5"]["faults"]["joined"].update(coverage=0.8), "joined: the 95% band"),
    ],
)
def test_an_aim_that_is_missed_is_named(perfect, change, words):
    assert report.misses(perfect) == []
    change(perfect["tracking"])
    assert any(words in line for line in report.misses(perfect)), report.misses(perfect)
