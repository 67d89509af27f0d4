"""The remote estimator: runs E on published releases, with E's file alone."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dpfuse._arrays import Floats32
from dpfuse.errors import DesignChanged, ReleaseRefused
from dpfuse.privacy.budget import GRID
from dpfuse.public.rows import DESIGN_ID_LENGTH, Row, read_row
from dpfuse.public.signatures import Signatory
from dpfuse.public.signed_estimator import read_signatory
from dpfuse.public_inputs import unpack

if TYPE_CHECKING:
    from dpfuse.policy.parts import Part
    from dpfuse.policy.step import PublicCarry

# After so many skipped steps the E of a design without an end no longer changes.
_MAX_SKIPPED = 100_000
# So many of them are computed one by one, as at the centre; those before in one loop, which may round differently.
_ONE_BY_ONE = 1000
_LATEST_STEP = 2**31 - 1
# The hashes of so many steps are kept, to find a step that comes again with other contents.
_NUM_HASHES = 1000
# A band wider than this share of the prior's says that the estimate rests on little.
_WIDE = 0.5

Status = Literal["settled", "warming up", "no news"]


class RemoteEstimate(NamedTuple):
    """E's estimate of the state after one release.

    Attributes:
        stream, step: of the release.
        mean, std: one number for each coordinate of the state, in its units.
        is_chained: whether the release's hash follows from the release read before it. False for the first release,
            and where releases in between were not read.
        status: "settled", or what the estimate rests on where its band is wider than half the prior's: on too few
            releases yet ("warming up"), or on ones that have said little for a while ("no news").
    """

    stream: str
    step: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_chained: bool = True
    status: Status = "settled"

    def to_dict(self) -> dict[str, Any]:
        """The estimate as `dpfuse estimate` prints it."""
        numbers = {"mean": list(self.mean), "std": list(self.std)}
        return {"stream": self.stream, "step": self.step, **numbers, "status": self.status}


@dataclass
class _Progress:
    """How far a stream was read; public."""

    public: PublicCarry
    step: int = 0
    has_settled: bool = False
    hashes: OrderedDict[int, bytes] = field(default_factory=OrderedDict)


class RemoteEstimator:
    """Runs E on one release after the other; needs neither the design nor the ledger.

        estimator = dpfuse.RemoteEstimator.load("road.estimator")
        estimate = estimator.update({"stream": "main", "step": 1, "release": [...], ...})

    The estimates are those of the centre, bit for bit on equal machines: both run the same compiled function on the
    released integers and the public inputs of the rows, see `dpfuse.policy.public_part`. After a gap of more than 1,000
    steps they may differ by rounding.
    E is told which steps the centre skipped, as their numbers are missing. Releases of several streams may come in
    any order between streams; those of one stream come in order.
    The first release that is read may be of any step: E then starts with fresh memory, as one who joins late.

    **Guarantees**
        - A file that names who signed it is refused without that signature, and only releases with it are read.
        - A release that is refused changes nothing: the genuine one is still read after it.

    Attributes:
        signatory: who has signed the file and signs the releases; None if nobody has, as in a file of
            `Design.export_estimator`. Then whoever hands out file or releases can make them up.
    """

    def __init__(self, path: str | os.PathLike[str], parts: Sequence[Part] = (), public_key: str | None = None) -> None:
        """See `load`."""
        import jax

        from dpfuse.policy.estimator_file import import_estimator
        from dpfuse.policy.public_part import ESTIMATE_ROWS, compile_estimate, compile_skip
        from dpfuse.policy.step import init_public

        self.signatory: Signatory | None = read_signatory(path, public_key)
        policy = import_estimator(path, parts)
        self._structure, self._squared_radius = policy.structure, float(policy.constants.squared_radius)
        self._prior_std: list[float] = np.asarray(policy.constants.state_std, np.float64).tolist()
        # The stream that is read is the first one; the others stay as they are.
        self._first: PublicCarry = jax.device_get(init_public(policy, ESTIMATE_ROWS))
        self._estimate, self._skip_many = compile_estimate(policy), compile_skip(policy)
        self._streams: dict[str, _Progress] = {}
        # The id of the design, as rows name it; if the file does not say, it is that of the first release.
        self._design_id = "" if self.signatory is None else self.signatory.design[:DESIGN_ID_LENGTH]

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], parts: Sequence[Part] = (), public_key: str | None = None
    ) -> RemoteEstimator:
        """The estimator in a file that a centre hands out, or that `Design.export_estimator` wrote.

        Args:
            path: of the file.
            parts: the class of E, if it is one of your own.
            public_key: of the centre, 64 hex digits, if it is known from elsewhere. A file that this key has not signed
                is refused. Without it the file is checked with the key that it names, which shows only that file and
                releases are of one centre.

        Raises:
            FileRefused: the file is not an estimator that this version can read, or is not signed as it should be.
        """
        return cls(path, parts, public_key)

    def last_step(self, stream: str) -> int:
        """The step of the last release that was read; 0 for none."""
        return self._streams[stream].step if stream in self._streams else 0

    def is_of_design(self, release: Mapping[str, Any]) -> bool:
        """False if the release names another design than the estimator's; a ledger that was upgraded has such ones."""
        named = release.get("design") if isinstance(release, Mapping) else None
        return not named or not self._design_id or named == self._design_id

    def is_genuine(self, release: Mapping[str, Any]) -> bool:
        """Whether the release has the signature of `signatory`; True if there is none.

        Raises:
            ReleaseRefused: the release is malformed or of another design.
        """
        return self._is_signed(self._read_row(release), release)

    def _read_row(self, release: Mapping[str, Any]) -> Row:
        structure = self._structure
        return read_row(release, structure.dimension, structure.horizon, structure.num_public)

    def _is_signed(self, row: Row, release: Mapping[str, Any]) -> bool:
        return self.signatory is None or self.signatory.has_signed(row, release.get("signature"))

    def update(self, release: Mapping[str, Any], *, may_skip: bool = False) -> RemoteEstimate | None:
        """The estimate after this release; None for a step that was read before.

        Args:
            release: a release message as a centre publishes it, or `Row.to_dict()` where releases are not signed.
            may_skip: read it also if releases between the last one and this one were not read; they count as skipped.

        Raises:
            ReleaseRefused: the release is malformed, is of another design, has not the signature of `signatory`, or
                contradicts those that were read: it is another release of the same step, or does not follow from the
                last one that was read. The estimator is unchanged.
        """
        if not self.is_of_design(release):
            raise DesignChanged(
                f"the release is of another design than this estimator, whose design is {self._design_id}; if the "
                f"centre's ledger was upgraded, fetch its estimator again"
            )
        row = self._read_row(release)
        if not self._is_signed(row, release):
            raise ReleaseRefused(f"step {row.step} of stream {row.stream!r} is not signed by the centre")
        progress = self._streams.get(row.stream) or _Progress(self._first)
        if row.step <= progress.step:
            _check_same(row, progress)
            return None
        is_chained = progress.step > 0 and row == Row.after(progress.hashes[progress.step], *row[:-1])
        num_skipped = row.step - progress.step - 1 if progress.step else 0
        if progress.step and not is_chained and not (num_skipped and may_skip):
            cause = "releases between them were not read" if num_skipped else "one of the two is not in the ledger"
            raise ReleaseRefused(
                f"step {row.step} of stream {row.stream!r} does not follow from step {progress.step}: {cause}; compare "
                f"with `dpfuse ledger show --rows`"
            )
        if self._structure.horizon is None:
            num_skipped = min(num_skipped, _MAX_SKIPPED)
        public = progress.public if progress.step else self._begin(row)
        public = self._skip(public, num_skipped)
        progress.public, result = self._estimate(public, self._block(row))
        progress.step = row.step
        progress.hashes[row.step] = row.hash
        if len(progress.hashes) > _NUM_HASHES:
            progress.hashes.popitem(last=False)
        self._streams[row.stream] = progress
        self._design_id = self._design_id or row.design
        mean, std = (tuple(np.asarray(each)[0].tolist()) for each in result)
        is_wide = any(own > _WIDE * prior for own, prior in zip(std, self._prior_std, strict=True))
        status: Status = "settled" if not is_wide else "no news" if progress.has_settled else "warming up"
        progress.has_settled |= not is_wide
        return RemoteEstimate(row.stream, row.step, mean, std, is_chained, status)

    def _skip(self, public: PublicCarry, num_steps: int) -> PublicCarry:
        """The carry after skipped steps."""
        nothing = self._block(None)
        if num_steps > _ONE_BY_ONE:
            public = self._skip_many(public, nothing, num_steps - _ONE_BY_ONE)
        for _ in range(min(num_steps, _ONE_BY_ONE)):
            public, _ = self._estimate(public, nothing)
        return public

    def _block(self, row: Row | None) -> Floats32:
        """What E reads of the row; of a skipped step if None: value 0 with weight 0, as in `FusionCentre.skip`."""
        from dpfuse.policy.public_part import ESTIMATE_ROWS, to_block

        structure = self._structure
        weights, values = np.zeros(ESTIMATE_ROWS, np.int64), np.zeros((ESTIMATE_ROWS, structure.dimension), np.int64)
        inputs = np.zeros((ESTIMATE_ROWS, 2 * structure.num_public), np.float32) if structure.num_public else None
        if row is not None:
            released = row.to_release()
            weights[0], values[0] = released.fusion_weight, released.value
            if inputs is not None and row.inputs is not None:
                inputs[0] = unpack(row.inputs)
        return to_block(weights, values, row is None, inputs)

    def _begin(self, row: Row) -> PublicCarry:
        """What anybody knows before the first release that is read: the step, and with a total budget what is left."""
        if row.step == 1:
            return self._first
        first: Any = self._first
        left = first.budget_left
        if row.budget_left is not None:
            cost = self._structure.charge_factor * row.fusion_weight**2
            spent = self._squared_radius - (row.budget_left + cost) / GRID**2
            left = np.maximum(left - np.float32(spent), np.float32(0))
        begun: PublicCarry = first._replace(step_index=np.int32(min(row.step - 1, _LATEST_STEP)), budget_left=left)
        return begun


def _check_same(row: Row, progress: _Progress) -> None:
    """Refuse a second release of a step that differs from the first: a ledger holds one release of each step."""
    known = progress.hashes.get(row.step)
    if known is not None and known != row.hash:
        raise ReleaseRefused(
            f"step {row.step} of stream {row.stream!r} was released twice, with different contents; compare both with "
            f"`dpfuse ledger show --rows`"
        )
