"""Pathwise training: f, g and E together, by gradients through the whole closed loop.

The release Z = g f + N is differentiable in f and g with the noise N held, so the squared error summed over the horizon
is minimised directly by back-propagation through time. Several designs, one for each budget and seed, train at once on
the same windows with noise of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray

from dpfuse.errors import TrainingDiverged
from dpfuse.policy.rollout import Windows, draw_noise, rollout
from dpfuse.policy.step import Constants, Networks, Policy
from dpfuse.policy.structure import Structure
from dpfuse.training.sampler import Sampler
from dpfuse.training.settings import Optimisation

_WARM_UP = 0.05
_GRADIENT_NORM = 1.0


class Errors(NamedTuple):
    """In standard units, shape (K, windows, n_x)."""

    squared: Float[Array, "K windows n_x"]
    std: Float[Array, "K windows n_x"]


class Fitted(NamedTuple):
    """The best weights on validation, with a leading axis for the designs, and their validation errors.

    Attributes:
        networks: weights.
        best: smallest validation error of each design, in standard units.
        history: validation errors, shape (looks, designs).
    """

    networks: Networks
    best: np.ndarray
    history: np.ndarray


def run_errors(policy: Policy, windows: Windows, key: PRNGKeyArray) -> Errors:
    """Squared errors and claimed standard deviations over every window."""
    result = rollout(policy, windows, draw_noise(policy.structure, windows, key))
    std = policy.constants.state_std
    return Errors(((result.mean - windows.state) / std) ** 2, result.std / std)


def loss(
    networks: Networks, constants: Constants, structure: Structure, windows: Windows, key: PRNGKeyArray
) -> Float[Array, ""]:
    """The mean squared error, and for the claimed standard deviation its likelihood given the mean."""
    errors = run_errors(Policy(networks, constants, structure), windows, key)
    likelihood = jnp.log(errors.std) + 0.5 * jax.lax.stop_gradient(errors.squared) / errors.std**2
    return jnp.mean(errors.squared) + jnp.mean(likelihood)


def fit(
    networks: Networks,
    constants: Constants,
    structure: Structure,
    sampler: Sampler,
    validation: Windows,
    optimisation: Optimisation,
    keys: PRNGKeyArray,
    watch: Callable[[int, np.ndarray], None],
) -> Fitted:
    """Train designs side by side.

    Args:
        networks, constants: with a leading axis for the designs.
        keys: of each design's noise.
        watch: told the number of updates made and the validation errors so far best.

    Raises:
        TrainingDiverged: if a loss or gradient is not finite.
    """
    optimiser = _make_optimiser(optimisation)
    update = _make_update(optimiser, structure, _mesh())
    validate = _make_validate(structure, validation, optimisation.validation_draws)
    train_state = jax.vmap(optimiser.init)(eqx.filter(networks, eqx.is_array))
    best_networks, best = networks, np.full(len(keys), np.inf)
    history, looks_since = [], 0
    for number in range(1, optimisation.num_updates + 1):
        step_keys = jax.vmap(partial(jax.random.fold_in, data=number))(keys)
        networks, train_state, value = update(networks, train_state, constants, sampler.draw(), step_keys)
        if number % optimisation.validate_every and number != optimisation.num_updates:
            continue
        if not np.isfinite(value).all():
            raise TrainingDiverged(
                f"the training loss is not finite after {number} updates; lower learning_rate "
                f"({optimisation.learning_rate}) or look for extreme values in the training data"
            )
        errors = np.asarray(validate(networks, constants))
        history.append(errors)
        is_better = errors < best
        best = np.where(is_better, errors, best)
        best_networks = jax.tree.map(partial(_choose, is_better), networks, best_networks)
        watch(number, best)
        looks_since = 0 if is_better.any() else looks_since + 1
        if looks_since >= optimisation.patience:
            break
    return Fitted(best_networks, best, np.stack(history))


def _choose(is_better: np.ndarray, new: Array, old: Array) -> Array:
    return jnp.where(is_better.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _make_optimiser(optimisation: Optimisation) -> optax.GradientTransformation:
    warm_up = max(1, int(_WARM_UP * optimisation.num_updates))
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, optimisation.learning_rate, warm_up, optimisation.num_updates, 0.01 * optimisation.learning_rate
    )
    return optax.chain(optax.clip_by_global_norm(_GRADIENT_NORM), optax.adam(schedule))


def _mesh() -> Mesh:
    return Mesh(np.array(jax.local_devices()), ("batch",))


def _make_update(optimiser: optax.GradientTransformation, structure: Structure, mesh: Mesh) -> Callable:
    batch, everywhere = PartitionSpec("batch"), PartitionSpec()

    def gradients(networks: Networks, constants: Constants, windows: Windows, key: PRNGKeyArray):
        noise_key = jax.random.fold_in(key, jax.lax.axis_index("batch"))
        result = jax.value_and_grad(loss)(networks, constants, structure, windows, noise_key)
        return jax.lax.pmean(result, "batch")

    def on_shard(networks: Networks, constants: Constants, windows: Windows, keys: PRNGKeyArray):
        own = jax.tree.map(lambda leaf: leaf[0], windows)
        return over_designs(gradients, (0, 0, None, 0), len(keys))(networks, constants, own, keys)

    sharded = jax.shard_map(
        on_shard,
        mesh=mesh,
        in_specs=(everywhere, everywhere, batch, everywhere),
        out_specs=everywhere,
        check_vma=False,
    )

    @jax.jit
    def update(networks: Networks, train_state, constants: Constants, windows: Windows, keys: PRNGKeyArray):
        value, grads = sharded(networks, constants, windows, keys)
        updates, train_state = jax.vmap(optimiser.update)(grads, train_state)
        return optax.apply_updates(networks, updates), train_state, value

    return update


def _make_validate(structure: Structure, windows: Windows, num_draws: int) -> Callable:
    windows = jax.device_put(windows)
    noise_keys = jax.random.split(jax.random.key(0), num_draws)

    def mean_error(networks: Networks, constants: Constants, windows: Windows) -> Float[Array, ""]:
        policy = Policy(networks, constants, structure)
        return jnp.mean(jax.lax.map(lambda key: jnp.mean(run_errors(policy, windows, key).squared), noise_keys))

    @jax.jit
    def validate(networks: Networks, constants: Constants, windows: Windows) -> Float[Array, " designs"]:
        num_designs = len(constants.squared_radius)
        return over_designs(mean_error, (0, 0, None), num_designs)(networks, constants, windows)

    # The windows are an argument: XLA would spend seconds on folding constants of their size.
    return lambda networks, constants: validate(networks, constants, windows)


def over_designs(function: Callable, in_axes: tuple[int | None, ...], num_designs: int) -> Callable:
    """`jax.vmap` over the designs; a single one is spared the extra axis, which would slow its matrix products."""
    if num_designs > 1:
        return jax.vmap(function, in_axes=in_axes)

    def single(*arguments):
        squeezed = (
            argument if axis is None else jax.tree.map(lambda leaf: leaf[0], argument)
            for argument, axis in zip(arguments, in_axes, strict=True)
        )
        return jax.tree.map(lambda leaf: leaf[None], function(*squeezed))

    return single
