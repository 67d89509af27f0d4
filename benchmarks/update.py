"""Time of one gradient update of an adaptive design, beside that of a plain version, in one run.

The plain version is the one that is easiest to write: an Equinox GRU cell vmapped over all slots, occupied or not,
inside one scan over time, on one device. Both start from the same weights, noise and windows, and their losses and
gradients must agree to 1e-4.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

import dpfuse
from benchmarks.timing import Timing, alternate, keep
from dpfuse.policy import gru
from dpfuse.policy.policy import Policy
from dpfuse.policy.rollout import PackedWindows, cut, draw_noise, pad_rows
from dpfuse.policy.step import (
    Reports,
    estimate,
    init_public,
    make_query,
    release,
    scale_contributions,
    to_inputs,
)
from dpfuse.training import pathwise
from dpfuse.training.sampler import stack

BATCH, SLOTS, STEPS, PRESENT = 32, 64, 100, 0.4


def main() -> None:
    """Measure, check that the two agree, and write results/update.json."""
    num_devices = dpfuse.use_all_cores()
    data = make_traffic(np.random.default_rng(0))
    policy = make_adaptive_policy()
    optimiser = optax.adam(1e-3)
    key = jax.random.key(1)
    noise = draw_noise(policy.structure, cut(data, np.arange(BATCH), np.zeros(BATCH, int), STEPS), key)

    # With plain gradient descent and step size 1 the update is the gradient.
    slope = optax.sgd(1.0)
    difference = agreement(
        make_plain_update(slope, policy, every_slot(data), noise)(),
        make_packed_update(slope, policy, data, noise, num_shards=num_devices)(),
    )
    assert difference < 1e-4, difference
    plain = make_plain_update(optimiser, policy, every_slot(data), noise)
    packed = make_packed_update(optimiser, policy, data, noise, num_shards=1)
    sharded = make_packed_update(optimiser, policy, data, noise, num_shards=num_devices)
    timings = alternate({"plain": plain, "packed, one device": packed, "packed, all devices": sharded})
    rows = int(data.present.any(1).sum())
    results = {
        "settings": {"batch": BATCH, "slots": SLOTS, "steps": STEPS, "share_present": float(data.present.mean())},
        "rows_packed": rows,
        "rows_plain": BATCH * SLOTS,
        "devices": num_devices,
        "largest_difference": difference,
        "ms": {name: timing.to_dict() for name, timing in timings.items()},
        "speed_up": {name: timings["plain"].median / timing.median for name, timing in timings.items()},
        "arithmetic": arithmetic(rows, timings["packed, all devices"], num_devices),
    }
    keep("update", results, seeds=(0, 1, 2, 3))


def make_traffic(rng: np.random.Generator) -> dpfuse.Trajectories:
    """Windows in which sensors come and go and take the lowest free slot; 40% of the 64 slots are in use on average."""
    stay = 200
    sensors = np.full((BATCH, STEPS, SLOTS), dpfuse.NOBODY)
    for window in range(BATCH):
        number = 0
        leaves = np.where(rng.random(SLOTS) < PRESENT, rng.integers(1, stay, SLOTS), 0)
        leaves = -np.sort(-leaves)
        for slot in np.nonzero(leaves)[0]:
            sensors[window, : leaves[slot], slot] = number
            number += 1
        for step in range(STEPS):
            for _ in range(rng.poisson(1.2 * PRESENT * SLOTS / stay)):
                free = np.nonzero(leaves <= step)[0]
                if len(free):
                    leaves[free[0]] = step + rng.integers(1, stay)
                    sensors[window, step : leaves[free[0]], free[0]] = number
                    number += 1
    present = sensors != dpfuse.NOBODY
    measurements = rng.uniform([0, 0], [400, 20], size=(*sensors.shape, 2))
    return dpfuse.Trajectories(present.sum(-1, keepdims=True) / 0.4, measurements, present, sensors)


def make_adaptive_policy() -> Policy:
    """The demo's adaptive design, untrained but with an f that is guided and a g that does something."""
    policy = dpfuse.Design.untrained(
        dpfuse.Guarantee(order=2.0, budget=0.5, adjacency="remove-one"),
        measurement_range=(0.0, [400.0, 20.0]),
        state_mean=64.0,
        state_std=15.0,
        num_states=1,
        num_channels=2,
        features="ball",
        dimension=2,
        spending="adaptive",
        horizon=STEPS,
        expected_stay=STEPS,
        expected_sensors=PRESENT * SLOTS,
        recurrent_filter="guided",
    ).policy
    head = policy.networks.spending.head
    moved = eqx.tree_at(lambda h: h.weight, head, jax.random.normal(jax.random.key(2), head.weight.shape))
    policy = eqx.tree_at(lambda p: p.networks.spending.head, policy, moved)
    guide = 0.1 * jax.random.normal(jax.random.key(3), policy.networks.recurrent_filter.guide.shape)
    return eqx.tree_at(lambda p: p.networks.recurrent_filter.guide, policy, guide)


def every_slot(data: dpfuse.Trajectories) -> PackedWindows:
    """All slots of all windows as rows, occupied or not."""

    def by_time(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values.swapaxes(0, 1).reshape(STEPS, BATCH * SLOTS, *values.shape[3:]))

    return PackedWindows(
        state=data.state.swapaxes(0, 1),
        measurements=by_time(data.measurements),
        present=by_time(data.present),
        arrived=by_time(data.arrived),
        window=np.repeat(np.arange(BATCH, dtype=np.int32), SLOTS),
        account_share=np.ones(BATCH * SLOTS, np.float32),
        skipped=np.zeros((STEPS, BATCH), bool),
    )


def make_plain_update(optimiser, policy: Policy, windows: PackedWindows, noise):
    """The whole of Algorithm 1 in one scan, the filter's cell vmapped over slots."""
    structure, constants = policy.structure, policy.constants
    windows, noise = jax.device_put((windows, noise), jax.devices()[0])

    def loss(networks, windows, noise):
        whole = Policy(networks, constants, structure)
        f = networks.recurrent_filter
        cell = as_equinox(f.gru)

        def step(carry, inputs):
            hidden, public = carry
            measurements, present, arrived, noise_now = inputs
            reports = Reports(measurements, present, arrived, windows.window)
            scaled, present = to_inputs(whole, reports)
            hidden = jnp.where(arrived[:, None], 0.0, hidden)
            hidden = jnp.where(present[:, None], jax.vmap(cell)(scaled, hidden), hidden)
            public, (weight, readout) = make_query(whole, public)
            own = readout[windows.window]
            raw = jnp.einsum("rdh,rh->rd", own[..., :-1], hidden) + own[..., -1]
            features = jnp.where(present[:, None], raw / jnp.sqrt(1 + jnp.sum(raw**2, -1, keepdims=True)), 0.0)
            _, contributions = scale_contributions(whole, hidden[:, 0], features, reports.stream, weight)
            public, result = estimate(whole, public, weight, release(contributions, reports.stream, noise_now))
            return (hidden, public), result

        start = jnp.zeros((BATCH * SLOTS, f.hidden_size)), init_public(whole, BATCH)
        inputs = windows.measurements, windows.present, windows.arrived, noise
        _, result = jax.lax.scan(step, start, inputs)
        squared = ((result.mean - windows.state) / constants.state_std) ** 2
        std = result.std / constants.state_std
        return jnp.mean(squared) + jnp.mean(jnp.log(std) + 0.5 * jax.lax.stop_gradient(squared) / std**2)

    @jax.jit
    def update(networks, train_state, windows, noise):
        value, grads = jax.value_and_grad(loss)(networks, windows, noise)
        updates, train_state = optimiser.update(grads, train_state)
        return optax.apply_updates(networks, updates), train_state, value

    train_state = optimiser.init(policy.networks)
    return lambda: jax.block_until_ready(update(policy.networks, train_state, windows, noise))


def as_equinox(unit: gru.GRU) -> eqx.nn.GRUCell:
    """The same unit as Equinox's own cell."""
    cell = eqx.nn.GRUCell(unit.input_weight.shape[1], unit.hidden_size, key=jax.random.key(0))
    weights = unit.input_weight, unit.hidden_weight, unit.bias, unit.hidden_bias
    return eqx.tree_at(lambda c: (c.weight_ih, c.weight_hh, c.bias, c.bias_n), cell, weights)


def make_packed_update(optimiser, policy: Policy, data: dpfuse.Trajectories, noise, num_shards: int):
    """Dpfuse's own update, cutting and packing the windows included; the noise is handed in to compare."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:num_shards]), ("batch",))
    update = jax.jit(pathwise.make_update(optimiser, policy.structure, mesh, pathwise.loss))
    networks, constants = jax.tree.map(lambda leaf: leaf[None], (policy.networks, policy.constants))
    train_state = jax.vmap(optimiser.init)(networks)
    run = np.arange(BATCH).reshape(num_shards, -1)
    noise = jax.device_put(
        np.asarray(noise).reshape(STEPS, num_shards, -1, noise.shape[-1]).swapaxes(0, 1)[:, None],
        NamedSharding(mesh, PartitionSpec("batch")),
    )
    num_rows = -(-max(len(cut(data, r, 0 * r, STEPS).window) for r in run) // 64) * 64

    def once():
        windows = stack([pad_rows(cut(data, r, np.zeros_like(r), STEPS), num_rows) for r in run])
        return jax.block_until_ready(update(networks, train_state, constants, windows, noise))

    return once


def agreement(plain, ours) -> float:
    """The largest difference of loss and gradients between the two."""
    plain, ours = jax.device_get((plain, ours))
    pairs = zip(jax.tree.leaves(plain[0]), jax.tree.leaves(ours[0]), strict=True)
    return max(max(float(np.abs(a - b[0]).max()) for a, b in pairs), abs(float(plain[2] - ours[2][0])))


def arithmetic(rows: int, timing: Timing, num_devices: int) -> dict[str, float]:
    """The time of the matrix products alone at a measured speed, and the update's time over it."""
    hidden, inputs, gates = 16, 2, 48
    forward = 2 * rows * STEPS * (inputs + hidden) * gates
    # E's memory sets the last layer of f, which reads each row.
    guidance = 2 * STEPS * (BATCH * 32 + rows) * 2 * (hidden + 1)
    streams = 2 * BATCH * STEPS * ((7 + 32) * 96 + (7 + 16) * 48) + guidance
    # Backward: the gates again, the gradient of the hidden vector, and the gradient of the weights.
    total = forward * (1 + 1 + 1 + 1) + streams * 3
    peak = matrix_speed() * num_devices
    return {
        "gflop": total / 1e9,
        "peak_gflops_measured": peak / 1e9,
        "limit_ms": 1e3 * total / peak,
        "times_the_limit": timing.median / (1e3 * total / peak),
    }


def matrix_speed() -> float:
    """Floating-point operations a second of one core in a large matrix product."""
    size = 1024
    matrix = jnp.ones((size, size))
    product = jax.jit(lambda m: m @ m)
    timing = alternate({"product": lambda: jax.block_until_ready(product(matrix))})["product"]
    return 2 * size**3 / (timing.median / 1e3)


if __name__ == "__main__":
    main()
