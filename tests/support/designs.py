"""Designs, data and settings that many tests share."""

from __future__ import annotations

import itertools
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import dpfuse
from dpfuse.guarantee import ACCOUNTINGS, ADJACENCIES, Guarantee
from dpfuse.policy import Design, Structure
from dpfuse.privacy import FEATURE_SETS
from dpfuse.systems import linear_gaussian
from dpfuse.trajectories import NOBODY, Trajectories

CASES = list(itertools.product(ACCOUNTINGS, ADJACENCIES, FEATURE_SETS))
# Two of each kind of accounting and, between them, every adjacency and feature set.
SOME_CASES = [
    ("total", "remove-one", "ball"),
    ("total", "replace-one", "box"),
    ("individual", "replace-one", "ball"),
    ("individual", "remove-one", "orthant"),
]

# A small structure; accounting and charge factor come with the guarantee.
FIELDS = {
    "num_states": 1,
    "num_channels": 2,
    "dimension": 2,
    "spending": "adaptive",
    "horizon": 6,
    "expected_stay": 3.0,
    "expected_sensors": 4.0,
    "recurrent_filter": "guided",
    "filter_size": 8,
    "fusion_size": 8,
    "estimator_size": 8,
}

SMALL = dpfuse.Architecture(filter_size=4, fusion_size=4, estimator_size=8)
BRIEF = dpfuse.Optimisation(
    num_updates=120, batch_size=32, learning_rate=3e-2, validate_every=40, validation_windows=64
)


def make_guarantee(accounting="total", adjacency="remove-one", budget=1.5, order=2.0, period=None) -> Guarantee:
    return Guarantee(order=order, budget=budget, adjacency=adjacency, accounting=accounting, period=period)


def make_design(
    accounting="total",
    adjacency="remove-one",
    features="ball",
    *,
    budget=1.5,
    order=2.0,
    period=None,
    spread=0.0,
    seed=0,
    **options,
) -> Design:
    """An untrained design for measurements in [-1, 1]; `spread` moves every weight at random, as training would."""
    guarantee = None if features == "unbounded" else make_guarantee(accounting, adjacency, budget, order, period)
    fields = FIELDS | {"features": features} | options
    state_mean = np.arange(1.0, fields["num_states"] + 1)
    design = Design.untrained(guarantee, state_mean=state_mean, state_std=2.0, interval_s=0.5, seed=seed, **fields)
    policy = with_networks(design.policy, lambda leaf, rng: leaf + spread * rng.normal(size=leaf.shape))
    return replace(design, policy=policy)


def with_networks(policy, change, seed=0):
    """The policy with each array of its networks put through `change(array, rng)`."""
    rng = np.random.default_rng(seed)
    networks = jax.tree.map(lambda leaf: jnp.asarray(change(np.asarray(leaf), rng), jnp.float32), policy.networks)
    return type(policy)(networks, policy.constants, policy.structure)


def departing(policy, departure):
    """The policy with its log-odds moved by `departure` at every step: a large one spends everything at once."""
    by_step = jnp.full(policy.structure.horizon, departure, jnp.float32)
    return eqx.tree_at(lambda p: p.networks.spending.by_step, policy, by_step)


def make_structure(accounting="total", adjacency="remove-one", features="ball", **options) -> Structure:
    guarantee = None if features == "unbounded" else make_guarantee(accounting, adjacency)
    return Structure.for_guarantee(guarantee, **FIELDS | {"features": features} | options)


def busy_data(num_runs=3, num_steps=6, num_slots=5, num_channels=2, num_states=1, seed=0) -> Trajectories:
    """Runs in which sensors come, fall silent, and leave their slot to others."""
    rng = np.random.default_rng(seed)
    shape = num_runs, num_steps, num_slots
    arrives = rng.random(shape) < 0.25
    arrives[:, 0] = True
    # A new id at each arrival; some of the stays are of nobody.
    sensors = np.cumsum(arrives, axis=1) + 100 * np.arange(num_slots)
    sensors = np.where(sensors % 4 == 0, NOBODY, sensors)
    return Trajectories(
        state=rng.normal(size=(num_runs, num_steps, num_states)),
        measurements=rng.uniform(-1.2, 1.2, size=(*shape, num_channels)),
        present=(rng.random(shape) < 0.8) & (sensors != NOBODY),
        sensors=sensors,
    )


def random_walks(num_runs, seed, num_sensors=5, num_steps=8) -> Trajectories:
    system = linear_gaussian.LinearGaussian.random_walk(num_sensors=num_sensors, measurement_noise=0.1)
    return linear_gaussian.simulate(system, num_runs=num_runs, num_steps=num_steps, seed=seed)
