"""The problem that both learn: a design whose f and E are fixed, training windows, and validation episodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

import dpfuse
import dpfuse.data
from dpfuse.policy.policy import make_networks
from dpfuse.policy.rollout import PackedWindows, SensorFeatures, draw_noise, encode_sensors, sum_by_window
from dpfuse.systems import freeway
from dpfuse.training.environment import Episodes
from dpfuse.training.sampler import spaced_windows
from dpfuse.training.settings import PPO

STEPS, REPORTING = 100, 0.3
GUARANTEE = dpfuse.Guarantee(order=2.0, budget=0.5, adjacency="remove-one")
# f and E are trained with explored weights, as in the first round of Algorithm 2.
JOINT = dpfuse.Optimisation(num_updates=1000)
FIRST_ROUND = PPO(num_rounds=1, num_iterations=1, num_episodes=16, num_epochs=1)
VALIDATION_WINDOWS, VALIDATION_DRAWS = 128, 4


class Problem(NamedTuple):
    """The spending problem: a design that spends evenly, and recordings to train and to validate on."""

    design: dpfuse.Design
    training: dpfuse.Trajectories
    validation: dpfuse.Trajectories


def data_name() -> str:
    """US-101 where its files are named, else the simulated freeway."""
    return "us101" if os.environ.get("DPFUSE_DATA") else "freeway"


def read_problem(folder: Path) -> Problem:
    """The problem; its design is kept in the folder."""
    recording = dpfuse.data.us101() if data_name() == "us101" else freeway.simulate(seed=0)
    training, validation, _ = recording.sample_sensors(REPORTING, seed=0).split()
    kept = folder / "design.dpfuse"
    if not kept.exists():
        make_design(training, validation).save(kept)
    return Problem(dpfuse.load(kept), training, validation)


def make_design(training: dpfuse.Trajectories, validation: dpfuse.Trajectories) -> dpfuse.Design:
    """A design of Algorithm 2's first round with an untrained g, which spends evenly."""
    design = dpfuse.train(
        training,
        validation,
        GUARANTEE,
        method="ppo",
        horizon=STEPS,
        optimisation=JOINT,
        ppo=FIRST_ROUND,
        progress=True,
    )
    fresh = make_networks(design.structure, jax.random.key(1)).spending
    policy = eqx.tree_at(lambda p: p.networks.spending, design.policy, fresh)
    return dpfuse.Design(policy, design.guarantee, design.interval_s, design.training)


def validation_episodes(problem: Problem) -> Episodes:
    """The validation windows, each with several draws of noise; the same for both learners."""
    policy = problem.design.policy
    assert policy.is_summed  # Algorithm 2 has the paper's f
    windows = spaced_windows(problem.validation, STEPS, VALIDATION_WINDOWS)

    @jax.jit
    def prepare(windows: PackedWindows) -> Episodes:
        once = sum_by_window(encode_sensors(policy, windows), windows.state.shape[1])
        keys = jax.random.split(jax.random.key(0), VALIDATION_DRAWS)
        noise = [draw_noise(policy.structure, windows, key) for key in keys]
        encoded, present, arrived, skipped, state = (
            jax.numpy.concatenate([leaf] * VALIDATION_DRAWS, axis=1)
            for leaf in (once.encoded, once.present, once.arrived, once.skipped, windows.state)
        )
        count = encoded.shape[1]
        sensors = SensorFeatures(encoded, present, arrived, jax.numpy.arange(count), jax.numpy.ones(count), skipped)
        return Episodes(sensors, jax.numpy.concatenate(noise, axis=1), state)

    return jax.block_until_ready(prepare(jax.device_put(windows)))


def units(problem: Problem) -> float:
    """The factor from a squared error in standard units to (veh/km)^2."""
    return float(np.mean(np.square(problem.design.policy.constants.state_std)))
