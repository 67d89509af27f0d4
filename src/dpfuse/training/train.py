"""From data and a guarantee to a design."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats32
from dpfuse.policy.design import Design
from dpfuse.policy.parts import part_name
from dpfuse.policy.policy import Constants, Policy, make_networks
from dpfuse.policy.spending import SpendingRule
from dpfuse.policy.structure import Structure
from dpfuse.privacy.loss import FeatureSet
from dpfuse.training import alternating, pathwise
from dpfuse.training.early_stopping import Fitted
from dpfuse.training.progress import ProgressBar
from dpfuse.training.sampler import Sampler, spaced_windows
from dpfuse.training.settings import PPO, Architecture, Optimisation
from dpfuse.types import Guarantee, Trajectories

_STATIONARY_WINDOW = 300
_ARCHITECTURE = Architecture()
_OPTIMISATION = Optimisation()
_PPO = PPO()


class TrainingOptions(TypedDict, total=False):
    """The keyword arguments that `train` and `train_many` share, see `train`."""

    spending: str | type[SpendingRule]
    method: Literal["pathwise", "ppo"]
    horizon: int | None
    stationary: bool
    architecture: Architecture
    optimisation: Optimisation
    ppo: PPO
    progress: bool


def train(
    training: Trajectories,
    validation: Trajectories,
    guarantee: Guarantee | None,
    *,
    seed: int = 0,
    **options: Unpack[TrainingOptions],
) -> Design:
    """A fusion policy and estimator for the guarantee, with the smallest squared error that training finds.

    Args:
        training, validation: recordings that share no step, see `Trajectories.split`.
        guarantee: what every sensor is guaranteed; None for the non-private floor.
        seed: of first weights and noise; equal seeds give equal designs on equal machines. The windows that are drawn
            are the same for all seeds.

    Keyword Args:
        spending: how the budget is spent: `constant` (evenly), `schedule` (by step), `adaptive` (by what was released
            so far), or a class of your own, see `SpendingRule`. By default `adaptive`.
        method: `pathwise`, by gradients through the whole loop, or `ppo`, by the paper's Algorithm 2. By default
            `pathwise`.
        horizon: number of releases, the K of the paper. By default the length of the runs.
        stationary: no end and no clock; needs individual accounting. By default False.
        architecture: an `Architecture`: what the mechanism looks like.
        optimisation: an `Optimisation`: how its weights are found.
        ppo: a `PPO`: how Algorithm 2 finds g.
        progress: show a progress bar on stderr. By default False.
    """
    return train_many(training, validation, [guarantee], seeds=[seed], **options)[0]


def train_many(
    training: Trajectories,
    validation: Trajectories,
    guarantees: Sequence[Guarantee | None],
    *,
    seeds: Sequence[int] = (0,),
    spending: str | type[SpendingRule] = "adaptive",
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
    _check.is_one_of("method", method, ("pathwise", "ppo"))
    if method == "ppo" and (spending == "constant" or stationary or None in guarantees):
        raise ValueError("method='ppo' must have a budget, a horizon and spending that is not constant")
    if not guarantees or not seeds:
        raise ValueError("guarantees and seeds must each have at least one entry")
    if _widths(training) != _widths(validation):
        raise ValueError("training and validation must have the same channels and states")
    num_steps = None if stationary else _horizon(training, validation, horizon)
    recurrent_filter = architecture.recurrent_filter or usual_filter(guarantees, spending, method)
    structure = _make_structure(training, guarantees, spending, num_steps, architecture, part_name(recurrent_filter))
    window = _window(structure, optimisation, min(training.num_steps, validation.num_steps))
    pairs = [(guarantee, seed) for guarantee in guarantees for seed in seeds]
    keys = jnp.stack([jax.random.key(seed) for _, seed in pairs])
    init_keys, noise_keys = jnp.split(jax.vmap(jax.random.split)(keys), 2, axis=1)
    own = [part for part in (recurrent_filter, spending, architecture.estimator) if not isinstance(part, str)]
    networks = jax.jit(jax.vmap(partial(make_networks, structure, parts=own)))(init_keys[:, 0])
    scaling = _scaling(training, architecture)
    constants = [Constants(*map(jnp.asarray, [_squared_radius(guarantee), *scaling])) for guarantee, _ in pairs]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *constants)
    num_devices = jax.local_device_count()
    sampler = Sampler(training, window, optimisation.batch_size, num_devices=num_devices, partly_spent=stationary)
    looks = spaced_windows(validation, window, optimisation.validation_windows, partly_spent=stationary)
    variance = np.square(scaling[-1])
    with ProgressBar(structure.spending, optimisation.num_updates, variance, shown=progress) as bar:
        job = pathwise.Job(networks, stacked, structure, sampler, looks, optimisation, noise_keys[:, 0], bar.update)
        fitted = pathwise.fit(job) if method == "pathwise" else alternating.fit(job, ppo)
    used = {"method": method, "optimisation": optimisation.to_dict(), "window": window}
    used |= {"ppo": ppo.to_dict()} if method == "ppo" else {}
    return [
        Design(
            Policy(jax.tree.map(lambda leaf, i=i: leaf[i], fitted.networks), constants[i], structure),
            guarantee,
            training.interval_s,
            used | {"seed": seed} | _validation_record(fitted, i, variance),
        )
        for i, (guarantee, seed) in enumerate(pairs)
    ]


def _validation_record(fitted: Fitted, number: int, variance: Floats32) -> dict[str, Any]:
    """The validation errors of one design, in the state's own units."""
    return {
        "validation_mse": float(np.mean(fitted.best[number] * variance)),
        "validation_history": (fitted.history[:, number] * variance).mean(1).tolist(),
    }


def usual_filter(guarantees: Sequence[Guarantee | None], spending: str | type[SpendingRule], method: str) -> str:
    """The default filter: guided for the floor and for adaptive pathwise designs; otherwise `gru`."""
    is_adaptive = spending not in ("constant", "schedule")
    return "guided" if None in guarantees or (is_adaptive and method == "pathwise") else "gru"


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
    spending: str | type[SpendingRule],
    horizon: int | None,
    architecture: Architecture,
    recurrent_filter: str,
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
    num_present = max(1.0, float(training.present.sum(-1).mean()))
    stays = training.present.sum() / max(1, training.begins_stay.sum())
    return Structure.for_guarantee(
        first,
        num_states=training.state.shape[-1],
        num_channels=num_channels,
        features=features,
        dimension=dimension,
        spending=part_name(spending) if first else "constant",
        horizon=horizon,
        expected_stay=min(float(horizon or stays), max(1.0, float(stays))),
        expected_sensors=round(num_present, 1),
        recurrent_filter=recurrent_filter,
        estimator=part_name(architecture.estimator),
        filter_size=architecture.filter_size,
        fusion_size=architecture.fusion_size,
        estimator_size=architecture.estimator_size,
    )


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
                "measurement_range must be finite with low at most high in every channel; without one, training must "
                "hold no extreme values"
            )
    high = np.where(high > low, high, low + 1)
    std = training.state.std(axis=(0, 1))
    values = low, high, training.state.mean(axis=(0, 1)), np.where(std > 0, std, 1.0)
    return [np.asarray(value, np.float32) for value in values]
