"""Algorithm 2: rounds that train f and E with g fixed, then g by PPO with f and E fixed.

Training ends after `PPO.num_rounds` rounds, or after `Optimisation.patience` validations without improvement if that is
given.

It starts from the classical design: g spends evenly until PPO first moves it. While f and E are trained, g's actions
are explored as in PPO, so that E learns from the weights that it will meet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PRNGKeyArray

from dpfuse.policy.policy import Constants, Networks, Policy
from dpfuse.policy.rollout import PackedWindows, SensorFeatures, encode_sensors, sum_by_window
from dpfuse.policy.structure import Structure
from dpfuse.training import pathwise
from dpfuse.training.early_stopping import Best, Fitted
from dpfuse.training.pathwise import over_designs
from dpfuse.training.ppo import Agent, Pool, improve, limit_spread, make_agent, make_agent_optimiser
from dpfuse.training.sampler import Sampler
from dpfuse.training.settings import PPO


def fit(job: pathwise.Job, settings: PPO) -> Fitted:
    """The best weights of every design.

    Raises:
        TrainingDiverged: a validation error is not finite.
    """
    networks, constants, structure, sampler, validation, optimisation, keys, watch, _ = job
    mesh = Mesh(np.array(jax.local_devices()[: sampler.num_shards]), ("batch",))
    everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]  # JAX's own
    joint_optimiser = pathwise.make_optimiser(optimisation)
    joint = jax.jit(
        pathwise.with_random_noise(pathwise.make_update(joint_optimiser, structure, mesh, joint_loss), structure)
    )
    encode = make_encode(structure, mesh, len(keys))
    play = make_play(structure, settings, mesh, len(keys))
    validate = pathwise.make_validate(structure, validation, optimisation.validation_draws)
    agents = jax.jit(jax.vmap(partial(make_agent, structure, settings=settings)))(networks.spending, key=_fold(keys, 0))
    joint_state, agent_state = _init(joint_optimiser, networks), _init(make_agent_optimiser(settings), agents)
    networks, constants, agents, joint_state, agent_state, keys = jax.device_put(
        (networks, constants, agents, joint_state, agent_state, keys), everywhere
    )
    average, mix = networks, pathwise.make_average(optimisation)
    best = Best(optimisation, watch)
    per_round = -(-optimisation.num_updates // settings.num_rounds)
    for number in range(1, settings.num_rounds + 1):
        for update in range(per_round):
            step_keys = _fold(keys, number, update)
            spread = jnp.exp(agents.log_spread) if settings.joint_exploration else jnp.zeros(len(keys))
            networks, joint_state, _ = joint(networks, joint_state, constants, sampler.draw(), (step_keys, spread))
            average = mix(average, networks, (number - 1) * per_round + update + 1)
        agents = limit_spread(agents, settings, number)
        pool = collect(partial(encode, networks, constants), sampler, settings.num_episodes)
        round_keys = _fold(keys, number, per_round)
        agents, agent_state = play(networks, constants, agents, agent_state, pool, round_keys)
        networks, average = (
            eqx.tree_at(lambda n: n.spending, weights, agents.spending) for weights in (networks, average)
        )
        if best.validate(number * per_round, average, validate(average, constants)):
            break
    return best.fitted()


def _init(optimiser: Any, weights: Any) -> Any:
    return jax.jit(jax.vmap(optimiser.init))(weights)


def _fold(keys: PRNGKeyArray, *numbers: int) -> PRNGKeyArray:
    for number in numbers:
        keys = jax.vmap(partial(jax.random.fold_in, data=number))(keys)
    return keys


def joint_loss(policy: Policy, windows: PackedWindows, randomness: tuple[Array, Array]) -> Array:
    """The loss with g fixed: its weights have no gradient, while gradients pass through what it reads."""
    fixed = jax.lax.stop_gradient(policy.networks.spending)
    networks = eqx.tree_at(lambda n: n.spending, policy.networks, fixed)
    return pathwise.explored_loss(Policy(networks, policy.constants, policy.structure), windows, randomness)


def make_encode(
    structure: Structure, mesh: Mesh, num_designs: int
) -> Callable[[Networks, Constants, PackedWindows], Pool]:
    """A function that gives the episodes of a batch of windows; its arrays lead with devices and designs."""
    batch, everywhere = PartitionSpec("batch"), PartitionSpec()  # type: ignore[no-untyped-call]  # JAX's own

    def encode(networks: Networks, constants: Constants, windows: PackedWindows) -> Pool:
        policy = Policy(networks, constants, structure)
        sensors = encode_sensors(policy, windows)
        if policy.is_summed:
            sensors = sum_by_window(sensors, windows.state.shape[1])
        return Pool(sensors, jnp.asarray(windows.state))

    def on_device(networks: Networks, constants: Constants, windows: PackedWindows) -> Pool:
        encoded = over_designs(encode, (0, 0, None), num_designs)(networks, constants, _first(windows))
        return cast(Pool, jax.tree.map(lambda leaf: leaf[None], encoded))

    in_specs = everywhere, everywhere, batch
    return jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=in_specs, out_specs=batch, check_vma=False))


def collect(encode: Callable[[PackedWindows], Pool], sampler: Sampler, num_episodes: int) -> Pool:
    """At least `num_episodes` episodes, from newly drawn windows."""
    parts = [encode(sampler.draw())]
    per_draw = parts[0].state.shape[0] * parts[0].state.shape[3]
    parts += [encode(sampler.draw()) for _ in range(-(-num_episodes // per_draw) - 1)]
    pool: Pool = _join(parts)
    return pool


def make_play(structure: Structure, settings: PPO, mesh: Mesh, num_designs: int) -> Callable[..., tuple[Agent, Any]]:
    """A function that runs one round of PPO for all designs, each device with its share of the episodes."""
    batch, everywhere = PartitionSpec("batch"), PartitionSpec()  # type: ignore[no-untyped-call]  # JAX's own

    def play(
        networks: Networks, constants: Constants, agent: Agent, train_state: Any, pool: Pool, key: PRNGKeyArray
    ) -> tuple[Agent, Any]:
        policy = Policy(networks, constants, structure)
        device_key = jax.random.fold_in(key, jax.lax.axis_index("batch"))

        def iteration(carry: tuple[Agent, Any], number: Array) -> tuple[tuple[Agent, Any], None]:
            return improve(policy, *carry, pool, settings, jax.random.fold_in(device_key, number)), None

        return jax.lax.scan(iteration, (agent, train_state), jnp.arange(settings.num_iterations))[0]

    def on_device(
        networks: Networks, constants: Constants, agents: Agent, train_state: Any, pool: Pool, keys: PRNGKeyArray
    ) -> tuple[Agent, Any]:
        each = over_designs(play, (0,) * 6, num_designs)
        return cast(tuple[Agent, Any], each(networks, constants, agents, train_state, _first(pool), keys))

    in_specs = everywhere, everywhere, everywhere, everywhere, batch, everywhere
    return jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=in_specs, out_specs=everywhere, check_vma=False))


@jax.jit
def _join(parts: list[Pool]) -> Pool:
    """The windows of all parts one after the other; arrays lead with devices and designs."""
    num_windows = [part.state.shape[3] for part in parts]
    total, offsets = sum(num_windows), np.cumsum([0, *num_windows[:-1]])
    window = [
        jnp.where(part.sensors.window < count, part.sensors.window + offset, total)
        for part, count, offset in zip(parts, num_windows, offsets, strict=True)
    ]
    sensors = SensorFeatures(
        encoded=jnp.concatenate([part.sensors.encoded for part in parts], axis=3),
        present=jnp.concatenate([part.sensors.present for part in parts], axis=3),
        arrived=jnp.concatenate([part.sensors.arrived for part in parts], axis=3),
        window=jnp.concatenate(window, axis=2),
        account_share=jnp.concatenate([part.sensors.account_share for part in parts], axis=2),
        skipped=jnp.concatenate([part.sensors.skipped for part in parts], axis=3),
        joined=_join_where_given([part.sensors.joined for part in parts], 2),
        opened=_join_where_given([part.sensors.opened for part in parts], 3),
        renewed=_join_where_given([part.sensors.renewed for part in parts], 3),
        public=_join_where_given([part.sensors.public for part in parts], 3),
    )
    return Pool(sensors, jnp.concatenate([part.state for part in parts], axis=3))


def _join_where_given(parts: list[Any], axis: int) -> Array | None:
    return None if parts[0] is None else jnp.concatenate(parts, axis=axis)


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)
