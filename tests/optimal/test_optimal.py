"""Theorem 1 for the structured release: beliefs, values, spending, and the gap of a design."""

from __future__ import annotations

import itertools
import json
import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm
from typer.testing import CliRunner

import dpfuse
from dpfuse import optimal
from dpfuse.cli import app
from dpfuse.errors import FileRefused
from dpfuse.optimal.interpolation import interpolate
from dpfuse.optimal.simulation import posterior
from dpfuse.policy import Design
from dpfuse.systems import hidden_markov
from experiments.optimality.crosscheck import crosscheck
from support.belief import first_belief, posterior_of_state, update_belief
from support.designs import FIELDS, make_guarantee

# A false alarm once in two million for each number.
FIVE = 5.0


def small(**changes) -> optimal.Problem:
    fields = {
        "transition": [[0.95, 0.05], [0.1, 0.9]],
        "sensor_probabilities": [0.2, 0.9],
        "num_sensors": 6,
        "prior": [0.6, 0.4],
        "horizon": 5,
        "order": 2.0,
        "budget": 0.4,
    }
    return optimal.Problem(**(fields | changes))


@pytest.fixture(scope="module")
def solved() -> optimal.Solution:
    return optimal.solve(small(), num_beliefs=41, num_budgets=31)


@pytest.fixture(scope="module")
def schedule() -> optimal.Schedule:
    return optimal.best_schedule(small(), num_beliefs=41, num_budgets=31)


class TestBelief:
    """Lemma 1 against the joint probability of everything that can happen."""

    NUM_STATES, NUM_VALUES, NUM_SYMBOLS, STEPS = 3, 2, 3, 4

    @pytest.fixture
    def system(self):
        rng = np.random.default_rng(0)
        transition = rng.dirichlet(np.ones(self.NUM_STATES), self.NUM_STATES)
        emission = rng.dirichlet(np.ones(self.NUM_VALUES), self.NUM_STATES)
        prior = rng.dirichlet(np.ones(self.NUM_STATES))
        # One distribution of Z_k for each history y^k and each past z^{k-1}: collections that read the whole past.
        collections = [
            rng.dirichlet(np.ones(self.NUM_SYMBOLS), (self.NUM_SYMBOLS,) * k + (self.NUM_VALUES,) * (k + 1))
            for k in range(self.STEPS)
        ]
        return prior, transition, emission, collections

    def enumerate(self, system, released, num_steps):
        """p(X_k = x, Y^k, Z^{k-1} = released) by summing over every path, shape (S, histories)."""
        prior, transition, emission, collections = system
        total = np.zeros((self.NUM_STATES, self.NUM_VALUES**num_steps))
        for x in itertools.product(range(self.NUM_STATES), repeat=num_steps):
            for y in itertools.product(range(self.NUM_VALUES), repeat=num_steps):
                p = prior[x[0]] * np.prod([transition[a, b] for a, b in itertools.pairwise(x)])
                p *= np.prod([emission[a, b] for a, b in zip(x, y, strict=True)])
                for k in range(num_steps - 1):
                    p *= collections[k][(*released[:k], *y[: k + 1], released[k])]
                total[x[-1], np.ravel_multi_index(y, (self.NUM_VALUES,) * num_steps)] += p
        return total / total.sum()

    def test_the_update_equals_enumeration_of_all_histories(self, system):
        prior, transition, emission, collections = system
        for released in itertools.product(range(self.NUM_SYMBOLS), repeat=self.STEPS - 1):
            belief = first_belief(prior, emission)
            for k, z in enumerate(released):
                likelihood = collections[k][released[:k]].reshape(-1, self.NUM_SYMBOLS)[:, z]
                belief = update_belief(belief, likelihood, transition, emission)
            expected = self.enumerate(system, released, self.STEPS)
            np.testing.assert_allclose(belief, expected, rtol=0, atol=1e-10)
        assert np.abs(belief - first_belief(prior, emission).mean()).max() > 1e-3  # it has moved

    def test_for_memoryless_releases_one_number_is_enough(self):
        """The belief over all histories of counts, summed over histories, is the solver's belief about the state."""
        problem, rng = small(), np.random.default_rng(1)
        emission = problem.sum_probabilities
        counts, belief, b = problem.feature_sums, first_belief(problem.prior, emission), problem.prior[None]
        for _ in range(3):
            weight, z = rng.uniform(0.1, 0.5), rng.normal(1, 1)
            likelihood = np.resize(norm.pdf(z - weight * counts), belief.shape[1])
            after = posterior(problem, b, np.array([weight]), np.array([z]))
            np.testing.assert_allclose(posterior_of_state(belief, likelihood), after[0], atol=1e-12)
            belief, b = update_belief(belief, likelihood, problem.transition, emission), after @ problem.transition
            np.testing.assert_allclose(belief.sum(axis=1), b[0], atol=1e-12)


def test_interpolation_is_exact_for_parabolas_and_keeps_even_edges():
    with jax.enable_x64(True):
        at = jnp.linspace(0, 8, 33)
        nodes = jnp.arange(9.0)
        parabola = interpolate(2 - nodes + 0.3 * nodes**2, at, low="free", high="free")
        np.testing.assert_allclose(parabola, 2 - at + 0.3 * at**2, atol=1e-12)
        cosine = interpolate(jnp.cos(jnp.pi * nodes / 8), at)
        np.testing.assert_allclose(cosine, jnp.cos(jnp.pi * at / 8), atol=2e-3)
        assert (
            np.abs(np.asarray(interpolate(nodes**3, at)) - np.asarray(at) ** 3).max() > 1
        )  # neither even nor parabola


class TestSolve:
    @pytest.mark.slow
    def test_one_step_is_the_posterior_variance_after_spending_all(self):
        problem = small(horizon=1, order=3.0)
        solution = optimal.solve(problem, num_beliefs=41, num_budgets=31)
        g, b = np.sqrt(2 * problem.budget / 3.0), problem.prior[1]

        def density(z: float, measures_one: float) -> float:
            return float(binom.pmf(np.arange(7), 6, measures_one) @ norm.pdf(z - g * np.arange(7)))

        def integrand(z: float) -> float:
            zero, one = (1 - b) * density(z, 0.2), b * density(z, 0.9)
            return zero * one / (zero + one)

        assert solution.value == pytest.approx(quad(integrand, -8, 6 * g + 8)[0], rel=2e-5)
        assert solution.spending[0, -1, 20] == pytest.approx(problem.budget)

    @pytest.mark.slow
    def test_without_budget_the_state_moves_unobserved(self, solved):
        problem, b, cost = solved.problem, solved.beliefs, 0.0
        for _ in range(problem.horizon):
            cost = cost + b[:, 0] * b[:, 1]
            b = b @ problem.transition
        np.testing.assert_allclose(solved.cost_to_go[0, 0], cost, atol=1e-4)

    def test_a_second_discretisation_agrees(self, solved):
        second = crosscheck(solved.problem, num_quanta=40, num_parts=120)
        assert second == pytest.approx(solved.value, rel=0.01)
        assert solved.discretisation_error < 0.002 and solved.largest_difference < 0.002

    def test_simulation_agrees_and_never_overspends(self, solved):
        runs = solved.simulate(num_runs=20_000, seed=1)
        assert abs(runs.value - solved.value) < FIVE * runs.standard_error
        assert runs.standard_error < 0.01 * runs.value
        assert runs.loss.min() >= 0 and runs.loss.sum(axis=1).max() <= solved.problem.budget * (1 + 1e-12)
        # The posterior variance is what the posterior mean's squared error comes to.
        squared = ((runs.state - runs.estimate) ** 2).sum(axis=1) - runs.costs
        assert abs(squared.mean()) < FIVE * squared.std() / np.sqrt(len(squared))

    def test_the_squared_error_check_fails_for_a_wrong_filter(self, solved):
        """Negative control: beliefs that give each release twice its weight fail the check by the squared error."""
        runs = solved.simulate(num_runs=20_000, seed=1)
        odds = (runs.estimate / (1 - runs.estimate)) ** 2
        belief = odds / (1 + odds)
        squared = ((runs.state - belief) ** 2 - belief * (1 - belief)).sum(axis=1)
        assert abs(squared.mean()) > FIVE * squared.std() / np.sqrt(len(squared))

    def test_more_budget_never_costs_more_and_the_cost_is_concave_in_the_belief(self, solved):
        value = solved.cost_to_go
        assert np.diff(value, axis=1).max() < 1e-5
        slopes = np.diff(value, axis=2) / np.diff(solved.beliefs[:, 1])
        middle = np.diff(slopes, axis=2)[:, :, 4:-4]  # near 0 and 1 the nodes are so close that rounding dominates
        assert middle.max() < 5e-3 * np.abs(slopes).max()

    def test_spending_is_between_nothing_and_all(self, solved):
        assert (solved.spending >= 0).all() and (solved.spending <= solved.budgets[:, None] * (1 + 1e-12)).all()
        np.testing.assert_allclose(solved.spending[-1, :, 20], solved.budgets)  # nothing to save for

    def test_double_precision_does_not_leak(self, solved):
        assert jnp.zeros(1).dtype == jnp.float32

    def test_counts_of_sensors_with_different_probabilities_are_exact(self):
        problem = small(sensor_probabilities=[[0.1, 0.5], [0.7, 0.9]], num_sensors=None)
        expected = [[0.9 * 0.5, 0.9 * 0.5 + 0.1 * 0.5, 0.1 * 0.5], [0.3 * 0.1, 0.3 * 0.9 + 0.7 * 0.1, 0.7 * 0.9]]
        np.testing.assert_allclose(problem.sum_probabilities, expected)


class TestSchedule:
    @pytest.mark.slow
    def test_the_closed_loop_is_better_than_any_schedule(self, solved, schedule):
        assert solved.value < schedule.value < schedule.even_value
        assert schedule.losses.sum() == pytest.approx(solved.problem.budget)
        assert np.ptp(schedule.start_values) < 1e-4 * schedule.value

    def test_simulation_agrees(self, schedule):
        runs = schedule.simulate(num_runs=20_000, seed=2)
        assert abs(runs.value - schedule.value) < FIVE * runs.standard_error

    def test_no_exchange_between_two_steps_is_better(self, schedule):
        """A local minimum: in simulations with the same runs, moving half of a step's loss to another never helps."""
        problem, best = schedule.problem, schedule.simulate(num_runs=20_000, seed=3).costs
        for k in range(problem.horizon):
            losses = schedule.losses.copy()
            losses[k], losses[k - 1] = losses[k] / 2, losses[k - 1] + losses[k] / 2
            changed = optimal.simulate(
                problem, lambda step, left, _, own=losses: np.full_like(left, own[step]), num_runs=20_000, seed=3
            ).costs
            assert (best - changed).mean() <= FIVE * (best - changed).std() / np.sqrt(len(best))


def even_design(problem: optimal.Problem, accounting: str = "total", num_channels: int = 1) -> Design:
    """Untrained, spending evenly."""
    guarantee = make_guarantee(accounting, adjacency="replace-one", budget=problem.budget, order=problem.order)
    fields = FIELDS | {
        "features": "box", "num_channels": num_channels, "dimension": num_channels, "spending": "constant",
        "horizon": problem.horizon, "recurrent_filter": "affine", "expected_sensors": float(problem.num_sensors),
    }  # fmt: skip
    return Design.untrained(guarantee, measurement_range=(0.0, 1.0), state_mean=0.5, state_std=0.5, **fields)


class TestGap:
    def test_an_even_design_spends_as_badly_as_the_solution_says(self, solved, schedule):
        gap = optimal.measure_gap(even_design(solved.problem), solved, num_runs=10_000)
        assert gap.spending == pytest.approx(schedule.even_value / solved.value - 1, abs=0.02)
        assert gap.estimator > 0.1  # it is untrained
        assert gap.ci95[0] < gap.total < gap.ci95[1]
        assert gap.total == pytest.approx(gap.spending + gap.estimator)
        assert gap.most_spent <= solved.problem.budget

    def test_a_design_for_another_budget_is_refused(self, solved):
        with pytest.raises(ValueError, match="design must have the problem's order and budget"):
            optimal.measure_gap(even_design(small(budget=1.0)), solved)

    @pytest.mark.parametrize(
        ("design", "got"),
        [
            ({"accounting": "individual"}, "got individual accounting and charge factor 2"),
            ({"num_channels": 2}, "got total accounting and charge factor 2"),
        ],
    )
    def test_a_design_with_another_charge_is_refused(self, solved, design, got):
        with pytest.raises(ValueError, match=f"design must have total accounting and charge factor 1 .*{got}"):
            optimal.measure_gap(even_design(solved.problem, **design), solved)

    def test_runs_are_rounded_up_to_whole_thousands(self, solved):
        gaps = [optimal.measure_gap(even_design(solved.problem), solved, num_runs=n) for n in (1000, 1001, 2000)]
        assert gaps[0] != gaps[1] == gaps[2]


class TestProblem:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"transition": np.eye(5), "prior": np.ones(5) / 5, "sensor_probabilities": np.ones(5)},
                "2 to 4 states, got 5",
            ),
            ({"order": 1.0}, "order must be > 1"),
            ({"budget": 0.0}, "budget must be finite and > 0"),
            ({"horizon": 0}, "horizon must be at least 1"),
            ({"prior": [0.6, 0.6]}, "prior must add up to 1"),
        ],
    )
    def test_a_wrong_field_is_named(self, changes, message):
        with pytest.raises(ValueError, match=message):
            small(**changes)

    def test_an_even_number_of_nodes_is_refused(self):
        with pytest.raises(ValueError, match="num_beliefs must be odd, got 40"):
            optimal.solve(small(), num_beliefs=40)

    def test_a_problem_is_read_from_a_toml_file(self, tmp_path):
        fields = small().to_dict()
        path = tmp_path / "mine.toml"
        path.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in fields.items()))
        assert optimal.Problem.load(path).to_dict() == fields
        path.write_text("horizon = 3\ncolour = 1")
        with pytest.raises(FileRefused, match="is not a problem"):
            optimal.Problem.load(path)
        with pytest.raises(FileRefused, match="no problem at nowhere; the presets are slow"):
            optimal.Problem.load("nowhere")


@pytest.mark.slow
class TestCommand:
    @pytest.fixture
    def run(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        # Of the size that test_collections.py solves too, so that it is compiled once.
        changes = {"transition": [[0.9, 0.1], [0.2, 0.8]], "prior": [0.7, 0.3], "sensor_probabilities": [0.0, 1.0]}
        fields = small(**changes, num_sensors=1, horizon=3, budget=2.0).to_dict()
        (tmp_path / "mine.toml").write_text("\n".join(f"{name} = {json.dumps(v)}" for name, v in fields.items()))
        grid = ["--beliefs", "31", "--budgets", "11", "--runs", "2000"]
        return lambda *arguments: CliRunner().invoke(app, ["optimal", *arguments, *grid])

    def test_it_solves_a_file_and_draws_two_figures(self, run, tmp_path):
        result = run("mine.toml", "--figures", "drawn", "--json")
        assert result.exit_code == 0, result.output
        answer = json.loads(result.stdout)
        assert answer["value"] < answer["schedule"]["value"] < answer["even_value"]
        assert answer["closed_loop_gain"] == pytest.approx(1 - answer["value"] / answer["schedule"]["value"])
        assert answer["simulated"]["ci95"][0] < answer["simulated"]["value"] < answer["simulated"]["ci95"][1]
        assert [Path(path).name for path in answer["figures"]] == ["solution.png", "path.png"]
        assert all((tmp_path / path).stat().st_size > 5000 for path in answer["figures"])

    def test_the_general_form_is_reported_in_words(self, run):
        result = run("mine.toml", "--form", "general", "--symbols", "2")
        assert result.exit_code == 0, result.output
        assert "optimal with 2 symbols" in result.stdout and "simulated" in result.stdout
        assert re.search(r"on a grid half as fine +\d\.\d\d% different", result.stdout)

    def test_an_unknown_problem_is_named(self, run):
        assert "no problem at fast; the presets are slow, onset" in str(run("fast").exception)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slow", "onset", "scarce", "single"])
def test_presets_agree_with_the_second_discretisation_and_simulation_in_time(name):
    problem = optimal.PRESETS[name]
    began = time.process_time()
    solution = optimal.solve(problem)
    assert time.process_time() - began < 30  # of both cores together, whatever else the machine does
    assert crosscheck(problem) == pytest.approx(solution.value, rel=0.01)
    runs = solution.simulate(num_runs=100_000, seed=1)
    assert abs(runs.value - solution.value) < FIVE * runs.standard_error and runs.standard_error < 0.002 * runs.value
    assert solution.discretisation_error < 0.001


@pytest.mark.slow
def test_a_learned_closed_loop_comes_within_3_percent_and_beats_every_schedule():
    problem = optimal.PRESETS["onset"]
    solution, schedule = optimal.solve(problem), optimal.best_schedule(problem)
    data = hidden_markov.simulate(problem.system, num_runs=20_000, num_steps=problem.horizon, seed=1)
    training, validation, _ = data.split((0.85, 0.1, 0.05), by="run")
    design = dpfuse.train(
        training,
        validation,
        make_guarantee(adjacency="replace-one", budget=problem.budget, order=problem.order),
        architecture=dpfuse.Architecture(recurrent_filter="affine", measurement_range=(0.0, 1.0)),
        optimisation=dpfuse.Optimisation(num_updates=1500, batch_size=128, learning_rate=1e-2, validation_windows=2000),
    )
    gap = optimal.measure_gap(design, solution)
    assert -0.01 < gap.total < 0.03
    assert gap.ci95[1] < schedule.value / solution.value - 1
    assert gap.most_spent <= problem.budget
