"""Checks of parts that a user wrote: a filter, spending rule or estimator that breaks its contract is refused.

A check draws weights, memories and inputs at random, ordinary ones and extreme ones, and compares results bit for bit
at one compiled shape. It is a test and not a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from dpfuse.guarantee import Guarantee
from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.design import Design
from dpfuse.policy.estimators import Estimator
from dpfuse.policy.filters import RecurrentFilter, read_features
from dpfuse.policy.policy import Policy
from dpfuse.policy.spending import SpendingRule
from dpfuse.policy.step import PrivateCarry, Query, Reports, contribute, to_inputs

_NUM_ROWS, _NUM_STREAMS, _NUM_STEPS = 24, 3, 40
_FIELDS: dict[str, Any] = {
    "num_states": 1,
    "num_channels": 2,
    "features": "ball",
    "dimension": 2,
    "spending": "adaptive",
    "horizon": _NUM_STEPS,
    "expected_stay": 10.0,
    "expected_sensors": 8.0,
}
# Standard deviations of the random numbers by which weights are moved from their initial values.
_SPREADS = 0.0, 1.0, 30.0
_EXTREMES = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, 1.0, -1.0, 0.3], np.float32)
# The largest release in 63 bits, in standard deviations of the noise, is below this power of ten.
_LARGEST_POWER = 13.0


class _Sent(NamedTuple):
    """What a filter is given: reports of rows in every step, the streams of the rows, and their memories at first."""

    measurements: NDArray[np.float32]
    present: NDArray[np.bool_]
    arrived: NDArray[np.bool_]
    stream: NDArray[np.int64]
    hidden: NDArray[np.float32]


def check_filter(recurrent_filter: type[RecurrentFilter], *, seed: int = 0, **structure: Any) -> None:
    """Raise ValueError, with the rule that is broken, unless the filter keeps its contract, see `RecurrentFilter`.

    Args:
        recurrent_filter: the class.
        seed: of all that is drawn.
        **structure: fields of `Structure`, such as `features="box"`, for a filter that needs other than small defaults.
    """
    name, rng = recurrent_filter.__qualname__, np.random.default_rng(seed)
    for spread, policy in _policies(structure | {"recurrent_filter": recurrent_filter}, rng):
        shape = _NUM_STEPS, _NUM_STREAMS, policy.structure.estimator_size
        estimator_hidden = rng.normal(size=shape).astype(np.float32)
        run = partial(_run_filter, policy, estimator_hidden)
        ordinary, extreme = (_draw_reports(policy, rng, is_extreme) for is_extreme in (False, True))
        wanted = [(_NUM_STEPS, policy.structure.dimension), (_NUM_STEPS, policy.networks.recurrent_filter.hidden_size)]
        before, from_extreme = _check_rows(name, "the rule of independence", run, ordinary, extreme, wanted, rng)
        left_behind = np.where(ordinary.arrived[:, :1], np.float32(np.nan), ordinary.hidden)
        again = jax.device_get(run(ordinary._replace(hidden=left_behind)))
        _expect(
            _same(again, before), name, "the rule of independence", "a row that arrives reads the memory of another"
        )
        for (features, memory, present), sent in ((before, ordinary), (from_extreme, extreme)):
            is_inside = _in_set(policy.structure.features, features)
            _expect(is_inside.all(), name, "the rule of bounds", "features leave their set")
            _expect(
                (features[~present] == 0).all(), name, "the rule of bounds", "a row that is not present has features"
            )
            previous = np.concatenate([sent.hidden[:, None], memory[:, :-1]], axis=1)
            is_kept = (memory == np.where(sent.arrived[..., None], 0, previous))[~present]
            _expect(is_kept.all(), name, "its contract", "a row that is not present does not keep its memory")
        if spread == 0:
            by_step = run(ordinary._replace(hidden=0 * ordinary.hidden))[0]
            _expect_close(_filter_over_time(policy, estimator_hidden, ordinary), by_step, name)


def check_spending(spending: type[SpendingRule], *, seed: int = 0, **structure: Any) -> None:
    """Raise ValueError, with the rule that is broken, unless the rule keeps its contract, see `SpendingRule`.

    Arguments as for `check_filter`.
    """
    name, rng = spending.__qualname__, np.random.default_rng(seed)
    for spread, policy in _policies(structure | {"spending": spending}, rng):
        rule = policy.networks.spending
        ordinary, extreme = _draw_public(rule.hidden_size, policy.structure.num_observed, rng)
        wanted = [(_NUM_STEPS, rule.hidden_size), (_NUM_STEPS,)]
        run = partial(_run_public, rule)
        before, from_extreme = _check_rows(name, "the rule of public spending", run, ordinary, extreme, wanted, rng)
        _expect(not np.isnan(from_extreme[1]).any(), name, "its contract", "the departure is NaN")
        if spread == 0:
            _expect_close(rule.over_time(jnp.swapaxes(ordinary[1], 0, 1)).T, before[1], name)


def check_estimator(estimator: type[Estimator], *, seed: int = 0, **structure: Any) -> None:
    """Raise ValueError, with the rule that is broken, unless the estimator keeps its contract, see `Estimator`.

    Arguments as for `check_filter`.
    """
    name, rng = estimator.__qualname__, np.random.default_rng(seed)
    for _, policy in _policies(structure | {"estimator": estimator}, rng):
        made = policy.networks.estimator
        ordinary, extreme = _draw_public(made.hidden_size, policy.structure.num_estimator_inputs, rng)
        wanted = [(_NUM_STEPS, made.hidden_size), *[(_NUM_STEPS, policy.structure.num_states)] * 2]
        run = partial(_run_public, made)
        _, (_, mean, std) = _check_rows(name, "its contract", run, ordinary, extreme, wanted, rng)
        is_sound = np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()
        _expect(is_sound, name, "its contract", "mean or standard deviation is not finite, or the latter not above 0")


def _policies(structure: dict[str, Any], rng: np.random.Generator) -> Iterator[tuple[float, Policy]]:
    """Each spread, and a policy whose weights are moved by random numbers with this standard deviation."""
    fields = _FIELDS | structure
    accounting: Any = "individual" if fields["horizon"] is None else "total"
    guarantee = Guarantee(order=2.0, budget=1.5, adjacency="remove-one", accounting=accounting)
    policy = Design.untrained(guarantee, **fields).policy
    for spread in _SPREADS:
        moved = jax.tree.map(lambda a, by=spread: a + jnp.float32(by) * rng.normal(size=a.shape).astype(np.float32),
                             policy.networks)  # fmt: skip
        yield spread, Policy(moved, policy.constants, policy.structure)


def _check_rows(
    name: str,
    rule: str,
    run: Callable[[Any], Any],
    ordinary: Any,
    extreme: Any,
    wanted: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
) -> tuple[Any, Any]:
    """The results of both, if they have the wanted shapes and those of a row depend on that row alone.

    All arrays lead with the rows.
    """
    before = jax.device_get(run(ordinary))
    shapes = [array.shape[1:] for array in before[: len(wanted)]]
    _expect(shapes == list(wanted), name, "its contract", f"results for each row have shapes {shapes}, not {wanted}")
    _expect(_same(run(ordinary), before), name, rule, "equal arguments give other results")
    kept = rng.random(_NUM_ROWS) < 0.5
    mixed = jax.tree.map(lambda a, b: np.where(kept.reshape(-1, *[1] * (a.ndim - 1)), a, b), ordinary, extreme)
    among_others = [array[kept] for array in jax.device_get(run(mixed))]
    _expect(_same(among_others, [a[kept] for a in before]), name, rule, "a row's results depend on other rows")
    order = rng.permutation(_NUM_ROWS)
    moved = run(jax.tree.map(lambda array: array[order], ordinary))
    _expect(_same(moved, [a[order] for a in before]), name, rule, "a row's results depend on where the row stands")
    return before, jax.device_get(run(extreme))


def _expect(holds: Any, name: str, rule: str, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"{name} breaks {rule}: {otherwise}")


def _expect_close(over_time: Any, by_step: Any, name: str) -> None:
    is_close = np.allclose(over_time, by_step, rtol=1e-3, atol=1e-4)
    _expect(is_close, name, "its contract", "over_time differs from step after step")


def _same(one: Any, other: Any) -> bool:
    """Whether all bits are equal."""
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one, other, strict=True))


def _in_set(features: str, values: NDArray[np.float32]) -> NDArray[np.bool_]:
    exact = values.astype(np.float64)
    if features == "box":
        return np.asarray(((exact >= 0) & (exact <= 1)).all(-1))
    return np.asarray((np.square(exact).sum(-1) <= 1) & ((features == "ball") | (exact >= 0).all(-1)))


def _draw_reports(policy: Policy, rng: np.random.Generator, is_extreme: bool) -> _Sent:
    """Ordinary or extreme reports; some rows belong to no stream."""
    shape = _NUM_ROWS, _NUM_STEPS
    measurements = rng.uniform(-1.2, 1.2, size=(*shape, policy.structure.num_channels)).astype(np.float32)
    if is_extreme:
        measurements = rng.choice(_EXTREMES, size=measurements.shape)
    hidden = 0.5 * rng.normal(size=(_NUM_ROWS, policy.networks.recurrent_filter.hidden_size)).astype(np.float32)
    stream = rng.integers(_NUM_STREAMS + 1, size=_NUM_ROWS)
    return _Sent(measurements, rng.random(shape) < 0.8, rng.random(shape) < 0.1, stream, hidden)


def _draw_public(hidden_size: int, width: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Memories, which start at 0, and inputs of streams: ordinary and extreme ones."""
    inputs = rng.normal(size=(_NUM_ROWS, _NUM_STEPS, width)).astype(np.float32)
    powers = rng.uniform(-3.0, _LARGEST_POWER, size=inputs.shape).astype(np.float32)
    hidden = np.zeros((_NUM_ROWS, hidden_size), np.float32)
    return (hidden, inputs), (hidden, inputs * np.float32(10) ** powers)


def _by_step(*arrays: Any) -> Any:
    """The arrays with the first two axes exchanged, rows and steps."""
    return [jnp.swapaxes(array, 0, 1) for array in arrays]


@eqx.filter_jit
def _run_filter(policy: Policy, estimator_hidden: AnyArray, sent: _Sent) -> Any:
    """Features, memory, and whether there is a report, for each row and step: the private part of the one step."""
    account, weight = jnp.ones(_NUM_ROWS), jnp.ones(_NUM_STREAMS)

    def step(hidden: Array, now: Any) -> tuple[Array, Any]:
        measurements, present, arrived, estimator_hidden_now = now
        reports = Reports(measurements, present, arrived, sent.stream)
        query = Query(weight, policy.networks.recurrent_filter.make_readout(estimator_hidden_now))
        private, _, features = contribute(policy, PrivateCarry(hidden, account), reports, query)
        return private.hidden, (features, private.hidden, to_inputs(policy, reports)[1])

    by_step = *_by_step(sent.measurements, sent.present, sent.arrived), jnp.asarray(estimator_hidden)
    return _by_step(*jax.lax.scan(step, jnp.asarray(sent.hidden), by_step)[1])


@eqx.filter_jit
def _filter_over_time(policy: Policy, estimator_hidden: AnyArray, sent: _Sent) -> Any:
    """The features of each row and step by way of `over_time`."""
    recurrent_filter = policy.networks.recurrent_filter
    measurements, present, arrived = _by_step(sent.measurements, sent.present, sent.arrived)
    inputs, present = to_inputs(policy, Reports(measurements, present, arrived, sent.stream))
    encoded = recurrent_filter.over_time(inputs, present, arrived)

    def read(encoded: Array, present: Array, estimator_hidden: Array) -> Array:
        readout = recurrent_filter.make_readout(estimator_hidden)
        return read_features(recurrent_filter, encoded, present, readout, sent.stream)

    return jnp.swapaxes(jax.vmap(read)(encoded, present, jnp.asarray(estimator_hidden)), 0, 1)


@eqx.filter_jit
def _run_public(part: SpendingRule | Estimator, sent: tuple[AnyArray, AnyArray]) -> Any:
    """The results of `step`, memory first, for each stream and step."""

    def step(hidden: Array, now: tuple[Array, Array]) -> tuple[Array, Any]:
        read, step_index = now
        results = part.step(hidden, read, step_index) if isinstance(part, SpendingRule) else part.step(hidden, read)
        return results[0], results

    hidden, inputs = map(jnp.asarray, sent)
    return _by_step(*jax.lax.scan(step, hidden, (jnp.swapaxes(inputs, 0, 1), jnp.arange(_NUM_STEPS)))[1])
