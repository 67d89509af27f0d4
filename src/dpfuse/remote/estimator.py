"""The remote estimator: runs E on published releases, with E's file alone."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from dpfuse._arrays import Floats32
from dpfuse.errors import ReleaseRefused
from dpfuse.privacy.budget import GRID
from dpfuse.privacy.release import Release
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from dpfuse.policy.parts import Part
    from dpfuse.policy.policy import Policy
    from dpfuse.policy.step import PublicCarry

# After so many skipped steps the E of a design without an end no longer changes.
_MAX_SKIPPED = 100_000
_LARGEST = 2**63
# The hashes of so many steps are kept, to find a step that comes again with other contents.
_NUM_HASHES = 1000


class RemoteEstimate(NamedTuple):
    """E's estimate of the state after one release.

    Attributes:
        stream, step: of the release.
        mean, std: one number for each coordinate of the state, in its units.
        is_chained: whether the release's hash follows from the release read before it. False for the first release,
            and where releases in between were not read.
    """

    stream: str
    step: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_chained: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The estimate as `dpfuse estimate` prints it."""
        return {"stream": self.stream, "step": self.step, "mean": list(self.mean), "std": list(self.std)}


@dataclass
class _Progress:
    """How far a stream was read; public."""

    public: PublicCarry
    step: int = 0
    hashes: OrderedDict[int, bytes] = field(default_factory=OrderedDict)


class RemoteEstimator:
    """Runs E on one release after the other; needs neither the design nor the ledger.

        estimator = dpfuse.RemoteEstimator.load("road.estimator")
        estimate = estimator.update({"stream": "main", "step": 1, "release": [...], ...})

    The estimates are those of the centre up to float32 rounding: both run the same function on the released integers.
    A step that the centre skipped counts as a release of value 0 with weight 0. Releases of several streams may come in
    any order between streams; those of one stream come in order.
    """

    def __init__(self, path: str | os.PathLike[str], parts: Sequence[Part] = ()) -> None:
        """See `load`."""
        import jax

        from dpfuse.policy.estimator_file import import_estimator
        from dpfuse.policy.step import init_public

        policy = import_estimator(path, parts)
        self._structure = policy.structure
        self._first: PublicCarry = jax.device_get(init_public(policy, 1))
        self._read, self._skip = _compiled(policy)
        self._streams: dict[str, _Progress] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str], parts: Sequence[Part] = ()) -> RemoteEstimator:
        """The estimator in a file that `Design.export_estimator` wrote.

        Args:
            path: of the file.
            parts: the class of E, if it is one of your own.

        Raises:
            FileRefused: the file is not an estimator that this version can read.
        """
        return cls(path, parts)

    def last_step(self, stream: str) -> int:
        """The step of the last release that was read; 0 for none."""
        return self._streams[stream].step if stream in self._streams else 0

    def update(self, release: Mapping[str, Any]) -> RemoteEstimate | None:
        """The estimate after this release; None for a step that was read before.

        Args:
            release: a release message as a centre publishes it, or `Row.to_dict()`.

        Raises:
            ReleaseRefused: the release is malformed, is of another design, or contradicts those that were read: it is
                another release of the same step, or does not follow from the step before. The estimator is unchanged.
        """
        row = _to_row(release, self._structure.dimension, self._structure.horizon)
        progress = self._streams.get(row.stream) or _Progress(self._first)
        if row.step <= progress.step:
            _check_same(row, progress)
            return None
        is_chained = progress.step > 0 and row == Row.after(progress.hashes[progress.step], *row[:-1])
        num_skipped = row.step - progress.step - 1
        if not num_skipped and progress.step and not is_chained:
            raise ReleaseRefused(
                f"step {row.step} of stream {row.stream!r} does not follow from step {progress.step}: one of the two "
                f"is not in the ledger; compare both with `dpfuse ledger show --rows`"
            )
        if self._structure.horizon is None:
            num_skipped = min(num_skipped, _MAX_SKIPPED)
        public = self._skip(progress.public, num_skipped) if num_skipped else progress.public
        progress.public, result = self._read(public, _to_block(row.to_release()))
        progress.step = row.step
        progress.hashes[row.step] = row.hash
        if len(progress.hashes) > _NUM_HASHES:
            progress.hashes.popitem(last=False)
        self._streams[row.stream] = progress
        mean, std = (tuple(np.asarray(each)[0].tolist()) for each in result)
        return RemoteEstimate(row.stream, row.step, mean, std, is_chained)


def _compiled(policy: Policy) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two compiled functions: E's step for a release, and E's steps for a number of skipped steps."""
    import jax

    from dpfuse.policy.step import estimate

    # A skipped step, as in `ExactStep.follow`: value 0 with weight 0.
    nothing = np.zeros((1, 1 + policy.structure.dimension), np.float32)

    def read(public: PublicCarry, block: Any) -> Any:
        return estimate(policy, public, block[:, 0], block[:, 1:])

    def skip(public: PublicCarry, num_steps: Any) -> Any:
        return jax.lax.fori_loop(0, num_steps, lambda _, carry: read(carry, nothing)[0], public)

    return jax.jit(read), jax.jit(skip)


def _to_block(release: Release) -> Floats32:
    """Weight and release in standard deviations of the noise, shape (1, 1 + d)."""
    return (np.array([[release.fusion_weight, *release.value.tolist()]]) / GRID).astype(np.float32)


def _to_row(release: Mapping[str, Any], dimension: int, horizon: int | None) -> Row:
    """The release as a row; raises for one that cannot be of this design."""
    if not isinstance(release, Mapping):
        raise ReleaseRefused(f"a release must be a mapping, got {type(release).__name__}")
    stream, step, value = release.get("stream"), release.get("step"), release.get("release")
    if not isinstance(stream, str) or not stream or len(stream) > 1000:
        raise ReleaseRefused("stream must be a name of 1 to 1000 characters; this is not a release")
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


def _check_same(row: Row, progress: _Progress) -> None:
    """Refuse a second release of a step that differs from the first: a ledger holds one release of each step."""
    known = progress.hashes.get(row.step)
    if known is not None and known != row.hash:
        raise ReleaseRefused(
            f"step {row.step} of stream {row.stream!r} was released twice, with different contents; compare both with "
            f"`dpfuse ledger show --rows`"
        )
