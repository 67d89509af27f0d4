"""From data and a guarantee to a design."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from dpfuse import _check
from dpfuse._arrays import Floats, Floats32
from dpfuse.errors import TrainingWarning
from dpfuse.guarantee import Guarantee
from dpfuse.policy.card import describe_recording
from dpfuse.policy.design import Design
from dpfuse.policy.parts import Part, part_name
from dpfuse.policy.policy import Constants, Networks, Policy, make_networks
from dpfuse.policy.recordings import check_recording
from dpfuse.policy.rollout import PackedWindows
from dpfuse.policy.spending import SpendingRule
from dpfuse.policy.structure import Structure
from dpfuse.privacy.loss import FeatureSet
from dpfuse.training import alternating, pathwise
from dpfuse.training.calibration import band_scales, calibration_windows
from dpfuse.training.early_stopping import Fitted
from dpfuse.training.progress import ProgressBar
from dpfuse.training.sampler import Sampler, spaced_windows
from dpfuse.training.scaling import find_filter_inputs, find_public_range, find_scales, suggest_attributes
from dpfuse.training.settings import PPO, Architecture, Optimisation
from dpfuse.trajectories import Trajectories

_log = logging.getLogger(__name__)
_STATIONARY_WINDOW = 600
# How many times longer the validation windows of a stationary design are: an E that drifts does so after the window.
_LONGER = 4
# A validation error above this share of the prior's is a failure.
_FAILED = 0.9
_Tree = TypeVar("_Tree", Networks, Constants)
_ARCHITECTURE = Architecture()
_OPTIMISATION = Optimisation()
_PPO = PPO()


class _Accounts(TypedDict):
    """What windows must know of accounts."""

    partly_spent: bool
    epoch_steps: float | None
    period_s: float | None


class TrainingOptions(TypedDict, total=False):
    """The keyword arguments that `train` and `train_many` share, see `train`."""

    spending: str | type[SpendingRule]
    method: Literal["pathwise", "ppo"]
    horizon: int | None
    stationary: bool
    epoch_s: float | None
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
        training, validation: recordings that share no step, see `Trajectories.split`. If reports of the training part
            lack channels, f reads which ones; otherwise a report that lacks a channel counts as absent. If it has
            attributes, f reads those of its sensor. If it has public inputs, g, E and a guided f read them.
        guarantee: what every sensor is guaranteed; None for the non-private floor.
        seed: of first weights and noise; equal seeds give equal designs on equal machines. The windows that are drawn
            are the same for all seeds.

    Keyword Args:
        spending: how the budget is spent: `constant` (evenly), `schedule` (by step), `adaptive` (by what was released
            so far), or a class of your own, see `SpendingRule`. By default `adaptive`.
        method: `pathwise`, by gradients through the whole loop, or `ppo`, by the paper's Algorithm 2. By default
            `pathwise`.
        horizon: number of releases, the K of the paper. By default the length of the runs.
        stationary: no end and no clock; needs individual accounting, or a guarantee with a period. A guarantee with a
            period needs it. By default False.
        epoch_s: of the bank that will lend to the centre: a sensor's first contribution then waits for one to two
            epochs. Needs individual accounting. By default None: the centre has accounts of its own.
        architecture: an `Architecture`: what the mechanism looks like.
        optimisation: an `Optimisation`: how its weights are found.
        ppo: a `PPO`: how Algorithm 2 finds g.
        progress: show a progress bar on stderr, then each validation error beside the prior's. By default False.
    """
    return train_many(training, validation, [guarantee], seeds=[seed], **options)[0]


def train_many(
    training: Trajectories,
    validation: Trajectories,
    guarantees: Sequence[Guarantee | None],
    *,
    seeds: Sequence[int] = (0,),
    **options: Unpack[TrainingOptions],
) -> list[Design]:
    """A design for each guarantee and, within it, each seed, all trained at once; arguments as in `train`.

    The guarantees may differ in order and budget, not in adjacency, accounting or period.
    """
    pairs = [(guarantee, seed) for guarantee in guarantees for seed in seeds]
    return train_pairs(training, validation, pairs, **options)


def train_pairs(
    training: Trajectories,
    validation: Trajectories,
    pairs: Sequence[tuple[Guarantee | None, int]],
    *,
    spending: str | type[SpendingRule] = "adaptive",
    method: Literal["pathwise", "ppo"] = "pathwise",
    horizon: int | None = None,
    stationary: bool = False,
    epoch_s: float | None = None,
    architecture: Architecture = _ARCHITECTURE,
    optimisation: Optimisation = _OPTIMISATION,
    ppo: PPO = _PPO,
    progress: bool = False,
) -> list[Design]:
    """A design for each pair of a guarantee and a seed, as `train_many`, which takes all pairs."""
    guarantees = [guarantee for guarantee, _ in pairs]
    _check_arguments(training, validation, guarantees, spending, method, stationary, epoch_s)
    num_steps = None if stationary else _horizon(training, validation, horizon)
    recurrent_filter = architecture.recurrent_filter or usual_filter(guarantees, spending, method)
    kind = part_name(recurrent_filter)
    structure = _make_structure(training, guarantees, spending, num_steps, architecture, kind)
    reads_step = structure.spending == "constant" and num_steps is not None and optimisation.window in (None, num_steps)
    structure = replace(structure, reads_step=reads_step)
    check_recording(structure, validation, "validation")
    window = _window(structure, optimisation, min(training.num_steps, validation.num_steps))
    is_live = stationary and None not in guarantees
    optimisation, faults = optimisation.for_window(window, is_live=is_live), optimisation.faults_for(is_live=is_live)
    if method == "ppo" and optimisation.num_starts not in (None, 1):
        raise ValueError(f"num_starts must be 1 with method='ppo', got {optimisation.num_starts}; train several seeds")
    num_starts = 1 if method == "ppo" else optimisation.starts
    keys = jnp.stack([_start_key(seed, start) for _, seed in pairs for start in range(num_starts)])
    init_keys, noise_keys = jnp.split(jax.vmap(jax.random.split)(keys), 2, axis=1)
    own = [part for part in (recurrent_filter, spending, architecture.estimator) if not isinstance(part, str)]
    scaling = find_scales(training, architecture)
    inputs = find_filter_inputs(structure, training, *scaling[:2])
    suggest_attributes(training)
    first_weights = partial(_first_weights, structure, parts=own, spread=inputs.spread)
    # One by one: compiled for all starts at once, this would take ten seconds for any structure.
    networks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[first_weights(key) for key in init_keys[:, 0]])
    found = inputs.constants | find_public_range(training)
    constants = [replace(_make_constants(guarantee, scaling), **found) for guarantee in guarantees]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *constants)
    of_starts = jax.tree.map(lambda leaf: np.repeat(leaf, num_starts, axis=0), stacked)
    accounts: _Accounts = {
        "partly_spent": stationary,
        "epoch_steps": None if epoch_s is None else epoch_s / training.interval_s,
        "period_s": None if guarantees[0] is None else guarantees[0].period_s,
    }
    num_devices, batch_size = jax.local_device_count(), optimisation.batch_size
    sampler = Sampler(training, window, batch_size, num_devices=num_devices, faults=faults, **accounts)
    cut_evenly = partial(_validation_windows, window=window, count=optimisation.validation_windows, **accounts)
    evenly = cut_evenly(validation)
    variance = np.square(scaling[-1])
    with ProgressBar(structure.spending, optimisation.num_updates, variance, shown=progress) as bar:
        given = networks, of_starts, structure, sampler, evenly, optimisation, noise_keys[:, 0], bar.update
        job = pathwise.Job(*given, num_starts=num_starts)
        fitted = pathwise.fit(job) if method == "pathwise" else alternating.fit(job, ppo)
    prior = np.square((evenly.state - scaling[2]) / scaling[3]).mean((0, 1))
    used = _record(training, validation, method, optimisation, ppo)
    used |= {"window": window, "prior_mse": float(np.mean(prior * variance))}
    used |= {"epoch_s": epoch_s} if epoch_s is not None else {}
    _warn_of_failures(pairs, fitted.best.mean(1) / prior.mean())
    for i, (guarantee, seed) in enumerate(pairs):
        _tell_errors(guarantee, seed, _validation_record(fitted, i, variance), used["prior_mse"], shown=progress)
    seen = calibration_windows(training, validation, cut_evenly, faults)
    scaled = eqx.tree_at(lambda c: c.std_scale, stacked, band_scales(structure, fitted.networks, stacked, *seen))
    return [
        Design(
            Policy(_at(fitted.networks, i), _at(scaled, i), structure),
            guarantee,
            training.interval_s,
            used | {"seed": seed} | _validation_record(fitted, i, variance),
        )
        for i, (guarantee, seed) in enumerate(pairs)
    ]


def _check_arguments(
    training: Trajectories,
    validation: Trajectories,
    guarantees: Sequence[Guarantee | None],
    spending: str | type[SpendingRule],
    method: str,
    stationary: bool,
    epoch_s: float | None,
) -> None:
    _check.is_one_of("method", method, ("pathwise", "ppo"))
    if method == "ppo" and (spending == "constant" or stationary or None in guarantees):
        raise ValueError("method='ppo' must have a budget, a horizon and spending that is not constant")
    if epoch_s is not None:
        _check.is_positive("epoch_s", epoch_s)
        if any(guarantee is None or guarantee.accounting == "total" for guarantee in guarantees):
            raise ValueError("epoch_s must come with individual accounting: a bank lends to each sensor")
    if not stationary and any(guarantee is not None and guarantee.period is not None for guarantee in guarantees):
        raise ValueError("a guarantee with a period must come with stationary=True: its budget is renewed without end")
    if not guarantees:
        raise ValueError("guarantees and seeds must each have at least one entry")
    if _widths(training) != _widths(validation):
        raise ValueError("training and validation must have the same channels, states, attributes and public inputs")


def _make_constants(guarantee: Guarantee | None, scaling: Sequence[Floats32]) -> Constants:
    return Constants(*map(jnp.asarray, [_squared_radius(guarantee), *scaling, np.ones_like(scaling[-1])]))


def _record(
    training: Trajectories, validation: Trajectories, method: str, optimisation: Optimisation, ppo: PPO
) -> dict[str, Any]:
    """What a design keeps of its training."""
    data = {"training": describe_recording(training), "validation": describe_recording(validation)}
    used: dict[str, Any] = {"data": data, "method": method, "optimisation": optimisation.to_dict()}
    used |= {"ppo": ppo.to_dict()} if method == "ppo" else {}
    if training.labels is not None:
        names = training.labels
        used["labels"] = {name: list(own) for name, own in (("state", names.state), ("channels", names.values))}
        used["labels"] |= {"public": list(names.public)} if names.public else {}
    return used


def _warn_of_failures(pairs: Sequence[tuple[Guarantee | None, int]], shares: Floats) -> None:
    """Warn of designs whose validation error, as a share of the prior's, is hardly below 1."""
    for (guarantee, seed), share in zip(pairs, shares, strict=True):
        if share > _FAILED:
            kind = "floor with" if guarantee is None else f"design with budget {guarantee.budget:g} and"
            larger = "" if guarantee is None else ", or a larger budget"
            warnings.warn(
                f"the {kind} seed {seed} hardly estimates better than the prior: its validation error is "
                f"{share:.0%} of the prior's; try another seed, or more updates or data{larger}",
                TrainingWarning,
                stacklevel=4,
            )


def _tell_errors(guarantee: Guarantee | None, seed: int, record: dict[str, Any], prior: float, *, shown: bool) -> None:
    """Log how the design came out, and what that is to be compared with; below the progress bar, too, if shown."""
    name = "floor" if guarantee is None else f"budget {guarantee.budget:g}"
    starts = ", ".join(f"{error:.4g}" for error in record.get("starts_mse", []))
    line = f"{name}, seed {seed}: validation error {record['validation_mse']:.4g}, without releases (prior) {prior:.4g}"
    line += f"; from each of the first weights, after a fifth of the updates: {starts}" if starts else ""
    _log.info("%s", line)
    if shown:
        print(line, file=sys.stderr)


def _at(stacked: _Tree, number: int) -> _Tree:
    """What belongs to one design, of arrays that lead with the designs."""
    return cast(_Tree, jax.tree.map(lambda leaf: jnp.asarray(leaf[number]), stacked))


def _validation_windows(
    recording: Trajectories, *, window: int, count: int, partly_spent: bool, **others: float | None
) -> PackedWindows:
    """Windows that are as long as those of training, or for a stationary design longer and fewer."""
    longer = _LONGER if partly_spent else 1
    length = min(longer * window, recording.num_steps)
    return spaced_windows(recording, length, -(-count // longer), partly_spent=partly_spent, **others)


def _start_key(seed: int, start: int) -> PRNGKeyArray:
    key = jax.random.key(seed)
    return key if start == 0 else jax.random.fold_in(key, start)


def _first_weights(
    structure: Structure, key: PRNGKeyArray, *, parts: Sequence[Part], spread: tuple[Floats32, Floats32]
) -> Networks:
    """Fresh weights, those of f made for inputs of this mean and standard deviation."""
    networks = make_networks(structure, key, parts)
    scaled = networks.recurrent_filter.with_inputs_scaled(*spread)
    return Networks(scaled, networks.spending, networks.estimator)


def _validation_record(fitted: Fitted, number: int, variance: Floats32) -> dict[str, Any]:
    """The validation errors of one design, in the state's own units."""
    spread = {}
    if fitted.starts is not None:
        spread["starts_mse"] = (fitted.starts[number] * variance).mean(1).tolist()
    return spread | {
        "validation_mse": float(np.mean(fitted.best[number] * variance)),
        "validation_history": (fitted.history[:, number] * variance).mean(1).tolist(),
    }


def usual_filter(guarantees: Sequence[Guarantee | None], spending: str | type[SpendingRule], method: str) -> str:
    """The default filter: guided for the floor and for adaptive pathwise designs; otherwise `gru`."""
    is_adaptive = spending not in ("constant", "schedule")
    return "guided" if None in guarantees or (is_adaptive and method == "pathwise") else "gru"


def _widths(data: Trajectories) -> tuple[int, int, int, int]:
    num_attributes = 0 if data.attributes is None else data.attributes.num_attributes
    num_public = 0 if data.public is None else data.public.shape[-1]
    return data.state.shape[-1], data.measurements.shape[-1], num_attributes, num_public


def _horizon(training: Trajectories, validation: Trajectories, horizon: int | None) -> int:
    if horizon is not None:
        return _check.is_count("horizon", horizon)
    if training.num_steps != validation.num_steps:
        raise ValueError(
            f"horizon must be given where training and validation runs differ in length, got "
            f"{training.num_steps} and {validation.num_steps} steps; give the number of releases of one budget, "
            f"here at most {min(training.num_steps, validation.num_steps)}, or split by whole runs"
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
    kinds = {(g.adjacency, g.accounting, g.period) if g else None for g in guarantees}
    if len(kinds) > 1:
        raise ValueError(f"guarantees trained at once must share adjacency, accounting and period, got {kinds}")
    num_channels = training.measurements.shape[-1]
    usual = _usual_features(first, training.state.shape[-1])
    if recurrent_filter == "affine":
        usual = "box", num_channels
    features, dimension = (
        architecture.features or usual[0],
        usual[1] if architecture.dimension is None else architecture.dimension,
    )
    num_present = max(1.0, float(training.present.sum(-1).mean()))
    stays = training.present.sum() / max(1, training.begins_stay.sum())
    if first is not None and first.period_s is not None:
        in_period = max(1.0, first.period_s / training.interval_s)
        stays = in_period if first.accounting == "total" else min(stays, in_period)
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
        partial_reports=training.num_partial > 0,
        num_attributes=_widths(training)[2],
        num_public=_widths(training)[3],
    )


def _usual_features(guarantee: Guarantee | None, num_states: int) -> tuple[FeatureSet, int]:
    """The feature set whose charge factor is the smallest for what it can say, and d, at least the number of states."""
    if guarantee is None or guarantee.adjacency == "remove-one":
        return "ball", max(2, num_states)
    return ("box", num_states) if guarantee.accounting == "total" else ("orthant", max(2, num_states))


def _squared_radius(guarantee: Guarantee | None) -> Floats32:
    return np.asarray(float(guarantee.squared_radius) if guarantee else np.inf, np.float32)
