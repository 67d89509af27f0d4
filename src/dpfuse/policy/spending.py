"""Spending rules g: the contract, the package's own, and the table of their names.

A rule says how far a step departs from even spending, in log-odds of the share of the budget. `dpfuse.policy.step`
turns that into a fusion weight that the budget allows, whatever the rule says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpy.typing import ArrayLike

from dpfuse.policy.gru import GRU, linear, read_over_time
from dpfuse.policy.structure import Structure


class SpendingRule(eqx.Module):
    """g: the base class of every spending rule, the package's own and a user's.

    A subclass has a constructor, `hidden_size` and `step`. Every field is a float32 array, which training changes, or
    static.

    **Guarantees** that every rule gives, for any weights; `dpfuse.check_spending` tests them
        - Public spending: a stream's results are a deterministic function of that stream's arguments, which are all
          public. They are equal bit for bit whatever the other streams hold.
        - The departure is a number, never NaN, whatever was released.

    Attributes:
        hidden_size: h, how many numbers are remembered of each stream.
    """

    hidden_size: eqx.AbstractVar[int]

    @abstractmethod
    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        """Fresh weights; a ValueError if the rule does not go with the structure."""

    @abstractmethod
    def step(
        self, hidden: Float[Array, "streams h"], observed: Float[Array, "streams n"], step_index: Int[Array, ""]
    ) -> tuple[Float[Array, "streams h"], Float[Array, " streams"]]:
        """Memory after one more step, and the departure from even spending; 0 means even spending.

        Args:
            hidden: memory of each stream, 0 at first.
            observed: what `dpfuse.policy.step.observe` gives, n = `structure.num_observed`.
            step_index: number of the step, from 0.
        """

    def over_time(self, observed: Float[Array, "K streams n"]) -> Float[Array, "K streams"]:
        """The departure at every step, from memory 0."""

        def next_step(hidden: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            return self.step(hidden, *now)

        start = jnp.zeros((observed.shape[1], self.hidden_size))
        return jax.lax.scan(next_step, start, (observed, jnp.arange(len(observed))))[1]


class ConstantSpending(SpendingRule):
    """g of the classical design: even spending."""

    hidden_size: int = eqx.field(static=True)

    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        self.hidden_size = 0

    def step(self, hidden: Array, observed: Array, step_index: Array) -> tuple[Array, Array]:
        return hidden, jnp.zeros(observed.shape[0])


class ScheduledSpending(SpendingRule):
    """g that departs from even spending by a learned number for each step, 0 at first."""

    by_step: Float[Array, " horizon"]
    hidden_size: int = eqx.field(static=True)

    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        if structure.horizon is None:
            raise ValueError("spending must be constant or adaptive in a stationary design: a schedule needs a clock")
        self.by_step = jnp.zeros(structure.horizon)
        self.hidden_size = 0

    def step(self, hidden: Array, observed: Array, step_index: Array) -> tuple[Array, Array]:
        return hidden, jnp.zeros(observed.shape[0]) + self.by_step[step_index]

    def over_time(self, observed: Array) -> Float[Array, "K streams"]:
        return jnp.zeros(observed.shape[:2]) + self.by_step[: len(observed), None]


class AdaptiveSpending(SpendingRule):
    """g that reads past releases.

    The departure is a learned number for each step plus the output of a GRU that reads past releases. Both start at 0.
    """

    by_step: Float[Array, " horizon"] | None
    gru: GRU
    head: eqx.nn.Linear
    hidden_size: int = eqx.field(static=True)

    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        self.by_step = None if structure.horizon is None else jnp.zeros(structure.horizon)
        gru_key, head_key = jax.random.split(key)
        self.gru = GRU(structure.num_observed, structure.fusion_size, key=gru_key)
        head = eqx.nn.Linear(structure.fusion_size, 1, key=head_key)
        self.head = eqx.tree_at(lambda h: (h.weight, h.bias), head, replace_fn=jnp.zeros_like)
        self.hidden_size = structure.fusion_size

    def step(self, hidden: Array, observed: Array, step_index: Array) -> tuple[Array, Array]:
        departure = jnp.zeros(observed.shape[0])
        if self.by_step is not None:
            departure = departure + self.by_step[step_index]
        hidden = self.gru(hidden, observed)
        return hidden, departure + linear(self.head, hidden)[:, 0]

    def over_time(self, observed: Array) -> Float[Array, "K streams"]:
        departure = jnp.zeros(observed.shape[:2])
        if self.by_step is not None:
            departure = departure + self.by_step[: len(observed), None]
        return departure + read_over_time(self.gru, self.head, observed)


class AgentSpending(SpendingRule):
    """g as the agent that PPO of Stable-Baselines3 or CleanRL has by default, two layers of equal width with tanh.

    It remembers nothing: it reads the observation, which holds the last release and estimate, step and budget left.
    Its action is the departure, so it is trained with `action="departure"`, see `docs/environment.md`.

    Attributes:
        layers: the two layers and the one that gives the action.
    """

    layers: list[eqx.nn.Linear]
    hidden_size: int = eqx.field(static=True)

    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        width = structure.fusion_size
        first_key, second_key, last_key = jax.random.split(key, 3)
        last = eqx.nn.Linear(width, 1, key=last_key)
        self.layers = [
            eqx.nn.Linear(structure.num_observed, width, key=first_key),
            eqx.nn.Linear(width, width, key=second_key),
            jax.tree.map(jnp.zeros_like, last),  # even spending at first
        ]
        self.hidden_size = 0

    @classmethod
    def from_layers(cls, structure: Structure, layers: Sequence[tuple[ArrayLike, ArrayLike]]) -> AgentSpending:
        """The rule of a trained agent for a design of this structure, see `Design.with_spending`.

        Args:
            structure: `design.structure`.
            layers: weight, shape (outputs, inputs), and bias of each of the three layers.
        """
        given = [jnp.asarray(array, jnp.float32) for layer in layers for array in layer]
        width = given[0].shape[0]
        blank = cls(replace(structure, fusion_size=width), key=jax.random.key(0))
        wanted = [leaf.shape for leaf in jax.tree.leaves(blank)]
        if [array.shape for array in given] != wanted:
            shapes = [array.shape for array in given]
            raise ValueError(f"layers must have weights and biases of the shapes {wanted}, got {shapes}")
        return cast(AgentSpending, jax.tree.unflatten(jax.tree.structure(blank), given))

    @property
    def width(self) -> int:
        return int(self.layers[0].weight.shape[0])

    def step(self, hidden: Array, observed: Array, step_index: Array) -> tuple[Array, Array]:
        first, second, last = self.layers
        inner = jnp.tanh(linear(second, jnp.tanh(linear(first, observed))))
        return hidden, linear(last, inner)[:, 0]


SPENDING_RULES: dict[str, type[SpendingRule]] = {
    "constant": ConstantSpending,  # even spending
    "schedule": ScheduledSpending,  # by step
    "adaptive": AdaptiveSpending,  # by past releases and by step
    "agent": AgentSpending,  # by the last release: an agent of reinforcement learning
}
