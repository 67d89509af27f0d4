"""Theorem 1 in its general form: linear programmes, collections of release distributions, and what they are worth."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq, linprog
from scipy.stats import norm

from dpfuse import optimal
from dpfuse.optimal.collection import best_cost, best_kernel, make_options
from dpfuse.optimal.general import _worth
from dpfuse.optimal.programme import minimise
from support.belief import first_belief, posterior_of_state, renyi_divergences, update_belief

pytestmark = pytest.mark.slow
FIVE = 5.0


def single(**changes) -> optimal.Problem:
    """One sensor, which measures the state without error by default."""
    fields = {
        "transition": [[0.9, 0.1], [0.2, 0.8]],
        "sensor_probabilities": [0.0, 1.0],
        "num_sensors": 1,
        "prior": [0.7, 0.3],
        "horizon": 3,
        "order": 2.0,
        "budget": 2.0,
    }
    return optimal.Problem(**(fields | changes))


SMALL = {"num_beliefs": 31, "num_budgets": 11}


@pytest.fixture(scope="module")
def two() -> optimal.GeneralSolution:
    return optimal.solve_general(single(), num_symbols=2, **SMALL)


@pytest.fixture(scope="module")
def four() -> optimal.GeneralSolution:
    return optimal.solve_general(single(), num_symbols=4, **SMALL)


def test_programmes_are_solved_as_another_solver_does():
    rng = np.random.default_rng(0)
    rows = np.stack([np.ones((8, 40)), *rng.normal(size=(3, 8, 40))], axis=1)
    feasible = rng.dirichlet(np.full(40, 0.2), 8)
    b, c = np.einsum("nrc,nc->nr", rows, feasible), rng.normal(size=(8, 40))
    with jax.enable_x64(True):
        x, gap = jax.jit(jax.vmap(lambda c, rows, b: minimise(c, rows, b)))(*map(jnp.asarray, (c, rows, b)))
    for n in range(8):
        expected = linprog(c[n], A_eq=rows[n], b_eq=b[n]).fun
        assert c[n] @ np.asarray(x)[n] == pytest.approx(expected, abs=1e-7)
    assert np.asarray(gap).max() < 1e-7 and np.asarray(x).min() >= 0


@jax.jit
def best_release(options, belief, rest, measures_one):
    worth = _worth(options.shift, belief, rest, measures_one)
    return best_cost(options, worth)[0], best_kernel(options, worth)


best_programme = jax.jit(lambda options, worth: best_cost(options, worth)[0])


class TestOneLoss:
    """One release at a given loss, with a concave cost of beliefs."""

    ORDERS = (1.5, 2.0, 6.0)

    MEASURES_ONE = np.array([0.1, 0.8])

    def rest(self, belief):
        """The cost after a belief: concave, with a kink."""
        return belief * (1 - belief) + 0.3 * np.minimum(belief, 0.6 * (1 - belief))

    def cost(self, kernel, belief):
        """Of one release with this kernel, by Bayes' rule."""
        likelihood = kernel @ np.stack([1 - self.MEASURES_ONE, self.MEASURES_ONE])
        joint = likelihood * [1 - belief, belief]
        chance = joint.sum(axis=1)
        return float(chance @ self.rest(joint[:, 1] / chance))

    def best(self, loss, order, num_symbols, belief):
        options = jax.tree.map(lambda leaf: leaf[0], make_options(np.array([loss]), order, num_symbols))
        nodes = np.sin(np.linspace(0, np.pi / 2, 161)) ** 2
        cost, kernel = best_release(options, belief, self.rest(nodes), self.MEASURES_ONE)
        return float(cost), np.asarray(kernel)

    @pytest.mark.parametrize("order", ORDERS)
    def test_no_collection_on_any_alphabet_is_better_than_four_symbols(self, order):
        """Random collections on 2 to 7 symbols, each mixed until its loss is exact."""
        rng, loss = np.random.default_rng(3), 0.6
        with jax.enable_x64(True):
            for belief in (0.15, 0.5, 0.8):
                best, kernel = self.best(loss, order, 4, belief)
                assert renyi_divergences(kernel, order).max() <= loss
                assert self.cost(kernel, belief) == pytest.approx(best, abs=2e-4)
                for _ in range(25):
                    raw = rng.dirichlet(np.full(rng.integers(2, 8), 0.7), 2).T
                    raw = 0.999 * raw + 0.001 / len(raw)
                    middle = raw.mean(axis=1, keepdims=True)

                    def excess(share: float, raw: np.ndarray = raw, middle: np.ndarray = middle) -> float:
                        return renyi_divergences(middle + share * (raw - middle), order).max() - loss

                    share = 1.0 if excess(1.0) < 0 else brentq(excess, 0, 1)
                    assert self.cost(middle + share * (raw - middle), belief) >= best - 2e-4

    @pytest.mark.parametrize("num_symbols", [2, 4])
    def test_never_worse_than_gaussian_noise_quantised_at_equal_loss(self, num_symbols):
        rng = np.random.default_rng(4)
        with jax.enable_x64(True):
            for loss in (0.01, 0.3, 2.0):
                g = np.sqrt(loss)  # order 2
                for belief in (0.05, 0.4, 0.5, 0.9):
                    best, _ = self.best(loss, 2.0, num_symbols, belief)
                    for _ in range(10):
                        cuts = np.sort(rng.normal(g / 2, 1, num_symbols - 1))
                        ends = np.concatenate([[-np.inf], cuts, [np.inf]])
                        kernel = np.stack([np.diff(norm.cdf(ends - mean)) for mean in (0, g)], axis=1)
                        assert renyi_divergences(kernel, 2.0).max() <= loss
                        assert best <= self.cost(kernel, belief)

    def test_more_than_two_symbols_can_be_better(self):
        """The cost is constant over many beliefs: the best release tells nothing most of the time, and rarely much."""
        nodes = np.sin(np.linspace(0, np.pi / 2, 161)) ** 2
        rest = np.minimum(np.minimum(nodes, 1 - nodes), 0.2)
        with jax.enable_x64(True):
            costs = []
            for num_symbols in (2, 4):
                options = jax.tree.map(lambda leaf: leaf[0], make_options(np.array([0.6]), 2.0, num_symbols))
                cost, kernel = best_release(options, 0.5, rest, np.array([0.0, 1.0]))
                costs.append(float(cost))
        assert costs[1] < 0.98 * costs[0]
        weight, ratio = np.asarray(kernel).mean(axis=1), np.divide(*np.asarray(kernel).T)
        assert ((weight > 0.1) & (np.abs(ratio - 1) < 0.01)).any()  # the symbol that tells nothing

    @pytest.mark.parametrize(
        ("cap", "loss", "known"),
        [(0.03, 0.6, 0.029806), (0.1, 0.05, 0.099849), (0.2, 0.6, 0.187976), (0.2, 1e-4, 0.199999)],
    )
    @pytest.mark.parametrize("belief", [0.3, 0.5])
    def test_symbols_reach_the_likelihood_ratios_of_a_finer_solver(self, cap, loss, known, belief):
        """The cost falls only near certainty. The reference uses thousands of likelihood ratios and another solver."""

        def worth(t):
            zero, one = (1 - belief) * (1 - t), belief * (1 + t)
            return np.minimum(np.minimum(zero, one), cap * (zero + one))

        ends = np.geomspace(1e-4, 8, 1200)
        t = np.tanh(np.concatenate([-ends[::-1], [0], ends]))
        moments = [(1 + s) ** 2 / (1 - s) / np.exp(loss) for s in (t, -t)]
        reference = linprog(worth(t), A_ub=moments, b_ub=[1, 1], A_eq=[np.ones_like(t), t], b_eq=[1, 0]).fun
        with jax.enable_x64(True):
            costs = []
            for coarseness in (1, 2):
                options = make_options(np.array([loss]), 2.0, 4, coarseness=coarseness)
                options = jax.tree.map(lambda leaf: leaf[0], options)
                costs.append(float(best_programme(options, jnp.asarray(worth(np.asarray(options.shift))))))
        if belief == 0.5:
            assert reference == pytest.approx(known, abs=1e-6)
        # The gain of the release may be small. Half as many nodes gain no more, and lose little.
        gain, gains = worth(0.0) - reference, worth(0.0) - np.array(costs)
        np.testing.assert_allclose(gains, gain, rtol=0.05)
        assert gains[0] == pytest.approx(gain, rel=0.02)
        assert costs[0] <= costs[1] + 1e-9

    def test_two_symbols_at_even_odds_are_randomised_response(self):
        with jax.enable_x64(True):
            options = jax.tree.map(lambda leaf: leaf[0], make_options(np.array([0.8]), 2.0, 2))
            nodes = np.sin(np.linspace(0, np.pi / 2, 81)) ** 2
            variance = jnp.asarray(nodes * (1 - nodes))
            kernel = np.asarray(best_release(options, 0.5, variance, jnp.asarray([0.0, 1.0]))[1])
        truth = brentq(lambda p: np.log(p**2 / (1 - p) + (1 - p) ** 2 / p) - 0.8, 0.5, 1 - 1e-9)
        np.testing.assert_allclose(np.sort(kernel[:, 0]), [1 - truth, truth], atol=1e-5)
        np.testing.assert_allclose(kernel[:, 0], kernel[::-1, 1], atol=1e-9)


@pytest.mark.slow
class TestSolveGeneral:
    def test_every_collection_costs_at_most_what_is_charged(self, two, four):
        for solution in (two, four):
            np.testing.assert_allclose(solution.kernels.sum(axis=-2), 1, atol=1e-12)
            assert solution.kernels.min() >= 0
            divergence = renyi_divergences(np.maximum(solution.kernels, 1e-300), 2.0).max(axis=-1)
            assert (divergence <= solution.spending + 1e-12).all()

    def test_four_symbols_are_as_good_as_two_and_both_better_than_gaussian_noise(self, two, four):
        gaussian = optimal.solve(single(), **SMALL)
        assert four.value <= two.value * (1 + 1e-4)
        assert max(two.value, four.value) < gaussian.value
        assert four.gap < 1e-6

    def test_the_coarser_grid_differs_by_little(self, two, four):
        for solution in (two, four):
            assert 0 < solution.discretisation_error < 0.005
            assert solution.discretisation_error == abs(solution.value / solution.coarse_value - 1)
            assert solution.discretisation_error / 3 < solution.largest_difference < 0.02

    @pytest.mark.slow
    @pytest.mark.parametrize("num_symbols", [2, 4])
    def test_the_difference_to_the_coarser_grid_shrinks(self, num_symbols):
        coarse = optimal.solve_general(single(), num_symbols=num_symbols, num_beliefs=17, num_budgets=9)
        fine = optimal.solve_general(single(), num_symbols=num_symbols, num_beliefs=33, num_budgets=17)
        assert fine.coarse_value == pytest.approx(coarse.value, rel=2e-4)  # it differs in nodes of likelihood ratios
        assert 0 < fine.discretisation_error < 0.5 * coarse.discretisation_error
        assert 0 < fine.largest_difference < 0.5 * coarse.largest_difference

    def test_never_worse_than_the_gaussian_release_quantised_step_by_step(self, two):
        """The best policy among one-threshold Gaussian releases that leave a node of the same budget grid."""
        problem, nodes = two.problem, two.beliefs[:, 1]
        value = np.zeros((len(two.budgets), len(nodes)))
        for k in reversed(range(problem.horizon)):
            moved = (1 - nodes) * problem.transition[0, 1] + nodes * problem.transition[1, 1]
            rest = nodes * (1 - nodes) + np.stack([np.interp(moved, nodes, row) for row in value])
            value = rest.copy()
            for i, j in zip(*np.tril_indices(len(two.budgets), -1), strict=True):
                g = np.sqrt(two.budgets[i] - two.budgets[j])
                for cut in g * np.array([0.3, 0.5, 0.7]):
                    high = norm.sf(cut - np.array([0, g]))
                    cost = 0.0
                    for zero, one in (high, 1 - high):
                        chance = (1 - nodes) * zero + nodes * one
                        cost = cost + chance * np.interp(nodes * one / chance, nodes, rest[j])
                    value[i] = np.minimum(value[i], cost)
            # Linear interpolation of a concave function errs to the low side, by less than this.
            assert (two.cost_to_go[k] <= value + 2e-3).all()
        assert two.value < np.interp(problem.prior[1], nodes, value[-1])

    def test_simulation_agrees_and_never_overspends(self, two, four):
        for solution in (two, four):
            runs = solution.simulate(num_runs=20_000, seed=1)
            assert abs(runs.value - solution.value) < FIVE * runs.standard_error + 1e-3 * solution.value
            assert runs.loss.sum(axis=1).max() <= solution.problem.budget * (1 + 1e-12)

    @pytest.mark.parametrize(
        ("problem", "options", "message"),
        [
            (single(num_sensors=2), {}, "num_sensors must be 1 for whole collections, got 2; use solve"),
            (single(), {"num_symbols": 3}, "num_symbols must be 2 or 4, got 3; four are as good as any"),
            (single(), {"num_budgets": 2}, "num_budgets must be at least 9"),
            (single(), {"num_beliefs": 40}, "num_beliefs must be odd, got 40"),
        ],
    )
    def test_a_wrong_argument_is_named(self, problem, options, message):
        with pytest.raises(ValueError, match=message):
            optimal.solve_general(problem, **options)


class TestMemory:
    """Which collections suffice."""

    def test_the_past_of_a_sensor_without_error_can_be_averaged_out(self):
        """Same joint law of state and releases, no greater loss, for random collections that read all of the past."""
        rng, problem = np.random.default_rng(5), single()
        emission = np.eye(2)
        for _ in range(20):
            belief = first_belief(problem.prior, emission)
            for k in range(3):
                collection = rng.dirichlet(np.ones(3), 2 ** (k + 1))  # a distribution for each history
                by_present = belief.reshape(2, -1, 2).sum(axis=0)
                weights = by_present / by_present.sum(axis=0)
                averaged = np.einsum("hy,hyz->yz", weights, collection.reshape(-1, 2, 3))
                joint = belief @ collection
                memoryless = belief.reshape(2, -1, 2).sum(axis=1) @ averaged
                np.testing.assert_allclose(joint, memoryless, atol=1e-12)
                pairs = [np.stack([a, b], axis=1) for a in collection for b in collection]
                assert renyi_divergences(averaged.T, 2.0).max() <= renyi_divergences(np.array(pairs), 2.0).max() + 1e-12
                belief = update_belief(belief, collection[:, int(rng.integers(3))], problem.transition, emission)

    def test_the_past_of_a_sensor_that_errs_improves_the_estimate(self):
        """All budget at the last of three steps: randomised response on the majority beats that on the last value."""
        problem = single(transition=[[0.98, 0.02], [0.02, 0.98]], sensor_probabilities=[0.25, 0.75], prior=[0.5, 0.5])
        emission = np.array([[0.75, 0.25], [0.25, 0.75]])
        belief = first_belief(problem.prior, emission)
        for k in (1, 2):
            belief = update_belief(belief, np.ones(2**k), problem.transition, emission)
        history = np.array(list(np.ndindex(2, 2, 2)))

        def expected_variance(statistic):
            truth = 0.85
            likelihoods = [np.where(statistic == z, truth, 1 - truth) for z in (0, 1)]
            posteriors = [posterior_of_state(belief, likelihood)[1] for likelihood in likelihoods]
            chances = [(belief * likelihood).sum() for likelihood in likelihoods]
            return sum(p * b * (1 - b) for p, b in zip(chances, posteriors, strict=True))

        assert expected_variance(history.sum(axis=1) >= 2) < 0.97 * expected_variance(history[:, 2] == 1)
