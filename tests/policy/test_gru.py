"""The gated recurrent unit: equinox's, one step or many, with the gradient that JAX would find."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpfuse.policy.gru import GRU, over_time

NUM_STEPS, NUM_ROWS, INPUT_SIZE, HIDDEN_SIZE = 7, 5, 3, 4


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def gru(float64):
    made = GRU(INPUT_SIZE, HIDDEN_SIZE, key=jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), made)


@pytest.fixture
def cell(gru):
    """Equinox's cell with the same weights."""
    blank = eqx.nn.GRUCell(INPUT_SIZE, HIDDEN_SIZE, key=jax.random.key(1))
    return eqx.tree_at(
        lambda c: (c.weight_ih, c.weight_hh, c.bias, c.bias_n),
        blank,
        (gru.input_weight, gru.hidden_weight, gru.bias, gru.hidden_bias),
    )


@pytest.fixture
def history(float64):
    """Inputs in rows, and who was there: a row never there, one always, one that arrives while absent."""
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(NUM_STEPS, NUM_ROWS, INPUT_SIZE))
    present = rng.random((NUM_STEPS, NUM_ROWS)) < 0.6
    present[:, 0], present[:, 1] = False, True
    arrived = rng.random((NUM_STEPS, NUM_ROWS)) < 0.3
    arrived[3] = [True, True, True, False, False]
    return inputs, present, arrived


def by_cell(cell, inputs, present, arrived):
    """The textbook version: equinox's cell, row by row, in a scan, shape (K, rows, h)."""

    def step(hidden, at_step):
        x, is_present, has_arrived = at_step
        hidden = jnp.where(has_arrived[:, None], 0.0, hidden)
        hidden = jnp.where(is_present[:, None], jax.vmap(cell)(x, hidden), hidden)
        return hidden, hidden

    start = jnp.zeros((inputs.shape[1], cell.hidden_size))
    return jax.lax.scan(step, start, (inputs, present, arrived))[1]


def in_rows(gru, inputs, present, arrived):
    """`over_time`, which works in columns, with rows in and out."""
    return jnp.swapaxes(over_time(gru, jnp.swapaxes(inputs, 1, 2), present, arrived), 1, 2)


def test_a_step_equals_that_of_equinox(gru, cell):
    rng = np.random.default_rng(0)
    hidden, inputs = rng.normal(size=(9, HIDDEN_SIZE)), 3 * rng.normal(size=(9, INPUT_SIZE))
    np.testing.assert_allclose(gru(hidden, inputs), jax.vmap(cell)(inputs, hidden), rtol=1e-12)


def test_a_new_unit_starts_with_the_weights_of_equinox():
    made, cell = (kind(INPUT_SIZE, HIDDEN_SIZE, key=jax.random.key(3)) for kind in (GRU, eqx.nn.GRUCell))
    hidden, inputs = np.full((1, HIDDEN_SIZE), 0.3, np.float32), np.full((1, INPUT_SIZE), -0.7, np.float32)
    np.testing.assert_allclose(made(hidden, inputs), jax.vmap(cell)(inputs, hidden), rtol=1e-6)


def test_the_pass_over_time_equals_step_after_step(gru, cell, history):
    np.testing.assert_allclose(in_rows(gru, *history), by_cell(cell, *history), rtol=1e-12)


def test_what_absent_rows_hold_changes_nothing(gru, history):
    inputs, present, arrived = history
    other = np.where(present[..., None], inputs, 1e6)
    assert (in_rows(gru, other, present, arrived) == in_rows(gru, *history)).all()


def test_a_row_that_arrives_starts_without_memory(gru, history):
    inputs, present, _ = history
    arrived = np.zeros_like(present)
    arrived[4] = True
    fresh = in_rows(gru, inputs[4:], present[4:], arrived[4:])
    np.testing.assert_allclose(in_rows(gru, inputs, present, arrived)[4:], fresh, rtol=1e-12)


def to_scalar(hidden):
    """A loss in which every hidden state has a slope of its own."""
    slopes = np.random.default_rng(5).normal(size=hidden.shape)
    return jnp.sum(slopes * hidden + 0.5 * hidden**2)


@pytest.mark.slow
def test_the_gradient_equals_the_automatic_one(gru, cell, history):
    """Of two units at once, as several designs train at once."""
    gru, cell = (jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), module) for module in (gru, cell))
    found = jax.jit(jax.vmap(jax.grad(lambda module: to_scalar(in_rows(module, *history)))))(gru)
    expected = jax.jit(jax.vmap(jax.grad(lambda module: to_scalar(by_cell(module, *history)))))(cell)
    pairs = [
        (found.input_weight, expected.weight_ih),
        (found.hidden_weight, expected.weight_hh),
        (found.bias, expected.bias),
        (found.hidden_bias, expected.bias_n),
    ]
    for mine, theirs in pairs:
        assert float(jnp.abs(theirs).max()) > 0.1
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_the_gradient_equals_finite_differences(gru, history):
    direction = jax.tree.map(lambda leaf: np.random.default_rng(6).normal(size=leaf.shape), gru)

    @jax.jit
    def along(distance):
        return to_scalar(in_rows(jax.tree.map(lambda a, b: a + distance * b, gru, direction), *history))

    grads = jax.grad(lambda module: to_scalar(in_rows(module, *history)))(gru)
    slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: (g * d).sum(), grads, direction)))
    step = 1e-4
    differences = (8 * (along(step) - along(-step)) - (along(2 * step) - along(-2 * step))) / (12 * step)
    np.testing.assert_allclose(slope, differences, rtol=1e-9)
