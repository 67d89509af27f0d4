"""How far a learned design is from the optimum, and how much of it is due to its spending and to its estimator."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse._stats import Z95
from dpfuse.optimal.beliefs import mean_of_state, variance_of_state
from dpfuse.optimal.simulation import follow, posterior, sums_of_features
from dpfuse.optimal.solution import Solution
from dpfuse.policy.design import Design
from dpfuse.policy.rollout import cut, rollout
from dpfuse.privacy.loss import renyi_loss
from dpfuse.systems import hidden_markov

_BATCH = 1000

_run = eqx.filter_jit(rollout)


@dataclass(frozen=True)
class Gap:
    """The cost of a design above the optimum, relative to J*, from runs with the same data and noise for both.

    Attributes:
        total: (cost of the design - cost of the optimal policy) / J*.
        ci95: the 95% interval of `total`.
        spending: the part due to the spending. It remains if the estimator is exact.
        estimator: the part due to E: the mean squared distance of its estimates from the posterior mean.
        most_spent: the largest loss of a run. It is at most the budget.
    """

    total: float
    ci95: tuple[float, float]
    spending: float
    estimator: float
    most_spent: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def measure_gap(design: Design, solution: Solution, *, num_runs: int = 20_000, seed: int = 0) -> Gap:
    """The gap of a design to the solution of its problem.

    The design must use the solution's feature, the measurement (`recurrent_filter="affine"`). Its cost at a step is
    taken given its releases: the variance of the exact posterior plus (estimate - posterior mean)^2. This has the same
    mean as the squared error and a smaller variance.

    Args:
        design: a design with total accounting and charge factor 1, as in the solution.
        solution: the solution of the problem that the design is for.
        num_runs: simulated runs, rounded up to whole thousands.
        seed: of the simulated runs.
    """
    problem, structure = solution.problem, design.structure
    if structure.recurrent_filter != "affine" or structure.horizon != problem.horizon or design.guarantee is None:
        raise ValueError("design must have recurrent_filter='affine', a guarantee and the problem's horizon")
    if (structure.accounting, structure.charge_factor) != ("total", 1):
        raise ValueError(
            "design must have total accounting and charge factor 1 (one channel), as the solution has, got "
            f"{structure.accounting} accounting and charge factor {structure.charge_factor}"
        )
    highest = problem.system.output_probabilities.shape[2] - 1
    constants = design.policy.constants
    if (constants.measurement_low.tolist(), constants.measurement_high.tolist()) != ([0], [highest]):
        raise ValueError(f"design must have measurement_range=(0, {highest}), the problem's measurements")
    if (design.guarantee.order, design.guarantee.budget) != (problem.order, problem.budget):
        raise ValueError(f"design must have the problem's order and budget, got {design.guarantee}")
    rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
    num_batches = math.ceil(_check.is_count("num_runs", num_runs) / _BATCH)
    variance, distance, optimal, spent = [], [], [], 0.0
    for _ in range(num_batches):
        runs = hidden_markov.simulate(
            problem.system, num_runs=_BATCH, num_steps=problem.horizon, seed=int(rng.integers(2**31))
        )
        sums = sums_of_features(problem, runs)
        noise = rng.standard_normal(sums.shape)
        windows = cut(runs, np.arange(_BATCH), np.zeros(_BATCH, np.int64), problem.horizon)
        result = _run(design.policy, windows, jnp.asarray(noise.T[..., None], jnp.float32))
        weight = np.asarray(result.fusion_weight, np.float64).T
        belief = _posteriors(solution, weight, weight * sums + noise)
        variance.append(variance_of_state(belief).sum(1))
        distance.append(((np.asarray(result.mean, np.float64)[..., 0].T - mean_of_state(belief)) ** 2).sum(1))
        optimal.append(follow(problem, solution.spend, runs.state[..., 0].astype(np.int64), sums, noise).costs)
        spent = max(spent, float(renyi_loss(problem.order, 1, weight).sum(1).max()))
    own, away, best = (np.concatenate(parts) / solution.value for parts in (variance, distance, optimal))
    difference = own + away - best
    margin = Z95 * float(difference.std(ddof=1)) / np.sqrt(len(difference))
    total = float(difference.mean())
    return Gap(total, (total - margin, total + margin), float((own - best).mean()), float(away.mean()), spent)


def _posteriors(solution: Solution, weight: Floats, release: Floats) -> Floats:
    """p(X_k | Z^k) along each run, shape (runs, K, S)."""
    problem = solution.problem
    after = np.empty((*weight.shape, problem.num_states))
    belief = np.tile(problem.prior, (len(weight), 1))
    for k in range(problem.horizon):
        after[:, k] = posterior(problem, belief, weight[:, k], release[:, k])
        belief = after[:, k] @ problem.transition
    return after
