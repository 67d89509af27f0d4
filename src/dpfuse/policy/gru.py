"""A gated recurrent unit (Cho et al. 2014), and its pass over time with a gradient written by hand.

    r = sigmoid(W_r x + U_r h + b_r)      u = sigmoid(W_u x + U_u h + b_u)
    n = tanh(W_n x + b_n + r (U_n h + c))      h' = n + u (h - n)

Many sequences are processed at once. Callers pass one sequence in each row. Inside, each is a column, so that the
values of one gate are consecutive in memory.
Automatic differentiation of the scan stores every gate of every step, and on a CPU most of the time then goes into
fresh memory. The gradient here stores the hidden states alone and computes the gates again on the way back.
`jax.checkpoint` of the step does the same in the same time; it needs more memory and rounds in another order.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpfuse.policy.array_tree import AnyArray

# In steps. At exactly 1 the update gate would be 0, and its gradient too.
_SHORTEST_MEMORY = 1.1


class Gates(NamedTuple):
    """Reset gate r, update gate u, the recurrent term U_n h + c, and the new value n."""

    reset: Float[Array, "h columns"]
    update: Float[Array, "h columns"]
    recurrent: Float[Array, "h columns"]
    new: Float[Array, "h columns"]


class GRU(eqx.Module):
    """One gated recurrent unit, used alike by every row; no row sees another."""

    input_weight: Float[Array, "3h n"]
    hidden_weight: Float[Array, "3h h"]
    bias: Float[Array, " 3h"]
    hidden_bias: Float[Array, " h"]

    def __init__(self, input_size: int, hidden_size: int, *, key: PRNGKeyArray):
        cell = eqx.nn.GRUCell(input_size, hidden_size, key=key)
        self.input_weight, self.hidden_weight = cell.weight_ih, cell.weight_hh
        assert cell.bias is not None and cell.bias_n is not None  # it has them unless told otherwise
        self.bias, self.hidden_bias = cell.bias, cell.bias_n

    @property
    def hidden_size(self) -> int:
        return self.hidden_weight.shape[1]

    def with_inputs_scaled(self, mean: Float[AnyArray, " n"], scale: Float[AnyArray, " n"]) -> GRU:
        """The same unit for inputs x: it gives for x what this one gives for (x - mean) / scale."""
        weight = self.input_weight / scale[None]
        bias = self.bias - jnp.sum(weight * mean[None], axis=1)
        return cast(GRU, eqx.tree_at(lambda gru: (gru.input_weight, gru.bias), self, (weight, bias)))

    def with_memories(self, longest: float) -> GRU:
        """The same unit with update-gate biases for which its numbers remember from 1 to `longest` steps.

        With u = 1 - 1 / T a number forgets by 1 / T a step. T is spaced evenly in its logarithm.
        """
        size = self.hidden_size
        steps = jnp.geomspace(_SHORTEST_MEMORY, max(longest, _SHORTEST_MEMORY), size)
        bias = self.bias.at[size : 2 * size].set(jnp.log(steps - 1))
        return cast(GRU, eqx.tree_at(lambda gru: gru.bias, self, bias))

    def __call__(self, hidden: Float[Array, "rows h"], inputs: Float[Array, "rows n"]) -> Float[Array, "rows h"]:
        """The hidden state after one more input."""
        return self.advance(hidden.T, inputs.T).T

    def advance(
        self, hidden: Float[AnyArray, "h columns"], inputs: Float[AnyArray, "n columns"]
    ) -> Float[Array, "h columns"]:
        """The same, in columns."""
        _, update, _, new = self.gates(hidden, inputs)
        return new + update * (hidden - new)

    def advance_present(
        self,
        hidden: AnyArray,
        inputs: AnyArray,
        present: Bool[AnyArray, " columns"],
        arrived: Bool[AnyArray, " columns"],
    ) -> Float[Array, "h columns"]:
        """The same; a column that has arrived starts from zero, and one that is not present keeps what it has."""
        before = jnp.where(arrived[None], 0.0, hidden)
        return jnp.where(present[None], self.advance(before, inputs), before)

    def gates(self, hidden: Float[AnyArray, "h columns"], inputs: Float[AnyArray, "n columns"]) -> Gates:
        size = self.hidden_size
        from_input = self.input_weight @ inputs + self.bias[:, None]
        from_hidden = self.hidden_weight @ hidden
        # The logistic function by way of tanh, which costs half as much on a CPU.
        both = 0.5 + 0.5 * jnp.tanh(0.5 * (from_input[: 2 * size] + from_hidden[: 2 * size]))
        reset, update = both[:size], both[size:]
        recurrent = from_hidden[2 * size :] + self.hidden_bias[:, None]
        return Gates(reset, update, recurrent, jnp.tanh(from_input[2 * size :] + reset * recurrent))


@jax.custom_vjp
def over_time(
    gru: GRU,
    inputs: Float[Array, "K n columns"],
    present: Bool[Array, "K columns"],
    arrived: Bool[Array, "K columns"],
) -> Float[Array, "K h columns"]:
    """The hidden states after each step, from zero, in columns; gradients reach the weights, not the inputs."""

    def step(hidden: Array, at_step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        hidden = gru.advance_present(hidden, *at_step)
        return hidden, hidden

    start = jnp.zeros((gru.hidden_size, inputs.shape[-1]), inputs.dtype)
    return jax.lax.scan(step, start, (inputs, present, arrived))[1]


_Saved = tuple[GRU, Array, Array, Array, Array]


def _forward(gru: GRU, inputs: Array, present: Array, arrived: Array) -> tuple[Array, _Saved]:
    hidden = over_time(gru, inputs, present, arrived)
    return hidden, (gru, inputs, present, arrived, hidden)


def _backward(saved: _Saved, cotangent: Float[Array, "K h columns"]) -> tuple[GRU, None, None, None]:
    gru, inputs, present, arrived, hidden = saved

    def step(carry: tuple[Array, GRU], at_step: tuple[Array, ...]) -> tuple[tuple[Array, GRU], None]:
        d_hidden, grads = carry
        x, is_present, has_arrived, d_output, index = at_step
        is_present, has_arrived = is_present[None], (has_arrived | (index == 0))[None]
        # Fetched by index: a shifted copy of all hidden states would cost a tenth of the whole gradient.
        h = jnp.where(has_arrived, 0.0, hidden[jnp.maximum(index - 1, 0)])
        reset, update, recurrent, new = gru.gates(h, x)
        d_hidden = d_hidden + d_output
        d_updated = jnp.where(is_present, d_hidden, 0.0)
        d_new = d_updated * (1 - update) * (1 - new**2)
        d_update = d_updated * (h - new) * update * (1 - update)
        d_reset = d_new * recurrent * reset * (1 - reset)
        d_recurrent = d_new * reset
        by_hidden = jnp.concatenate([d_reset, d_update, d_recurrent])
        by_input = jnp.concatenate([d_reset, d_update, d_new])
        d_before = gru.hidden_weight.T @ by_hidden + d_updated * update + jnp.where(is_present, 0.0, d_hidden)
        step_grads = by_input @ x.T, by_hidden @ h.T, by_input.sum(1), d_recurrent.sum(1)
        grads = jax.tree.unflatten(jax.tree.structure(grads), map(jnp.add, jax.tree.leaves(grads), step_grads))
        return (jnp.where(has_arrived, 0.0, d_before), grads), None

    start = jnp.zeros_like(hidden[0]), jax.tree.map(jnp.zeros_like, gru)
    by_step = inputs, present, arrived, cotangent, jnp.arange(hidden.shape[0])
    (_, grads), _ = jax.lax.scan(step, start, by_step, reverse=True)
    return grads, None, None, None


over_time.defvjp(_forward, _backward)


def read_over_time(gru: GRU, head: eqx.nn.Linear, inputs: Float[Array, "K rows n"]) -> Float[Array, "K rows"]:
    """One number for each row and step: the GRU's pass over time, read out by a linear layer."""
    everywhere = jnp.ones(inputs.shape[:2], bool)
    hidden = over_time(gru, jnp.swapaxes(inputs, 1, 2), everywhere, ~everywhere)
    return jnp.einsum("khw,h->kw", hidden, head.weight[0]) + bias_of(head)[0, 0]


def linear(layer: eqx.nn.Linear, rows: Float[Array, "rows n"]) -> Float[Array, "rows m"]:
    """The layer applied to each row."""
    return rows @ layer.weight.T + bias_of(layer)


def bias_of(layer: eqx.nn.Linear) -> Float[Array, "1 m"]:
    assert layer.bias is not None  # all of ours have one
    return layer.bias[None]
