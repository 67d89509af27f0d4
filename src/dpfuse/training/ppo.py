"""Proximal policy optimisation of the fusion weight g, with f and E fixed.

The paper's section on PPO, for a cost. The action is the departure from even spending, in log-odds of the share of the
budget left. It is drawn from a Gaussian around g's departure, with a learned standard deviation. J is a recurrent
cost-to-go. With the ratio r of the action's new and old probabilities and its advantage G,

    minimise    E[ max(r G, clip(r, 1 - eps, 1 + eps) G) ]:

G is of a cost, so the larger product is the safe one. f is fixed, so its pass over the sensors' histories is made once
(`encode_sensors`). In total accounting, unless f is guided, only the sum of the features matters then
(`sum_by_window`), and an episode is a loop over the small networks alone.

From an action's cost we subtract what the same window with the same release noise costs without exploration. The
difference has the same mean gradient, as neither windows nor noise depend on the action, and far less variance.
Advantages can be generalised (Schulman et al. 2016); with this difference they do best with lambda = 1.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from dpfuse.policy.gru import GRU, read_over_time
from dpfuse.policy.policy import Policy
from dpfuse.policy.rollout import SensorFeatures, close_loop
from dpfuse.policy.spending import SpendingRule
from dpfuse.policy.structure import Structure
from dpfuse.training.settings import PPO

_GRADIENT_NORM = 1.0


class CostToGo(eqx.Module):
    """J: the cost expected from each step on, from public information, by a GRU of its own."""

    gru: GRU
    head: eqx.nn.Linear

    def __init__(self, num_inputs: int, size: int, *, key: PRNGKeyArray):
        gru_key, head_key = jax.random.split(key)
        self.gru = GRU(num_inputs, size, key=gru_key)
        head = eqx.nn.Linear(size, 1, key=head_key)
        self.head = eqx.tree_at(lambda h: (h.weight, h.bias), head, replace_fn=jnp.zeros_like)

    def __call__(self, observed: Float[Array, "K windows inputs"]) -> Float[Array, "K windows"]:
        steps_left = jnp.arange(len(observed), 0, -1)[:, None]
        return steps_left * read_over_time(self.gru, self.head, observed)


class Agent(eqx.Module):
    """What PPO changes: g, the spread of its actions (in logarithm) and the cost-to-go."""

    spending: SpendingRule
    log_spread: Float[Array, ""]
    cost_to_go: CostToGo


class Pool(NamedTuple):
    """Episodes to play, one device's share: filter outputs and true states."""

    sensors: SensorFeatures
    state: Float[Array, "K windows n_x"]


class Experience(NamedTuple):
    """Episodes that were played: what g read, actions with mean and spread, advantages, and costs from each step on."""

    observed: Float[Array, "K windows inputs"]
    action: Float[Array, "K windows"]
    mean: Float[Array, "K windows"]
    log_spread: Float[Array, ""]
    advantage: Float[Array, "K windows"]
    cost_to_go: Float[Array, "K windows"]


def make_agent(structure: Structure, spending: SpendingRule, settings: PPO, key: PRNGKeyArray) -> Agent:
    """An agent that starts from the spending rule."""
    cost_to_go = CostToGo(structure.num_observed, settings.critic_size, key=key)
    return Agent(spending, jnp.log(jnp.asarray(settings.spread, jnp.float32)), cost_to_go)


def make_agent_optimiser(settings: PPO) -> optax.GradientTransformation:
    """Adam, its gradient clipped."""
    return optax.chain(optax.clip_by_global_norm(_GRADIENT_NORM), optax.adam(settings.learning_rate))


def limit_spread(agents: Agent, settings: PPO, number: int) -> Agent:
    """The agents in round `number`: the bound on their spread falls geometrically over the rounds."""
    share = min(1.0, number / settings.num_rounds)
    ceiling = settings.spread * (settings.final_spread / settings.spread) ** share
    log_spread = jnp.minimum(agents.log_spread, float(np.log(ceiling)))
    return cast(Agent, eqx.tree_at(lambda a: a.log_spread, agents, log_spread))


def improve(
    policy: Policy, agent: Agent, train_state: optax.OptState, pool: Pool, settings: PPO, key: PRNGKeyArray
) -> tuple[Agent, optax.OptState]:
    """Play every episode of the pool once and learn from it; runs on every device of the axis "batch"."""
    experience = play(policy, agent, pool, settings, key)
    optimiser = make_agent_optimiser(settings)

    def learn(carry: tuple[Agent, optax.OptState], _: None) -> tuple[tuple[Agent, optax.OptState], None]:
        agent, train_state = carry
        grads = jax.grad(partial(surrogate, experience=experience, settings=settings))(agent)
        grads = jax.lax.pmean(grads, "batch")  # type: ignore[no-untyped-call]  # JAX's own
        updates, train_state = optimiser.update(grads, train_state)
        return (cast(Agent, optax.apply_updates(agent, updates)), train_state), None

    (agent, train_state), _ = jax.lax.scan(learn, (agent, train_state), length=settings.num_epochs)
    return agent, train_state


def play(policy: Policy, agent: Agent, pool: Pool, settings: PPO, key: PRNGKeyArray) -> Experience:
    """Every episode played once with explored actions."""
    networks = eqx.tree_at(lambda n: n.spending, policy.networks, agent.spending)
    policy = Policy(networks, policy.constants, policy.structure)
    shape = pool.state.shape[:2]
    noise_key, exploration_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (*shape, policy.structure.dimension))
    exploration = jnp.exp(agent.log_spread) * jax.random.normal(exploration_key, shape)
    explored = close_loop(policy, pool.sensors, noise, exploration)

    def cost(mean: Array) -> Array:
        return jnp.mean(((mean - pool.state) / policy.constants.state_std) ** 2, axis=-1)

    costs = cost(explored.mean)
    if settings.paired:
        costs = costs - cost(close_loop(policy, pool.sensors, noise).mean)
    expected = agent.cost_to_go(explored.observed)
    advantage = advantages(costs, expected, settings.gae)
    mean = agent.spending.over_time(explored.observed)
    return Experience(explored.observed, mean + exploration, mean, agent.log_spread, advantage, advantage + expected)


def advantages(
    cost: Float[Array, "K windows"], expected: Float[Array, "K windows"], gae: float
) -> Float[Array, "K windows"]:
    """Generalised advantages: how much more each action cost than the cost-to-go expected, with lambda = `gae`."""
    after = jnp.concatenate([expected[1:], jnp.zeros_like(expected[:1])])
    surprise = cost + after - expected

    def step(later: Array, now: Array) -> tuple[Array, Array]:
        advantage = now + gae * later
        return advantage, advantage

    result: Array = jax.lax.scan(step, jnp.zeros_like(cost[0]), surprise, reverse=True)[1]
    return result


def surrogate(agent: Agent, experience: Experience, settings: PPO) -> Float[Array, ""]:
    """The loss of a gradient step: the clipped cost of the actions plus the squared error of the cost-to-go."""
    mean = agent.spending.over_time(experience.observed)
    log_ratio = _log_likelihood(experience.action, mean, agent.log_spread) - _log_likelihood(
        experience.action, experience.mean, experience.log_spread
    )
    ratio = jnp.exp(log_ratio)
    size = jnp.sqrt(jnp.mean(experience.advantage**2)) + 1e-8
    advantage = (experience.advantage - jnp.mean(experience.advantage)) / size
    actions = jnp.mean(clipped_cost(ratio, advantage, settings.clip))
    scale = jax.lax.stop_gradient(jnp.mean(experience.cost_to_go**2)) + 1e-8
    expected = agent.cost_to_go(experience.observed)
    return actions + jnp.mean((expected - experience.cost_to_go) ** 2) / scale


def clipped_cost(ratio: Array, advantage: Array, clip: float) -> Array:
    """The larger of the plain and the clipped product: nothing is gained by moving r beyond the clip."""
    return jnp.maximum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def _log_likelihood(action: Array, mean: Array, log_spread: Array) -> Array:
    return -0.5 * ((action - mean) / jnp.exp(log_spread)) ** 2 - log_spread
