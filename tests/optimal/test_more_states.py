"""Theorem 1 for three and four states, and for sensors of three outputs."""

from __future__ import annotations

import itertools
import json
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from dpfuse import optimal
from dpfuse.cli import app
from dpfuse.optimal.beliefs import mean_of_state, nodes_of_belief, position, variance_of_state, weights_of_nodes
from dpfuse.optimal.figures import plot_path, plot_solution
from dpfuse.optimal.simulation import posterior
from dpfuse.policy import Design
from experiments.optimality.crosscheck import crosscheck
from support.belief import first_belief, posterior_of_state, update_belief
from support.designs import FIELDS, make_guarantee

pytestmark = pytest.mark.slow
# A false alarm once in two million for each number.
FIVE = 5.0

SMALL = {"num_beliefs": 21, "num_budgets": 13}


def three(**changes) -> optimal.Problem:
    """Three states, four sensors of three outputs."""
    fields = {
        "transition": [[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.05, 0.15, 0.8]],
        "sensor_probabilities": [[[0.8, 0.15, 0.05]], [[0.2, 0.7, 0.1]], [[0.0, 0.1, 0.9]]],
        "num_sensors": 4,
        "prior": [0.5, 0.2, 0.3],
        "horizon": 2,
        "order": 2.0,
        "budget": 2.0,
    }
    return optimal.Problem(**(fields | changes))


def four(**changes) -> optimal.Problem:
    """Four states, six binary sensors."""
    fields = {
        "transition": [[0.9, 0.1, 0, 0], [0.05, 0.9, 0.05, 0], [0, 0.05, 0.9, 0.05], [0.1, 0, 0.1, 0.8]],
        "sensor_probabilities": [0.1, 0.3, 0.6, 0.9],
        "num_sensors": 6,
        "prior": [0.4, 0.3, 0.2, 0.1],
        "horizon": 3,
        "order": 2.0,
        "budget": 0.6,
    }
    return optimal.Problem(**(fields | changes))


@pytest.fixture(scope="module")
def solved() -> optimal.Solution:
    return optimal.solve(three(), **SMALL)


@pytest.fixture(scope="module")
def solved_four() -> optimal.Solution:
    return optimal.solve(four(), num_beliefs=13, num_budgets=9)


solutions = pytest.mark.parametrize("solution", ["solved", pytest.param("solved_four", marks=pytest.mark.slow)])


class Exact:
    """Costs by sums over thousands of values of each release: no grid of beliefs or budgets."""

    def __init__(self, problem: optimal.Problem, num_values: int = 400):
        self.problem, self.num_values = problem, num_values

    def release(self, loss, belief):
        """The probability of each value of a release, shape (..., values), and the belief after it."""
        weight = np.sqrt(2 * loss / self.problem.order)
        at = weight * self.problem.feature_sums
        z, step = np.linspace(-7, at[-1] + 7, self.num_values, retstep=True)
        density = norm.pdf(z[:, None] - at) @ self.problem.sum_probabilities.T * step
        joint = belief[..., None, :] * density
        chance = joint.sum(-1)
        return chance, joint / chance[..., None]

    def last_step(self, budget, belief):
        """The cost of one step that spends all."""
        chance, after = self.release(budget, belief)
        return (chance * variance_of_state(after)).sum(-1)

    def two_steps(self, loss):
        """The cost from the prior if the first of two steps spends this and the second the rest."""
        chance, after = self.release(loss, self.problem.prior)
        rest = self.last_step(self.problem.budget - loss, after @ self.problem.transition)
        return float((chance * (variance_of_state(after) + rest)).sum())


class TestBeliefs:
    @pytest.mark.parametrize("num_states", [3, 4])
    def test_a_smooth_function_is_interpolated_between_the_nodes(self, num_states):
        def function(belief):
            return jnp.exp(-belief[:, 0]) * (1 + belief[:, -1] ** 2) + jnp.log(1.2 - belief[:, 1])

        @partial(jax.jit, static_argnums=1)
        def largest_error(belief, num_beliefs):
            nodes = nodes_of_belief(num_beliefs, num_states)
            found = weights_of_nodes(belief, num_beliefs) @ function(nodes)
            return jnp.abs(found - function(belief)).max(), nodes

        errors = []
        with jax.enable_x64(True):
            inside = jnp.asarray(np.random.default_rng(0).dirichlet(np.full(num_states, 0.7), 200))
            for num_beliefs in (7, 13):
                error, nodes = largest_error(inside, num_beliefs)
                errors.append(float(error))
                np.testing.assert_allclose(np.asarray(nodes).sum(axis=1), 1, atol=1e-12)
                assert nodes.shape == (num_beliefs ** (num_states - 1), num_states)
        assert errors[1] < 0.01 and errors[1] < errors[0] / 5  # of third order: an eighth

    def test_places_are_the_same_in_numpy_and_jax_and_for_any_scale(self):
        beliefs = np.random.default_rng(1).dirichlet(np.ones(4), 20)
        with jax.enable_x64(True):
            np.testing.assert_allclose(position(beliefs, 9), position(jnp.asarray(1e-200 * beliefs), 9), atol=1e-10)
            np.testing.assert_allclose(position(np.asarray(nodes_of_belief(3, 3)), 3)[5], [1, 2])

    def test_mean_and_variance_of_the_state(self):
        belief = np.array([0.2, 0.5, 0.3])
        assert mean_of_state(belief) == pytest.approx(1.1)
        assert variance_of_state(belief) == pytest.approx(0.5 + 4 * 0.3 - 1.1**2)
        assert variance_of_state(np.array([0.0, 1.0, 0.0])) == 0

    def test_the_distribution_of_the_state_is_all_of_the_belief_that_matters(self):
        """The belief over all histories of sums, added up over histories, is the solver's belief about the state."""
        problem, rng = three(num_sensors=2), np.random.default_rng(1)
        emission, sums = problem.sum_probabilities, problem.feature_sums
        belief, own = first_belief(problem.prior, emission), problem.prior[None]
        for _ in range(3):
            weight, z = rng.uniform(0.1, 0.5), rng.normal(1, 1)
            likelihood = np.resize(norm.pdf(z - weight * sums), belief.shape[1])
            after = posterior(problem, own, np.array([weight]), np.array([z]))
            np.testing.assert_allclose(posterior_of_state(belief, likelihood), after[0], atol=1e-12)
            belief, own = update_belief(belief, likelihood, problem.transition, emission), after @ problem.transition
            np.testing.assert_allclose(belief.sum(axis=1), own[0], atol=1e-12)


class TestProblem:
    def test_sums_of_features_have_the_probabilities_of_all_their_outcomes(self):
        chances = np.random.default_rng(2).dirichlet(np.ones(3), (3, 4))
        problem = three(sensor_probabilities=chances, num_sensors=None)
        np.testing.assert_allclose(problem.feature_sums, np.arange(9) / 2)
        expected = np.zeros((3, 9))
        for outputs in itertools.product(range(3), repeat=4):
            expected[:, sum(outputs)] += np.prod([chances[:, i, y] for i, y in enumerate(outputs)], axis=0)
        np.testing.assert_allclose(problem.sum_probabilities, expected)

    def test_fields_come_back_from_a_file(self, tmp_path):
        fields = three().to_dict()
        path = tmp_path / "mine.toml"
        path.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in fields.items()))
        assert optimal.Problem.load(path).to_dict() == fields

    @pytest.mark.parametrize(("states", "outputs"), [(3, 2), (2, 3)])
    def test_whole_collections_are_refused(self, states, outputs):
        problem = three(
            transition=np.eye(states), prior=np.ones(states) / states,
            sensor_probabilities=np.full((states, 1, outputs), 1 / outputs), num_sensors=None,
        )  # fmt: skip
        with pytest.raises(ValueError, match=f"got {states} states and {outputs} outputs; use solve"):
            optimal.solve_general(problem)


class TestSolve:
    @pytest.mark.slow
    @pytest.mark.parametrize("make", [three, four])
    def test_one_step_is_the_posterior_variance_after_spending_all(self, make):
        problem = make(horizon=1, order=3.0)
        solution = optimal.solve(problem, num_beliefs=17 if make is three else 11, num_budgets=9)
        assert solution.value == pytest.approx(Exact(problem).last_step(problem.budget, problem.prior), rel=1e-3)
        assert solution.spending[0, -1].max() == pytest.approx(problem.budget)

    @pytest.mark.slow
    def test_two_steps_are_the_best_split_of_the_budget(self, solved):
        """Brute force over the loss of the first step."""
        exact = Exact(solved.problem)
        costs = [exact.two_steps(loss) for loss in np.linspace(0, solved.problem.budget, 31)]
        assert solved.value == pytest.approx(min(costs), rel=2e-3)
        assert costs[-1] > 1.05 * min(costs) < costs[0]  # it is best to divide it

    @solutions
    def test_without_budget_the_state_moves_unobserved(self, solution, request):
        solution = request.getfixturevalue(solution)
        b, cost = solution.beliefs, 0.0
        for _ in range(solution.problem.horizon):
            cost, b = cost + variance_of_state(b), b @ solution.problem.transition
        np.testing.assert_allclose(solution.cost_to_go[0, 0], cost, atol=0.01 * cost.max())

    @solutions
    def test_a_second_discretisation_agrees(self, solution, request):
        solution = request.getfixturevalue(solution)
        assert crosscheck(solution.problem, num_quanta=30) == pytest.approx(solution.value, rel=0.01)
        assert solution.discretisation_error < 0.02 and solution.largest_difference < 0.02

    @solutions
    def test_simulation_agrees_and_never_overspends(self, solution, request):
        solution = request.getfixturevalue(solution)
        runs = solution.simulate(num_runs=20_000, seed=1)
        assert abs(runs.value - solution.value) < FIVE * runs.standard_error + 0.003 * solution.value
        assert runs.loss.min() >= 0 and runs.loss.sum(axis=1).max() <= solution.problem.budget * (1 + 1e-12)
        # The posterior variance is the squared error of the posterior mean. Of a mean that is moved, it is not.
        for moved, is_right in [(0.0, True), (0.2, False)]:
            squared = ((runs.state - runs.estimate - moved) ** 2).sum(axis=1) - runs.costs
            assert (abs(squared.mean()) < FIVE * squared.std() / np.sqrt(len(squared))) == is_right

    @pytest.mark.slow
    def test_a_state_that_never_occurs_changes_nothing(self):
        two = optimal.Problem(
            transition=[[0.95, 0.05], [0.1, 0.9]], sensor_probabilities=[0.2, 0.9], num_sensors=6, prior=[0.6, 0.4],
            horizon=4, order=2.0, budget=0.4,
        )  # fmt: skip
        more = optimal.Problem(
            transition=[[0.95, 0.05, 0], [0.1, 0.9, 0], [0.3, 0.3, 0.4]], sensor_probabilities=[0.2, 0.9, 0.5],
            num_sensors=6, prior=[0.6, 0.4, 0], horizon=4, order=2.0, budget=0.4,
        )  # fmt: skip
        assert optimal.solve(more, **SMALL).value == pytest.approx(optimal.solve(two).value, rel=1e-3)

    @pytest.mark.slow
    def test_the_order_of_the_states_does_not_matter(self, solved):
        """Numbers of states and outputs reversed: the angles of a belief are others, the cost is the same."""
        problem = solved.problem
        mirrored = three(
            transition=problem.transition[::-1, ::-1],
            sensor_probabilities=problem.sensor_probabilities[::-1, :, ::-1],
            prior=problem.prior[::-1],
        )
        assert optimal.solve(mirrored, **SMALL).value == pytest.approx(solved.value, rel=2e-3)

    @pytest.mark.slow
    def test_the_closed_loop_is_better_than_any_schedule(self):
        problem = three(horizon=4)
        schedule = optimal.best_schedule(problem, **SMALL)
        assert optimal.solve(problem, **SMALL).value < schedule.value < schedule.even_value
        assert schedule.losses.sum() == pytest.approx(problem.budget)
        runs = schedule.simulate(num_runs=20_000, seed=2)
        assert abs(runs.value - schedule.value) < FIVE * runs.standard_error + 0.005 * schedule.value

    @pytest.mark.slow
    def test_the_gap_of_an_even_design_is_that_of_even_spending(self, solved):
        problem = solved.problem
        even = problem.budget / problem.horizon
        runs = optimal.simulate(problem, lambda k, left, _: np.full_like(left, even), num_runs=20_000, seed=3)
        gap = optimal.measure_gap(even_design(problem, highest=2.0), solved, num_runs=10_000)
        assert gap.spending == pytest.approx(runs.value / solved.value - 1, abs=0.03)
        with pytest.raises(ValueError, match=r"design must have measurement_range=\(0, 2\)"):
            optimal.measure_gap(even_design(problem, highest=1.0), solved)


def even_design(problem: optimal.Problem, highest: float) -> Design:
    """Untrained, spending evenly, for measurements from 0 to `highest`."""
    guarantee = make_guarantee("total", adjacency="replace-one", budget=problem.budget, order=problem.order)
    fields = FIELDS | {
        "features": "box", "num_channels": 1, "dimension": 1, "spending": "constant", "horizon": problem.horizon,
        "recurrent_filter": "affine", "expected_sensors": float(problem.num_sensors),
    }  # fmt: skip
    return Design.untrained(guarantee, measurement_range=(0.0, highest), state_mean=1.0, state_std=0.5, **fields)


class TestOutput:
    def test_a_solution_is_saved_with_a_row_for_each_step_budget_and_belief(self, solved, tmp_path):
        solved.save(tmp_path / "solution.csv")
        rows = np.genfromtxt(tmp_path / "solution.csv", delimiter=",", names=True)
        assert len(rows) == len(solved.to_frame()) == solved.cost_to_go.size
        row = rows[np.ravel_multi_index((1, 5, 100), solved.cost_to_go.shape)]
        belief = [row[f"p_state_{x}"] for x in range(3)]
        np.testing.assert_allclose(
            [row["step"], row["budget_left"], *belief], [2, solved.budgets[5], *solved.beliefs[100]]
        )
        np.testing.assert_allclose(
            [row["cost_to_go"], row["spending"]], [solved.cost_to_go[1, 5, 100], solved.spending[1, 5, 100]]
        )

    @pytest.mark.slow
    def test_the_command_solves_three_states_and_draws_two_figures(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        fields = three(horizon=2).to_dict()
        Path("mine.toml").write_text("\n".join(f"{name} = {json.dumps(v)}" for name, v in fields.items()))
        grid = ["--beliefs", "9", "--budgets", "9", "--runs", "2000"]
        result = CliRunner().invoke(app, ["optimal", "mine.toml", "--figures", "drawn", "--json", *grid])
        assert result.exit_code == 0, result.output
        answer = json.loads(result.stdout)
        assert answer["num_states"] == 3 and answer["num_beliefs"] == 9
        assert answer["value"] <= answer["schedule"]["value"] * 1.01
        assert [Path(path).name for path in answer["figures"]] == ["solution.png", "path.png"]
        assert all(Path(path).stat().st_size > 5000 for path in answer["figures"])

    @pytest.mark.slow
    def test_of_four_states_only_a_run_is_drawn(self, solved_four):
        assert plot_path(solved_four).axes[0].get_ylabel() == "state"
        with pytest.raises(ValueError, match="plot_solution draws two or three states, got 4; plot_path draws any"):
            plot_solution(solved_four)


@pytest.mark.slow
def test_the_preset_of_three_states_agrees_with_the_second_discretisation_and_simulation_in_time():
    problem = optimal.PRESETS["incident"]
    began = time.process_time()
    solution = optimal.solve(problem)
    assert time.process_time() - began < 60  # of both cores together, whatever else the machine does
    assert solution.discretisation_error < 0.005
    assert crosscheck(problem) == pytest.approx(solution.value, rel=0.01)
    runs = solution.simulate(num_runs=100_000, seed=1)
    assert runs.standard_error < 0.0015 * runs.value
    assert abs(runs.value - solution.value) < 0.01 * solution.value


@pytest.mark.slow
def test_four_states_on_the_default_grid_agree_with_simulation():
    problem = four(horizon=10, num_sensors=20)
    solution = optimal.solve(problem)
    runs = solution.simulate(num_runs=50_000, seed=1)
    assert abs(runs.value - solution.value) < 0.01 * solution.value
