"""What a ledger is for, and the hashes that chain its rows.

Each stream has a chain, hash_k = SHA-256(hash_{k-1} | row_k). It begins with a hash of the terms and the stream's name.
Each commit has a tip, tip_n = SHA-256(tip_{n-1} | n | the hashes of its rows | the hash of its event, if it has one),
which stands for all rows and events up to then. An event is a change of the terms, or a restore from a backup.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from dpfuse.errors import LedgerMismatch
from dpfuse.guarantee import Guarantee
from dpfuse.privacy.loss import FeatureSet
from dpfuse.privacy.release import Mechanism
from dpfuse.public.rows import DESIGN_ID_LENGTH, Row
from dpfuse.public_inputs import PACKED_SIZE

if TYPE_CHECKING:
    from dpfuse.policy.design import Design


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The design and the streams that a ledger is for, and its bank. All of it is public.

    `upgrade` changes design and streams; the bank never changes.

    Attributes:
        ledger_id: a random name, which the head file holds too.
        fingerprint: of the design.
        guarantee: what the sensors are guaranteed.
        features, dimension, horizon: of the design's structure; `horizon` is None for a design without an end.
        streams: their names, sorted.
        bank_id: of the bank whose slices alone may be spent; None for a ledger with accounts of its own.
        num_public: how many public inputs each row has, as the design reads them.
    """

    ledger_id: str
    fingerprint: str
    guarantee: Guarantee
    features: FeatureSet
    dimension: int
    horizon: int | None
    streams: tuple[str, ...]
    bank_id: str | None = None
    num_public: int = 0

    @classmethod
    def of(cls, design: Design, streams: Iterable[str], ledger_id: str, bank_id: str | None = None) -> Terms:
        """The terms of a ledger for that design and these streams."""
        if design.guarantee is None:
            raise ValueError("design must have a guarantee; the non-private floor may not be released")
        if isinstance(streams, str):
            raise TypeError(f"streams must be a list of names, got one text, {streams!r}")
        names = sorted(streams)
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"streams must be one or more names, each once, got {names!r}")
        if bank_id is not None and design.guarantee.accounting != "individual":
            raise ValueError(
                "design must have individual accounting with a bank, which lends the accounts of sensors; in total "
                "accounting an account belongs to one stream of one ledger: make the ledger without a bank"
            )
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
            bank_id=bank_id,
            num_public=structure.num_public,
        )

    def check_design(self, design: Design, path: object) -> None:
        """Refuse another design than the one that the ledger at `path` is for."""
        if self != self._with(design, self.streams):
            raise LedgerMismatch(
                f"{path} belongs to another design; open it with that one, or change the ledger's design with "
                f"`dpfuse ledger upgrade`"
            )

    def change(self, design: Design | None, add: Iterable[str], retire: Iterable[str], path: object) -> Terms:
        """The terms with that design, if one is given, more streams and fewer; the accounts stay the same.

        The new design may have other features and another dimension. Debits are recorded after the charge factor, as
        squared grid steps of loss, and these add up whatever design made them (see `dpfuse.privacy.loss`: each step
        keeps its inequality by its own factor).

        Raises:
            LedgerRefused: the design's guarantee differs: its accounts would not be the same.
            ValueError: a stream that is added is there, or one that is retired is not.
        """
        added, retired = set(add), set(retire)
        if both := added & set(self.streams) or retired - set(self.streams) or added & retired:
            raise ValueError(
                f"streams must be new to be added and present to be retired, got {', '.join(sorted(both))}; the ledger "
                f"has {', '.join(self.streams)}"
            )
        streams = (set(self.streams) | added) - retired
        if design is None:
            if not streams:
                raise ValueError("retire must leave at least one stream")
            return replace(self, streams=tuple(sorted(streams)))
        changed = self._with(design, streams)
        for name in (field.name for field in fields(Guarantee)):
            old, new = getattr(self.guarantee, name), getattr(changed.guarantee, name)
            if old != new:
                raise LedgerMismatch(
                    f"{path} keeps accounts for {name} {old}, and the design has {name} {new}: what was spent under "
                    f"one cannot be compared with the other; train the design with {name} {old}"
                )
        return changed

    def _with(self, design: Design, streams: Iterable[str]) -> Terms:
        """The terms of the same ledger, with the same bank, for that design and these streams."""
        return replace(Terms.of(design, streams, self.ledger_id), bank_id=self.bank_id)

    @functools.cached_property
    def mechanism(self) -> Mechanism:
        """Charges and draws the design's steps."""
        return Mechanism(self.guarantee, self.features, self.dimension)

    @property
    def design_id(self) -> str:
        """The first characters of the fingerprint: each row names its design by them."""
        return self.fingerprint[:DESIGN_ID_LENGTH]

    @property
    def is_total(self) -> bool:
        return self.guarantee.accounting == "total"

    def has_inputs(self, inputs: bytes | None) -> bool:
        """Whether a row with these packed inputs has as many as the design reads."""
        return inputs is None if not self.num_public else len(inputs or b"") == PACKED_SIZE * self.num_public

    def to_json(self) -> str:
        fields = asdict(self) | {"guarantee": self.guarantee.to_dict()}
        # As before there were banks and public inputs: the first tip of a ledger is a hash of this text.
        for name in ("bank_id", "num_public"):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Terms:
        fields = json.loads(text)
        fields |= {"guarantee": Guarantee(**fields["guarantee"]), "streams": tuple(fields["streams"])}
        return cls(**fields)

    @functools.cached_property
    def first_tip(self) -> bytes:
        """The tip of a ledger without a commit."""
        return hashlib.sha256(self.to_json().encode()).digest()


def next_tip(tip: bytes, number: int, rows: Iterable[Row], event: tuple[str, str] | None = None) -> bytes:
    """The tip after commit `number`, which has these rows and this event, by kind and content."""
    hashes = b"".join(row.hash for row in sorted(rows))  # sorted by stream
    named = hashlib.sha256(" ".join(event).encode()).digest() if event else b""
    return hashlib.sha256(tip + number.to_bytes(8, "big") + hashes + named).digest()
