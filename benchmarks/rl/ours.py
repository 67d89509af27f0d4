"""Learn g with our PPO: the half of Algorithm 2 that changes g."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpfuse
from benchmarks.rl.clock import Curve
from benchmarks.rl.problem import STEPS, read_problem, units, validation_episodes
from dpfuse.policy.policy import Policy
from dpfuse.policy.rollout import close_loop
from dpfuse.training.alternating import collect, make_encode, make_play
from dpfuse.training.ppo import limit_spread, make_agent, make_agent_optimiser
from dpfuse.training.sampler import Sampler
from dpfuse.training.settings import PPO

# A shorter view ahead learns faster while f and E are fixed. Rounds are short, so that the error is measured often.
SETTINGS = PPO(gae=0.97, num_rounds=40, num_iterations=2)
BATCH = 16


def main() -> None:
    """Learn until the time is up, and write the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--curve", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dpfuse.use_all_cores()
    problem = read_problem(options.folder)
    policy = problem.design.policy
    judge = make_judge(policy, validation_episodes(problem), units(problem))
    judge(policy.networks.spending)
    run(problem, Curve(options.curve, options.seconds, judge), options.seed)


def make_judge(policy: Policy, episodes, scale: float):
    """The mean squared error of a g on the validation episodes."""

    @jax.jit
    def error(spending, sensors, noise, state):
        networks = eqx.tree_at(lambda n: n.spending, policy.networks, spending)
        mean = close_loop(Policy(networks, policy.constants, policy.structure), sensors, noise).mean
        return jnp.mean(((mean - state) / policy.constants.state_std) ** 2)

    return lambda spending: (
        scale * float(error(jax.device_get(spending), episodes.sensors, episodes.noise, episodes.state))
    )


def run(problem, curve: Curve, seed: int) -> None:
    """Rounds of episodes and updates until the time is up; compilation counts."""
    policy, structure = problem.design.policy, problem.design.structure
    curve.look(policy.networks.spending, 0)
    sampler = Sampler(problem.training, STEPS, BATCH, num_devices=jax.local_device_count(), seed=seed)
    mesh = Mesh(np.array(jax.local_devices()[: sampler.num_shards]), ("batch",))
    encode = make_encode(structure, mesh, num_designs=1)
    play = make_play(structure, SETTINGS, mesh, num_designs=1)
    keys = jax.random.split(jax.random.key(seed), 1)
    networks, constants = jax.tree.map(lambda leaf: leaf[None], (policy.networks, policy.constants))
    agents = jax.vmap(partial(make_agent, structure, settings=SETTINGS))(networks.spending, key=keys)
    train_state = jax.vmap(make_agent_optimiser(SETTINGS).init)(agents)
    everywhere = NamedSharding(mesh, PartitionSpec())
    networks, constants, agents, train_state, keys = jax.device_put(
        (networks, constants, agents, train_state, keys), everywhere
    )
    number = 0
    while not curve.is_over:
        number += 1
        agents = limit_spread(agents, SETTINGS, number)
        pool = collect(partial(encode, networks, constants), sampler, SETTINGS.num_episodes)
        round_keys = jax.vmap(partial(jax.random.fold_in, data=number))(keys)
        agents, train_state = play(networks, constants, agents, train_state, pool, round_keys)
        num_steps = number * SETTINGS.num_iterations * STEPS * pool.state.shape[0] * pool.state.shape[3]
        curve.look(jax.tree.map(lambda leaf: leaf[0], jax.device_get(agents.spending)), num_steps)


if __name__ == "__main__":
    main()
