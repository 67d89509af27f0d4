"""From data and a promise to a design."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats32
from dpfuse.policy.design import Design
from dpfuse.policy.step import Constants, Policy, make_networks
from dpfuse.policy.structure import FilterKind, Spending, Structure
from dpfuse.privacy.loss import FeatureSet, charge_factor
from dpfuse.training import alternating, pathwise
from dpfuse.training.progress import ProgressBar
from dpfuse.training.sampler import Sampler, spaced_windows
from dpfuse.training.settings import PPO, Architecture, Optimisation
from dpfuse.types import Guarantee, Trajectories

_STATIONARY_WINDOW = 300
_ARCHITECTURE = Architecture()
_OPTIMISATION = Optimisation()
_PPO = PPO()


def train(
    training: Trajectories,
    validation: Trajectories,
    guarantee: Guarantee | None,
    *,
    spending: Spending = "adaptive",
    method: Literal["pathwise", "ppo"] = "pathwise",
    horizon: int | None = None,
    stationary: bool = False,
    architecture: Architecture = _ARCHITECTURE,
    optimisation: Optimisation = _OPTIMISATION,
    ppo: PPO = _PPO,
    seed: int = 0,
    progress: bool = False,
) -> Design:
    """A fusion policy and estimator for the guarantee, with the smallest squared error that training finds.

    Args:
        training, validation: recordings that share no step, see `Trajectories.split`.
        guarantee: the promise to the sensors; None for the non-private floor.
        spending: how the budget is spent: `constant` (evenly), `schedule` (by step) or `adaptive` (by what was
            released so far).
        method: `pathwise`, by gradients through the whole loop, or `ppo`, by the paper's Algorithm 2.
        horizon: releases in all, the K of the paper; by default the length of the runs.
        stationary: no end and no clock; needs individual accounting.
        architecture, optimisation: the mechanism's shape and how its weights are found; `ppo`: likewise, for that
            method alone.
        seed: of first weights and noise; equal seeds give equal designs on equal machines. The windows that are drawn
            are the same for all seeds.
        progress: show a progress bar on stderr.
    """
    return train_many(
        training,
        validation,
        [guarantee],
        seeds=[seed],
        spending=spending,
        method=method,
        horizon=horizon,
        stationary=stationary,
        architecture=architecture,
        optimisation=optimisation,
        ppo=ppo,
        progress=progress,
    )[0]


def train_many(
    training: Trajectories,
    validation: Trajectories,
    guarantees: Sequence[Guarantee | None],
    *,
    seeds: Sequence[int] = (0,),
    spending: Spending = "adaptive",
    method: Literal["pathwise", "ppo"] = "pathwise",
    horizon: int | None = None,
    stationary: bool = False,
    architecture: Architecture = _ARCHITECTURE,
    optimisation: Optimisation = _OPTIMISATION,
    ppo: PPO = _PPO,
    progress: bool = False,
) -> list[Design]:
    """A design for each guarantee and, within it, each seed, all trained at once; arguments as in `train`.

    The guarantees may differ in order and budget, not in adjacency or accounting.
    """
    _check.is_one_of("spending", spending, ("constant", "schedule", "adaptive"))
    _check.is_one_of("method", method, ("pathwise", "ppo"))
    if method == "ppo" and (spending == "constant" or stationary or None in guarantees):
        raise ValueError("method='ppo' must have a budget, a horizon and spending that is not constant")
    if not guarantees or not seeds:
        raise ValueError("guarantees and seeds must each have at least one entry")
    if _widths(training) != _widths(validation):
        raise ValueError("training and validation must have the same channels and states")
    num_steps = None if stationary else _horizon(training, validation, horizon)
    recurrent_filter = architecture.recurrent_filter or usual_filter(guarantees, spending, method)
    structure = _make_structure(training, guarantees, spending, num_steps, architecture, recurrent_filter)
    window = _window(structure, optimisation, min(training.num_steps, validation.num_steps))
    pairs = [(guarantee, seed) for guarantee in guarantees for seed in seeds]
    keys = jnp.stack([jax.random.key(seed) for _, seed in pairs])
    init_keys, noise_keys = jnp.split(jax.vmap(jax.random.split)(keys), 2, axis=1)
    networks = jax.jit(jax.vmap(partial(make_networks, structure)))(init_keys[:, 0])
    scaling = _scaling(training, architecture)
    constants = [Constants(*map(jnp.asarray, [_squared_radius(guarantee), *scaling])) for guarantee, _ in pairs]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *constants)
    sampler = Sampler(
        training,
        window,
        optimisation.batch_size,
        num_devices=jax.local_device_count(),
        partly_spent=stationary,
        seed=0,
    )
    looks = spaced_windows(validation, window, optimisation.validation_windows, partly_spent=stationary)
    variance = np.square(scaling[-1])
    with ProgressBar(spending, optimisation.num_updates, variance, shown=progress) as bar:
        job = pathwise.Job(networks, stacked, structure, sampler, looks, optimisation, noise_keys[:, 0], bar.update)
        fitted = pathwise.fit(job) if method == "pathwise" else alternating.fit(job, ppo)
    record = {"method": method, "optimisation": optimisation.to_dict(), "window": window}
    if method == "ppo":
        record["ppo"] = ppo.to_dict()
    return [
        Design(
            Policy(jax.tree.map(lambda leaf, i=i: leaf[i], fitted.networks), constants[i], structure),
            guarantee,
            training.interval_s,
            {
                **record,
                "seed": seed,
                "validation_mse": float(np.mean(fitted.best[i] * variance)),
                "validation_history": (fitted.history[:, i] * variance).mean(1).tolist(),
            },
        )
        for i, (guarantee, seed) in enumerate(pairs)
    ]


def usual_filter(guarantees: Sequence[Guarantee | None], spending: Spending, method: str) -> FilterKind:
    """The filter unless told otherwise: guided for the floor, and where g reads the releases but for Algorithm 2."""
    is_guided = None in guarantees or (spending == "adaptive" and method == "pathwise")
    return "guided" if is_guided else "gru"


def _widths(data: Trajectories) -> tuple[int, int]:
    return data.state.shape[-1], data.measurements.shape[-1]


def _horizon(training: Trajectories, validation: Trajectories, horizon: int | None) -> int:
    if horizon is not None:
        return _check.is_count("horizon", horizon)
    if training.num_steps != validation.num_steps:
        raise ValueError(
            f"horizon must be given where training and validation runs differ in length, got "
            f"{training.num_steps} and {validation.num_steps} steps"
        )
    return training.num_steps


def _window(structure: Structure, optimisation: Optimisation, available: int) -> int:
    window = optimisation.window or structure.horizon or min(_STATIONARY_WINDOW, available)
    horizon = structure.horizon
    if horizon is not None and (window > horizon or (structure.has_clock and window != horizon)):
        raise ValueError(f"window must be the horizon, {horizon}, or shorter where no clock is read, got {window}")
    if window > available:
        raise ValueError(f"window must be at most the {available} steps of the shortest part, got {window}")
    return window


def _make_structure(
    training: Trajectories,
    guarantees: Sequence[Guarantee | None],
    spending: Spending,
    horizon: int | None,
    architecture: Architecture,
    recurrent_filter: FilterKind,
) -> Structure:
    first = guarantees[0]
    kinds = {(g.adjacency, g.accounting) if g else None for g in guarantees}
    if len(kinds) > 1:
        raise ValueError(f"guarantees trained at once must share adjacency and accounting, got {kinds}")
    num_channels = training.measurements.shape[-1]
    usual: tuple[FeatureSet, int] = ("ball", 2) if first is None or first.adjacency == "remove-one" else ("box", 1)
    if recurrent_filter == "affine":
        usual = "box", num_channels
    features, dimension = (
        architecture.features or usual[0],
        usual[1] if architecture.dimension is None else architecture.dimension,
    )
    crowd = max(1.0, float(training.present.sum(-1).mean()))
    stays = training.present.sum() / max(1, training.begins_stay.sum())
    return Structure(
        num_states=training.state.shape[-1],
        num_channels=num_channels,
        features=features if first else "unbounded",
        dimension=dimension,
        spending=spending if first else "constant",
        accounting=first.accounting if first else "total",
        charge_factor=_charge_factor(features, dimension, first),
        horizon=horizon,
        expected_stay=min(float(horizon or stays), max(1.0, float(stays))),
        crowd=round(crowd, 1),
        recurrent_filter=recurrent_filter,
        filter_size=architecture.filter_size,
        fusion_size=architecture.fusion_size,
        estimator_size=architecture.estimator_size,
    )


def _charge_factor(features: FeatureSet, dimension: int, guarantee: Guarantee | None) -> int:
    if guarantee is None:
        return 1
    return charge_factor(features, dimension, guarantee.adjacency, guarantee.accounting)


def _squared_radius(guarantee: Guarantee | None) -> Floats32:
    return np.asarray(float(guarantee.squared_radius) if guarantee else np.inf, np.float32)


def _scaling(training: Trajectories, architecture: Architecture) -> list[Floats32]:
    """Measurement range and state mean and deviation, as in `Constants`."""
    num_channels = training.measurements.shape[-1]
    seen = training.measurements[training.present]
    if not len(seen):
        raise ValueError("training must have at least one present sensor")
    low, high = architecture.measurement_range or (seen.min(0), seen.max(0))
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), num_channels) for bound in (low, high))
    with np.errstate(over="ignore"):
        if not (np.isfinite(high - low) & (low <= high)).all():
            raise ValueError(
                "measurement_range must be finite with low below high in every channel; without one, training must "
                "hold no extreme values"
            )
    high = np.where(high > low, high, low + 1)
    std = training.state.std(axis=(0, 1))
    values = low, high, training.state.mean(axis=(0, 1)), np.where(std > 0, std, 1.0)
    return [np.asarray(value, np.float32) for value in values]
