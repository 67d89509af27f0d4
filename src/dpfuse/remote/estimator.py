"""The remote estimator: what E makes of published releases, anywhere, with nothing but E's file."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from dpfuse._arrays import Floats32
from dpfuse.errors import ReleaseRefused
from dpfuse.privacy.budget import GRID
from dpfuse.privacy.release import Release
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from dpfuse.policy.step import Policy, Public

# After so many steps without news an E that reads no clock has come to rest: more of them would change nothing.
_AT_REST_AFTER = 100_000
_LARGEST = 2**63
# How many of the last steps are remembered, to notice one that comes twice and differs.
_REMEMBERED = 1000


class Estimate(NamedTuple):
    """The state as E sees it after one release.

    Attributes:
        stream, step: of the release.
        mean, std: one number for each coordinate of the state, in its units.
        is_chained: whether the release's hash follows from the one before it. False where releases in between were
            not seen, and at the first one.
    """

    stream: str
    step: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_chained: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON takes it."""
        return {"stream": self.stream, "step": self.step, "mean": list(self.mean), "std": list(self.std)}


@dataclass
class _Reading:
    """How far a stream has been read; all of it is public."""

    public: Public
    step: int = 0
    hashes: OrderedDict[int, bytes] = field(default_factory=OrderedDict)


class RemoteEstimator:
    """E, fed release by release; needs neither the design nor the ledger.

        estimator = dpfuse.RemoteEstimator.load("road.estimator")
        estimate = estimator.update({"stream": "main", "step": 1, "release": [...], ...})

    The numbers are the centre's own: both run the same function on the integers that were released. A step that the
    centre skipped counts as a release of value 0 and weight 0, a time update without news. Releases of several streams
    may come mixed, those of each in order.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """See `load`."""
        import jax

        from dpfuse.policy.estimator_file import import_estimator
        from dpfuse.policy.step import init_public

        policy = import_estimator(path)
        self._structure = policy.structure
        self._first: Public = jax.device_get(init_public(policy, 1))
        self._read, self._wait = _compiled(policy)
        self._streams: dict[str, _Reading] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RemoteEstimator:
        """The estimator in a file that `Design.export_estimator` wrote.

        Raises:
            FileRefused: if anything in it is not as it should be.
        """
        return cls(path)

    def last_step(self, stream: str) -> int:
        """The step of the last release that was read, 0 for none."""
        return self._streams[stream].step if stream in self._streams else 0

    def update(self, release: Mapping[str, Any]) -> Estimate | None:
        """The estimate after this release; None for a step that was read already.

        Raises:
            ReleaseRefused: the release is malformed, of another design, or contradicts those that were read: another
                release of the same step, or one that does not follow from the step before. Nothing was changed by it.
        """
        row = _to_row(release, self._structure.dimension, self._structure.horizon)
        reading = self._streams.get(row.stream) or _Reading(self._first)
        if row.step <= reading.step:
            _check_same(row, reading)
            return None
        is_chained = _follows(row, reading)
        num_skipped = row.step - reading.step - 1
        if not num_skipped and reading.step and not is_chained:
            raise ReleaseRefused(
                f"step {row.step} of stream {row.stream!r} does not follow from step {reading.step}: one of the two is "
                f"not what the ledger holds; compare both with `dpfuse ledger show --rows`"
            )
        if self._structure.horizon is None:
            num_skipped = min(num_skipped, _AT_REST_AFTER)
        public = self._wait(reading.public, num_skipped) if num_skipped else reading.public
        reading.public, result = self._read(public, _to_block(row.to_release()))
        reading.step = row.step
        reading.hashes[row.step] = row.hash
        if len(reading.hashes) > _REMEMBERED:
            reading.hashes.popitem(last=False)
        self._streams[row.stream] = reading
        mean, std = (tuple(np.asarray(each)[0].tolist()) for each in result)
        return Estimate(row.stream, row.step, mean, std, is_chained)


def _compiled(policy: Policy) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """E's step with its weights compiled in, and as many steps without a release as are asked for."""
    import jax

    from dpfuse.policy.step import estimate

    # As `ExactStep.follow` has it: value 0 with weight 0.
    nothing = np.zeros((1, 1 + policy.structure.dimension), np.float32)

    def read(public: Public, block: Any) -> Any:
        return estimate(policy, public, block[:, 0], block[:, 1:])

    def wait(public: Public, num_steps: Any) -> Any:
        return jax.lax.fori_loop(0, num_steps, lambda _, carry: read(carry, nothing)[0], public)

    return jax.jit(read), jax.jit(wait)


def _to_block(release: Release) -> Floats32:
    """Weight and release side by side, in standard deviations of the noise."""
    return (np.array([[release.fusion_weight, *release.value.tolist()]]) / GRID).astype(np.float32)


def _to_row(release: Mapping[str, Any], dimension: int, horizon: int | None) -> Row:
    """The release as the ledger has it, if it is one of this design."""
    if not isinstance(release, Mapping):
        raise ReleaseRefused(f"a release must be a mapping, got {type(release).__name__}")
    stream, step, value = release.get("stream"), release.get("step"), release.get("release")
    if not isinstance(stream, str) or not stream or len(stream) > 1000:
        raise ReleaseRefused("stream must be a name of 1 to 1000 characters; this is no release")
    if not _is_whole(step, 1) or (horizon is not None and step > horizon):
        raise ReleaseRefused(f"step must be a whole number from 1 to {horizon or '2^63 - 1'}; is this another design?")
    if not isinstance(value, list | tuple) or len(value) != dimension or not all(map(_is_int64, value)):
        raise ReleaseRefused(f"release must be {dimension} whole numbers of 64 bits; is this another design?")
    if not _is_whole(weight := release.get("fusion_weight"), 0):
        raise ReleaseRefused("fusion_weight must be a whole number of grid steps, 0 or more")
    if release.get("grid", GRID) != GRID:
        raise ReleaseRefused(f"grid must be {GRID} steps to a standard deviation of the noise; this is another version")
    cost, left = release.get("cost"), release.get("budget_left")
    if not all(each is None or _is_whole(each, 0) for each in (cost, left)):
        raise ReleaseRefused("cost and budget_left must be whole numbers, 0 or more, or null")
    try:
        digest = bytes.fromhex(release["hash"])
    except (KeyError, TypeError, ValueError):
        digest = b""
    if len(digest) != 32:
        raise ReleaseRefused("hash must be 64 hexadecimal digits")
    return Row(stream, step, np.array(value, "<i8").tobytes(), weight, cost, left, digest)


def _is_whole(value: Any, minimum: int) -> TypeGuard[int]:
    return type(value) is int and minimum <= value < _LARGEST


def _is_int64(value: Any) -> bool:
    return type(value) is int and -_LARGEST <= value < _LARGEST


def _follows(row: Row, reading: _Reading) -> bool:
    """Whether the row's hash is that of itself after the last one that was read."""
    return reading.step > 0 and row == Row.after(reading.hashes[reading.step], *row[:-1])


def _check_same(row: Row, reading: _Reading) -> None:
    """Refuse a second release of a step that differs from the first: a ledger holds one of each."""
    known = reading.hashes.get(row.step)
    if known is not None and known != row.hash:
        raise ReleaseRefused(
            f"step {row.step} of stream {row.stream!r} was released twice, with different contents; compare both with "
            f"`dpfuse ledger show --rows`"
        )
