"""Pathwise training: f, g and E together, by gradients through the whole closed loop.

The release Z = g f + N is differentiable in f and g with the noise N held, so the squared error summed over the horizon
is minimised directly by back-propagation through time. Several designs, one for each budget and seed, train at once on
the same windows with noise of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray

from dpfuse.policy.policy import Constants, Networks, Policy
from dpfuse.policy.rollout import PackedWindows, draw_noise, rollout
from dpfuse.policy.structure import Structure
from dpfuse.training.early_stopping import Best, Fitted, Watch
from dpfuse.training.sampler import Sampler
from dpfuse.training.settings import Optimisation

_WARM_UP = 0.05
_GRADIENT_NORM = 1.0
# Through hundreds of steps a gradient can overflow once in a while; so many in a row are more than bad luck.
_MOST_OVERFLOWS = 10

Update = Callable[[Networks, optax.OptState, Constants, PackedWindows, Any], tuple[Networks, optax.OptState, Array]]


def standard_errors(
    policy: Policy,
    windows: PackedWindows,
    noise: Float[Array, "K windows d"],
    exploration: Float[Array, "K windows"] | None = None,
) -> tuple[Array, Array]:
    """Squared errors and claimed standard deviations in standard units, each of shape (K, windows, n_x)."""
    result = rollout(policy, windows, noise, exploration)
    std = policy.constants.state_std
    return ((result.mean - windows.state) / std) ** 2, result.std / std


def loss(
    policy: Policy,
    windows: PackedWindows,
    noise: Float[Array, "K windows d"],
    exploration: Float[Array, "K windows"] | None = None,
) -> Float[Array, ""]:
    """The mean squared error, and for the claimed standard deviation its likelihood given the mean."""
    squared, std = standard_errors(policy, windows, noise, exploration)
    likelihood = jnp.log(std) + 0.5 * jax.lax.stop_gradient(squared) / std**2
    return jnp.mean(squared) + jnp.mean(likelihood)


def explored_loss(policy: Policy, windows: PackedWindows, randomness: tuple[Array, Array]) -> Float[Array, ""]:
    """The loss, with noise and exploration handed over as one."""
    return loss(policy, windows, *randomness)


class Job(NamedTuple):
    """Designs to train side by side, and what with.

    Attributes:
        networks, constants: with a leading axis for the designs.
        validation: windows to choose the best weights by.
        keys: of each design's noise.
        watch: told how it goes.
    """

    networks: Networks
    constants: Constants
    structure: Structure
    sampler: Sampler
    validation: PackedWindows
    optimisation: Optimisation
    keys: PRNGKeyArray
    watch: Watch


def fit(job: Job) -> Fitted:
    """The best weights of every design.

    Raises:
        TrainingDiverged: if a validation error is not finite.
    """
    networks, constants, structure, sampler, validation, optimisation, keys, watch = job
    optimiser = make_optimiser(optimisation)
    mesh = Mesh(np.array(jax.local_devices()[: sampler.num_shards]), ("batch",))
    update = jax.jit(by_chance(make_update(optimiser, structure, mesh, explored_loss), structure))
    validate = make_validate(structure, validation, optimisation.validation_draws)
    train_state = jax.jit(jax.vmap(optimiser.init))(networks)
    # Where the update leaves them: else its second call would compile it anew.
    everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]  # JAX's own
    networks, constants, train_state, keys = jax.device_put((networks, constants, train_state, keys), everywhere)
    average, mix = networks, make_average(optimisation)
    best = Best(lambda weights: validate(weights, constants), optimisation, watch)
    for number in range(1, optimisation.num_updates + 1):
        step_keys = jax.vmap(partial(jax.random.fold_in, data=number))(keys)
        spread = np.full(len(keys), exploration_at(optimisation, structure, number), np.float32)
        networks, train_state, _ = update(networks, train_state, constants, sampler.draw(), (step_keys, spread))
        average = mix(average, networks, number)
        is_due = number % optimisation.validate_every == 0 or number == optimisation.num_updates
        if is_due and best.look(number, average, is_sound=bool((train_state.total_notfinite < number).all())):
            break
    return best.fitted()


def make_average(optimisation: Optimisation) -> Callable[[Networks, Networks, int], Networks]:
    """A running average of the weights, over the last 1 / (1 - decay) updates or all there have been."""
    usual = max(0.0, 1 - 20 / optimisation.num_updates)
    decay = usual if optimisation.decay is None else optimisation.decay

    @jax.jit
    def mix(average: Networks, networks: Networks, share: Array) -> Networks:
        return cast(Networks, jax.tree.map(lambda old, new: old + share * (new - old), average, networks))

    return lambda average, networks, number: mix(average, networks, np.float32(max(1 - decay, 1 / number)))


def make_optimiser(optimisation: Optimisation) -> optax.GradientTransformation:
    warm_up = int(_WARM_UP * optimisation.num_updates)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, optimisation.learning_rate, warm_up, optimisation.num_updates, 0.01 * optimisation.learning_rate
    )
    clipped = optax.chain(optax.clip_by_global_norm(_GRADIENT_NORM), optax.nadam(schedule))
    return optax.apply_if_finite(clipped, _MOST_OVERFLOWS)


def make_update(
    optimiser: optax.GradientTransformation,
    structure: Structure,
    mesh: Mesh,
    objective: Callable[[Policy, PackedWindows, Any], Array],
) -> Update:
    """One gradient step of all designs, the batch shared out over the devices of the mesh.

    The update takes and gives networks and optimiser states with a leading axis for the designs; windows have a leading
    axis for the devices, the noise one for the devices and one for the designs. It also gives each design's loss, which
    `objective` tells from policy, windows and noise.
    """
    batch, everywhere = PartitionSpec("batch"), PartitionSpec()  # type: ignore[no-untyped-call]  # JAX's own

    def gradients(
        networks: Networks, constants: Constants, windows: PackedWindows, noise: Any
    ) -> tuple[Array, Networks]:
        return jax.value_and_grad(lambda n: objective(Policy(n, constants, structure), windows, noise))(networks)

    def on_device(
        networks: Networks, constants: Constants, windows: PackedWindows, noise: Any
    ) -> tuple[Array, Networks]:
        windows, noise = jax.tree.map(lambda leaf: leaf[0], (windows, noise))
        num_designs = len(constants.squared_radius)
        result = over_designs(gradients, (0, 0, None, 0), num_designs)(networks, constants, windows, noise)
        return cast(tuple[Array, Networks], jax.lax.pmean(result, "batch"))  # type: ignore[no-untyped-call]  # JAX's own

    shared_out = jax.shard_map(
        on_device, mesh=mesh, in_specs=(everywhere, everywhere, batch, batch), out_specs=everywhere, check_vma=False
    )

    def update(
        networks: Networks, train_state: optax.OptState, constants: Constants, windows: PackedWindows, noise: Any
    ) -> tuple[Networks, optax.OptState, Array]:
        value, grads = shared_out(networks, constants, windows, noise)
        updates, train_state = jax.vmap(optimiser.update)(grads, train_state)
        return cast(Networks, optax.apply_updates(networks, updates)), train_state, value

    return update


def by_chance(update: Update, structure: Structure) -> Update:
    """The update, given a key and a spread for each design instead of noise and exploration."""

    def draw(key: PRNGKeyArray, spread: Array, windows: PackedWindows) -> tuple[Array, Array]:
        def on_device(windows: PackedWindows, key: PRNGKeyArray) -> tuple[Array, Array]:
            noise_key, exploration_key = jax.random.split(key)
            exploration = spread * jax.random.normal(exploration_key, windows.state.shape[:2])
            return draw_noise(structure, windows, noise_key), exploration

        return jax.vmap(on_device)(windows, jax.random.split(key, windows.state.shape[0]))

    def with_keys(
        networks: Networks,
        train_state: optax.OptState,
        constants: Constants,
        windows: PackedWindows,
        chance: tuple[PRNGKeyArray, Array],
    ) -> tuple[Networks, optax.OptState, Array]:
        randomness = jax.vmap(draw, in_axes=(0, 0, None), out_axes=1)(*chance, windows)
        return update(networks, train_state, constants, windows, randomness)

    return with_keys


def exploration_at(optimisation: Optimisation, structure: Structure, number: int) -> float:
    """The spread of the explored log-odds at that update; it falls to nothing, and even spending has none."""
    is_fixed = structure.spending == "constant" or not structure.is_private
    return 0.0 if is_fixed else optimisation.exploration * (1 - number / optimisation.num_updates)


def make_validate(
    structure: Structure, windows: PackedWindows, num_draws: int
) -> Callable[[Networks, Constants], Array]:
    windows = jax.device_put(windows)
    noise_keys = jax.random.split(jax.random.key(0), num_draws)

    def mean_error(networks: Networks, constants: Constants, windows: PackedWindows) -> Array:
        policy = Policy(networks, constants, structure)

        def of_draw(key: PRNGKeyArray) -> Array:
            return jnp.mean(standard_errors(policy, windows, draw_noise(structure, windows, key))[0], axis=(0, 1))

        return jnp.mean(jax.lax.map(of_draw, noise_keys), axis=0)

    @jax.jit
    def validate(networks: Networks, constants: Constants, windows: PackedWindows) -> Array:
        num_designs = len(constants.squared_radius)
        errors: Array = over_designs(mean_error, (0, 0, None), num_designs)(networks, constants, windows)
        return errors

    # The windows are an argument: XLA would spend seconds on folding constants of their size.
    return lambda networks, constants: validate(networks, constants, windows)


def over_designs(function: Callable[..., Any], in_axes: tuple[int | None, ...], num_designs: int) -> Callable[..., Any]:
    """`jax.vmap` over the designs; a single one is spared the extra axis, which would slow its matrix products."""
    if num_designs > 1:
        return jax.vmap(function, in_axes=in_axes)

    def single(*arguments: Any) -> Any:
        squeezed = (
            argument if axis is None else jax.tree.map(lambda leaf: leaf[0], argument)
            for argument, axis in zip(arguments, in_axes, strict=True)
        )
        return jax.tree.map(lambda leaf: leaf[None], function(*squeezed))

    return single
