"""Pathwise training: f, g and E together, by gradients through the whole closed loop.

With the noise N fixed, the release Z = g f + N is differentiable in f and g, so back-propagation through time minimises
the squared error summed over the horizon directly. Several designs, one for each budget and seed, train at once on the
same windows, each with noise of its own.
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

from dpfuse._arrays import Floats32
from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.policy import Constants, Networks, Policy
from dpfuse.policy.rollout import PackedWindows, draw_noise, rollout
from dpfuse.policy.structure import Structure
from dpfuse.training.early_stopping import Best, Fitted, Watch
from dpfuse.training.sampler import Sampler
from dpfuse.training.settings import Optimisation

# Shares of the updates: of those that all starts of a design make, and of those that the best of them and the cautious
# one make, which is slower at first.
_TRIAL, _SECOND_TRIAL = 0.2, 0.6
# Share of the learning rate at which the last start of several is trained.
_CAUTIOUS = 0.25
_FEW_DESIGNS = 16
_WARM_UP = 0.05
_GRADIENT_NORM = 1.0
_LIKELIHOOD = 0.1
# Through hundreds of steps a gradient overflows now and then, and its update is left out. After so many in a row optax
# applies the next one, so the weights become NaN and validation reports that training has diverged.
_MOST_OVERFLOWS = 10

Update = Callable[[Networks, optax.OptState, Constants, PackedWindows, Any], tuple[Networks, optax.OptState, Array]]


def standard_errors(
    policy: Policy,
    windows: PackedWindows,
    noise: Float[Array, "K windows d"],
    exploration: Float[Array, "K windows"] | None = None,
) -> tuple[Array, Array]:
    """Squared errors and estimated standard deviations in standard units, each of shape (K, windows, n_x)."""
    result = rollout(policy, windows, noise, exploration)
    std = policy.constants.state_std
    return ((result.mean - windows.state) / std) ** 2, result.std / std


def loss(
    policy: Policy,
    windows: PackedWindows,
    noise: Float[Array, "K windows d"],
    exploration: Float[Array, "K windows"] | None = None,
) -> Float[Array, ""]:
    """The mean squared error plus, for the estimated standard deviation, its negative log-likelihood given the mean.

    The optimiser follows signs and relative sizes of gradients, so the weight of the likelihood hardly changes how fast
    the standard deviation is learned. A small one keeps its gradients, which have heavy tails, out of the norm by which
    all gradients are clipped.
    """
    squared, std = standard_errors(policy, windows, noise, exploration)
    likelihood = jnp.log(std) + 0.5 * jax.lax.stop_gradient(squared) / std**2
    return jnp.mean(squared) + _LIKELIHOOD * jnp.mean(likelihood)


def explored_loss(policy: Policy, windows: PackedWindows, randomness: tuple[Array, Array]) -> Float[Array, ""]:
    """The loss, with noise and exploration as one argument."""
    return loss(policy, windows, *randomness)


class Job(NamedTuple):
    """Designs to train side by side, and all that training needs.

    Attributes:
        networks, constants: with a leading axis for the designs; where a design has several starts, for its starts,
            one after the other.
        structure: of all designs.
        sampler: draws training windows.
        validation: windows on which the best weights are chosen.
        optimisation: settings.
        keys: one for the noise of each design or start.
        watch: is called at every validation.
        num_starts: of each design.
    """

    networks: Networks
    constants: Constants
    structure: Structure
    sampler: Sampler
    validation: PackedWindows
    optimisation: Optimisation
    keys: PRNGKeyArray
    watch: Watch
    num_starts: int = 1


class _Runs(NamedTuple):
    """What training carries on, with a leading axis for designs and starts.

    Attributes:
        average: the running average of the weights.
        rates: by which each update is multiplied.
    """

    networks: Networks
    train_state: Any
    average: Networks
    constants: Constants
    keys: PRNGKeyArray
    rates: Float[AnyArray, " designs"]


def fit(job: Job) -> Fitted:
    """The best weights of every design.

    All starts of a design are trained for a while. Then two go on, the cautious one and of the others the one with the
    smallest validation error, and at last the better of these alone: some first weights end in poor local minima, and
    some systems need a smaller learning rate, with which an error falls later.

    Raises:
        TrainingDiverged: a validation error of all starts of a design is not finite, or none had a finite gradient.
    """
    networks, constants, structure, sampler, validation, optimisation, keys, watch, num_starts = job
    optimiser = make_optimiser(optimisation)
    mesh = Mesh(np.array(jax.local_devices()[: sampler.num_shards]), ("batch",))
    update = jax.jit(with_random_noise(make_update(optimiser, structure, mesh, explored_loss), structure))
    validate = make_validate(structure, validation, optimisation.validation_draws)
    train_state = jax.jit(jax.vmap(optimiser.init))(networks)
    # Placed where the update returns them; otherwise its second call would compile it again.
    everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]  # JAX's own
    rates = np.tile(learning_rates(num_starts), len(keys) // num_starts)
    runs = jax.device_put(_Runs(networks, train_state, networks, constants, keys, rates), everywhere)
    mix = make_average(optimisation)
    best, num_left, starts = Best(optimisation, watch), num_starts, None
    for number in range(1, optimisation.num_updates + 1):
        step_keys = jax.vmap(partial(jax.random.fold_in, data=number))(runs.keys)
        spread = np.full(len(runs.keys), exploration_at(optimisation, structure, number), np.float32)
        updated, train_state, _ = update(*runs[:2], runs.constants, sampler.draw(), (step_keys, spread))
        networks = updated if num_starts == 1 else _shorten(runs.networks, updated, runs.rates)
        runs = runs._replace(networks=networks, train_state=train_state, average=mix(runs.average, networks, number))
        if not (number % optimisation.validate_every == 0 or number == optimisation.num_updates):
            continue
        errors, is_sound = validate(runs.average, runs.constants), np.asarray(train_state.total_notfinite) < number
        if best.validate(number, runs.average, errors, is_sound=is_sound, num_starts=num_left):
            break
        starts = best.errors_of_starts(num_left) if num_left == num_starts > 1 else starts
        num_kept = starts_after(number / optimisation.num_updates, num_starts)
        if num_kept < num_left:
            chosen, num_left = best.best_starts(num_left, with_last=num_kept > 1), num_kept
            runs = jax.device_put(jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], runs), everywhere)
            best = best.keep(chosen)
    return best.keep(best.best_starts(num_left)).fitted()._replace(starts=starts)


def starts_after(share: float, num_starts: int) -> int:
    """How many starts of a design go on after that share of the updates."""
    return num_starts if share < _TRIAL else min(num_starts, 2) if share < _SECOND_TRIAL else 1


def learning_rates(num_starts: int) -> Floats32:
    """The learning rate of each start, as a share of the setting."""
    rates = np.ones(num_starts, np.float32)
    if num_starts > 1:
        rates[-1] = _CAUTIOUS
    return rates


@jax.jit
def _shorten(before: Networks, after: Networks, rates: Float[Array, " designs"]) -> Networks:
    """The weights after an update that is multiplied by the rate of each design."""

    def each(old: Array, new: Array) -> Array:
        return old + rates.reshape(-1, *[1] * (old.ndim - 1)) * (new - old)

    return cast(Networks, jax.tree.map(each, before, after))


def make_average(optimisation: Optimisation) -> Callable[[Networks, Networks, int], Networks]:
    """A function that gives the running average of the weights over the last 1 / (1 - decay) updates."""
    usual = max(0.0, 1 - 20 / optimisation.num_updates)
    decay = usual if optimisation.decay is None else optimisation.decay

    @jax.jit
    def mix(average: Networks, networks: Networks, share: Array) -> Networks:
        return cast(Networks, jax.tree.map(lambda old, new: old + share * (new - old), average, networks))

    return lambda average, networks, number: mix(average, networks, np.float32(max(1 - decay, 1 / number)))


def make_optimiser(optimisation: Optimisation) -> optax.GradientTransformation:
    warm_up, largest = int(_WARM_UP * optimisation.num_updates), optimisation.learning_rate
    assert largest is not None  # `Optimisation.for_window` has set it
    schedule = optax.warmup_cosine_decay_schedule(0.0, largest, warm_up, optimisation.num_updates, 0.01 * largest)
    clipped = optax.chain(optax.clip_by_global_norm(_GRADIENT_NORM), optax.nadam(schedule))
    return optax.apply_if_finite(clipped, _MOST_OVERFLOWS)


def make_update(
    optimiser: optax.GradientTransformation,
    structure: Structure,
    mesh: Mesh,
    objective: Callable[[Policy, PackedWindows, Any], Array],
) -> Update:
    """A function for one gradient step of all designs, each device of the mesh with its share of the batch.

    Networks and optimiser states lead with the designs, windows lead with the devices, and the noise with the devices
    and then the designs. The third result is each design's loss, `objective` of policy, windows and noise.
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


def with_random_noise(update: Update, structure: Structure) -> Update:
    """The update, given a key and a spread for each design; it draws noise and exploration itself."""
    draw = partial(draw_randomness, structure)

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


def draw_randomness(
    structure: Structure, key: PRNGKeyArray, spread: Array, windows: PackedWindows
) -> tuple[Array, Array]:
    """Noise and exploration of a batch, drawn for all of it: the same for any number of shards, which come first."""
    num_shards, steps, size, _ = windows.state.shape
    whole = windows._replace(state=jnp.moveaxis(jnp.asarray(windows.state), 0, 1).reshape(steps, num_shards * size, -1))

    def by_shard(drawn: Array) -> Array:
        return jnp.moveaxis(drawn.reshape(steps, num_shards, size, *drawn.shape[2:]), 1, 0)

    noise_key, exploration_key = jax.random.split(key)
    exploration = spread * jax.random.normal(exploration_key, whole.state.shape[:2])
    return by_shard(draw_noise(structure, whole, noise_key)), by_shard(exploration)


def exploration_at(optimisation: Optimisation, structure: Structure, number: int) -> float:
    """The standard deviation of the explored log-odds at that update; it falls to 0, and is 0 for even spending."""
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
        errors: Array = few_at_once(mean_error, networks, constants, windows)
        return errors

    # The windows are an argument: as constants, XLA would spend seconds on folding them.
    return lambda networks, constants: validate(networks, constants, windows)


def few_at_once(
    function: Callable[[Networks, Constants, PackedWindows], Array],
    networks: Networks,
    constants: Constants,
    windows: PackedWindows,
) -> Array:
    """The function of every design, a few at a time: validation has more windows than a batch, and memory is short."""
    num_designs = len(constants.squared_radius)
    if num_designs <= _FEW_DESIGNS:
        result: Array = over_designs(function, (0, 0, None), num_designs)(networks, constants, windows)
        return result

    def of_design(design: tuple[Networks, Constants]) -> Array:
        return function(design[0], design[1], windows)

    return cast(Array, jax.lax.map(of_design, (networks, constants), batch_size=_FEW_DESIGNS))


def over_designs(function: Callable[..., Any], in_axes: tuple[int | None, ...], num_designs: int) -> Callable[..., Any]:
    """`jax.vmap` over the designs; for a single design without the extra axis, which slows matrix products."""
    if num_designs > 1:
        return jax.vmap(function, in_axes=in_axes)

    def single(*arguments: Any) -> Any:
        squeezed = (
            argument if axis is None else jax.tree.map(lambda leaf: leaf[0], argument)
            for argument, axis in zip(arguments, in_axes, strict=True)
        )
        return jax.tree.map(lambda leaf: leaf[None], function(*squeezed))

    return single
