"""What a ledger is bound to, what goes into it, and what comes out; and how its rows are chained.

Each stream has a chain of its own, hash_k = SHA-256(hash_{k-1} | row_k), which begins at a hash of the terms and of
the stream's name. Each commit, which may hold a row of every stream, has a tip, tip_n = SHA-256(tip_{n-1} | n | the
hashes of its rows): one number that stands for all that was ever released.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from dpfuse.privacy.loss import FeatureSet
from dpfuse.privacy.release import Charged, Mechanism
from dpfuse.public.rows import Row
from dpfuse.types import Guarantee

if TYPE_CHECKING:
    from dpfuse.policy.design import Design


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a ledger is bound to when it is created, for good. All of it is public.

    Attributes:
        ledger_id: a random name that ledger and head file share.
        fingerprint: of the design.
        guarantee: the promise to the sensors.
        features, dimension, horizon: of the design's structure; no horizon, no end.
        streams: their names, sorted.
    """

    ledger_id: str
    fingerprint: str
    guarantee: Guarantee
    features: FeatureSet
    dimension: int
    horizon: int | None
    streams: tuple[str, ...]

    @classmethod
    def of(cls, design: Design, streams: Iterable[str], ledger_id: str) -> Terms:
        """The terms of a new ledger for that design."""
        if design.guarantee is None:
            raise ValueError("design must have a guarantee; the non-private floor may not be released")
        if isinstance(streams, str):
            raise TypeError(f"streams must be a list of names, got one text, {streams!r}")
        names = sorted(streams)
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"streams must be one or more names, each once, got {names!r}")
        structure = design.structure
        assert structure.features != "unbounded"  # only the floor has unbounded features
        return cls(
            ledger_id=ledger_id,
            fingerprint=design.fingerprint,
            guarantee=design.guarantee,
            features=structure.features,
            dimension=structure.dimension,
            horizon=structure.horizon,
            streams=tuple(names),
        )

    @functools.cached_property
    def mechanism(self) -> Mechanism:
        """How the design's steps are charged and drawn."""
        return Mechanism(self.guarantee, self.features, self.dimension)

    @property
    def is_total(self) -> bool:
        return self.guarantee.accounting == "total"

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Terms:
        fields = json.loads(text)
        return cls(
            **fields | {"guarantee": Guarantee(**fields["guarantee"]), "streams": tuple(fields["streams"])},
        )

    @functools.cached_property
    def first_tip(self) -> bytes:
        """The tip of a ledger without a commit."""
        return hashlib.sha256(self.to_json().encode()).digest()

    def first_hash(self, stream: str) -> bytes:
        """What a stream's chain begins with."""
        return hashlib.sha256(self.first_tip + stream.encode()).digest()


@dataclass(frozen=True, eq=False)
class Entry:
    """One stream's step on its way into the ledger: paid for, and not drawn. Private.

    Attributes:
        stream: its name.
        step: its number, from 1 on; steps may be skipped, and never come back.
        charged: what `ExactStep.contribute` or `Mechanism.charge` returned.
        ids: of the sensors that were charged, shape (m,); not needed in total accounting.
    """

    stream: str
    step: int
    charged: Charged
    ids: ArrayLike = field(default=(), repr=False)


def next_tip(tip: bytes, number: int, rows: Iterable[Row]) -> bytes:
    """The tip after one more commit; in the order of the streams' names."""
    hashes = b"".join(row.hash for row in sorted(rows))
    return hashlib.sha256(tip + number.to_bytes(8, "big") + hashes).digest()
