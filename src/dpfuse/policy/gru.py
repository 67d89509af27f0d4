"""A gated recurrent unit (Cho et al. 2014) on rows, and its pass over time with a gradient written by hand.

    r = sigmoid(W_r x + U_r h + b_r)      u = sigmoid(W_u x + U_u h + b_u)
    n = tanh(W_n x + b_n + r (U_n h + c))      h' = n + u (h - n)

Differentiating the scan automatically stores every gate of every step: on a CPU most of the time then goes into fresh
memory. The gradient here keeps the hidden states alone and computes the gates again on the way back.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray


class GRU(eqx.Module):
    """One gated recurrent unit, used alike by every row; no row sees another."""

    input_weight: Float[Array, "n 3h"]
    hidden_weight: Float[Array, "h 3h"]
    bias: Float[Array, " 3h"]
    hidden_bias: Float[Array, " h"]

    def __init__(self, input_size: int, hidden_size: int, *, key: PRNGKeyArray):
        cell = eqx.nn.GRUCell(input_size, hidden_size, key=key)
        self.input_weight, self.hidden_weight = cell.weight_ih.T, cell.weight_hh.T
        self.bias, self.hidden_bias = cell.bias, cell.bias_n

    @property
    def hidden_size(self) -> int:
        return self.hidden_weight.shape[0]

    def __call__(self, hidden: Float[Array, "rows h"], inputs: Float[Array, "rows n"]) -> Float[Array, "rows h"]:
        """The hidden state after one more input."""
        _, update, _, new = self.gates(hidden, inputs)
        return new + update * (hidden - new)

    def gates(
        self, hidden: Float[Array, "rows h"], inputs: Float[Array, "rows n"]
    ) -> tuple[Array, Array, Array, Array]:
        """Reset gate r, update gate u, the recurrent term U_n h + c, and the new value n."""
        from_input = inputs @ self.input_weight + self.bias
        from_hidden = hidden @ self.hidden_weight
        both = from_input[:, : 2 * self.hidden_size] + from_hidden[:, : 2 * self.hidden_size]
        # The logistic function by way of tanh, which costs half as much on a CPU.
        reset, update = jnp.split(0.5 + 0.5 * jnp.tanh(0.5 * both), 2, axis=-1)
        recurrent = from_hidden[:, 2 * self.hidden_size :] + self.hidden_bias
        new = jnp.tanh(from_input[:, 2 * self.hidden_size :] + reset * recurrent)
        return reset, update, recurrent, new


def masked_step(
    gru: GRU,
    hidden: Float[Array, "rows h"],
    inputs: Float[Array, "rows n"],
    present: Bool[Array, " rows"],
    arrived: Bool[Array, " rows"],
) -> Float[Array, "rows h"]:
    """One step in which rows that arrived start from zero and rows without input keep what they have."""
    hidden = jnp.where(arrived[:, None], 0.0, hidden)
    return jnp.where(present[:, None], gru(hidden, inputs), hidden)


@jax.custom_vjp
def over_time(
    gru: GRU,
    inputs: Float[Array, "K rows n"],
    present: Bool[Array, "K rows"],
    arrived: Bool[Array, "K rows"],
) -> Float[Array, "K rows h"]:
    """The hidden states after each step, from zero; gradients reach the weights, not the inputs."""

    def step(hidden: Array, at_step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        hidden = masked_step(gru, hidden, *at_step)
        return hidden, hidden

    start = jnp.zeros((inputs.shape[1], gru.hidden_size))
    return jax.lax.scan(step, start, (inputs, present, arrived))[1]


_Saved = tuple[GRU, Array, Array, Array, Array]


def _forward(gru: GRU, inputs: Array, present: Array, arrived: Array) -> tuple[Array, _Saved]:
    hidden = over_time(gru, inputs, present, arrived)
    return hidden, (gru, inputs, present, arrived, hidden)


def _backward(saved: _Saved, cotangent: Float[Array, "K rows h"]) -> tuple[GRU, None, None, None]:
    gru, inputs, present, arrived, hidden = saved

    def step(carry: tuple[Array, GRU], at_step: tuple[Array, ...]) -> tuple[tuple[Array, GRU], None]:
        d_hidden, grads = carry
        x, is_present, has_arrived, d_output, index = at_step
        is_present, has_arrived = is_present[:, None], has_arrived[:, None] | (index == 0)
        # Fetched by index: a shifted copy of all hidden states would cost a tenth of the whole gradient.
        h = jnp.where(has_arrived, 0.0, hidden[jnp.maximum(index - 1, 0)])
        reset, update, recurrent, new = gru.gates(h, x)
        d_hidden = d_hidden + d_output
        d_updated = jnp.where(is_present, d_hidden, 0.0)
        d_new = d_updated * (1 - update) * (1 - new**2)
        d_update = d_updated * (h - new) * update * (1 - update)
        d_reset = d_new * recurrent * reset * (1 - reset)
        d_recurrent = d_new * reset
        from_hidden = jnp.concatenate([d_reset, d_update, d_recurrent], axis=-1)
        from_input = jnp.concatenate([d_reset, d_update, d_new], axis=-1)
        d_before = from_hidden @ gru.hidden_weight.T + d_updated * update + jnp.where(is_present, 0.0, d_hidden)
        grads = eqx.tree_at(
            lambda g: (g.input_weight, g.hidden_weight, g.bias, g.hidden_bias),
            grads,
            (
                grads.input_weight + x.T @ from_input,
                grads.hidden_weight + h.T @ from_hidden,
                grads.bias + from_input.sum(0),
                grads.hidden_bias + d_recurrent.sum(0),
            ),
        )
        return (jnp.where(has_arrived, 0.0, d_before), grads), None

    start = jnp.zeros_like(hidden[0]), jax.tree.map(jnp.zeros_like, gru)
    by_step = inputs, present, arrived, cotangent, jnp.arange(hidden.shape[0])
    (_, grads), _ = jax.lax.scan(step, start, by_step, reverse=True)
    return grads, None, None, None


over_time.defvjp(_forward, _backward)
