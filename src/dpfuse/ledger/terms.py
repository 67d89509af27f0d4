"""What a ledger is created for, and the hashes that chain its rows.

Each stream has a chain, hash_k = SHA-256(hash_{k-1} | row_k). It begins with a hash of the terms and the stream's name.
Each commit has a tip, tip_n = SHA-256(tip_{n-1} | n | the hashes of its rows), which stands for all rows up to then.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dpfuse.errors import LedgerRefused
from dpfuse.privacy.loss import FeatureSet
from dpfuse.privacy.release import Mechanism
from dpfuse.public.rows import Row
from dpfuse.types import Guarantee

if TYPE_CHECKING:
    from dpfuse.policy.design import Design


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The design and the streams that a ledger is created for. They never change. All of it is public.

    Attributes:
        ledger_id: a random name, which the head file holds too.
        fingerprint: of the design.
        guarantee: what the sensors are guaranteed.
        features, dimension, horizon: of the design's structure; `horizon` is None for a design without an end.
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
        """The terms of a ledger for that design and these streams."""
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

    def check_design(self, design: Design, path: object) -> None:
        """Refuse another design than the one that the ledger at `path` was created for."""
        if self != Terms.of(design, self.streams, self.ledger_id):
            raise LedgerRefused(f"{path} belongs to another design; open it with that one, or create a new ledger")

    @functools.cached_property
    def mechanism(self) -> Mechanism:
        """Charges and draws the design's steps."""
        return Mechanism(self.guarantee, self.features, self.dimension)

    @property
    def is_total(self) -> bool:
        return self.guarantee.accounting == "total"

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Terms:
        fields = json.loads(text)
        fields |= {"guarantee": Guarantee(**fields["guarantee"]), "streams": tuple(fields["streams"])}
        return cls(**fields)

    @functools.cached_property
    def first_tip(self) -> bytes:
        """The tip of a ledger without a commit."""
        return hashlib.sha256(self.to_json().encode()).digest()

    def first_hash(self, stream: str) -> bytes:
        """The hash of a stream without a row."""
        return hashlib.sha256(self.first_tip + stream.encode()).digest()


def next_tip(tip: bytes, number: int, rows: Iterable[Row]) -> bytes:
    """The tip after commit `number`, which has these rows."""
    hashes = b"".join(row.hash for row in sorted(rows))  # sorted by stream
    return hashlib.sha256(tip + number.to_bytes(8, "big") + hashes).digest()
