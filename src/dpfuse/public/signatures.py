"""Signed releases and estimators: anybody with the public key can check that they are the centre's.

    signature = Ed25519(key, "dpfuse release 1" | ledger id | design | content of the row | hash of the row)
    signature = Ed25519(key, "dpfuse estimator 1" | ledger id | design | digest of the estimator's file)

each part on a line of its own. The content is every field of the row but its hash: stream, step, release, weight,
cost, budget left, design, period and public inputs. The hash chains the row to the one before it. For the digest see
`dpfuse.public.signed_estimator`. Ed25519 is deterministic: after a restart the same row has the same signature, so
that of a row is made again when it is needed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfuse._extras import requires_extra
from dpfuse.errors import FileRefused
from dpfuse.public.rows import SIGNATURE_SIZE, Message, Row, release_message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KEY_SIZE = 32
_LINE = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NAME = re.compile(r"[0-9A-Za-z_-]{1,100}", re.ASCII)


class Signatory(NamedTuple):
    """Who signs the releases of a ledger, and their estimator; public.

    Attributes:
        public_key: 64 hex digits.
        ledger: the ledger's id.
        design: the fingerprint of the design.
    """

    public_key: str
    ledger: str
    design: str

    @classmethod
    def from_dict(cls, fields: Any) -> Signatory:
        """The signatory that `_asdict` described; a ValueError for anything else."""
        if not isinstance(fields, Mapping) or set(fields) != set(cls._fields):
            raise ValueError("signed_by must have public_key, ledger and design")
        found = cls(**fields)
        if not all(isinstance(each, str) and _NAME.fullmatch(each) for each in found):
            raise ValueError("signed_by must have three names")
        if not _LINE.fullmatch(found.public_key):
            raise ValueError("public_key must be 64 hex digits")
        return found

    def named_by(self, source: object) -> str:
        """What a reader goes by who was given no key."""
        return f"the centre's public key is {self.public_key}, as {source} says; to be certain, give it as --key"

    def has_signed(self, row: Row, signature: Any) -> bool:
        """Whether the signature, in hex, is this signatory's for that row."""
        return self._has_signed(self.signed_text(row), signature)

    def has_signed_estimator(self, digest: str, signature: Any) -> bool:
        """Whether the signature, in hex, is this signatory's for an estimator's file with that digest."""
        return self._has_signed(self.signed_estimator_text(digest), signature)

    def _has_signed(self, text: bytes, signature: Any) -> bool:
        with requires_extra("live", "checking signatures"):
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        try:
            if not isinstance(signature, str) or len(signature) != 2 * SIGNATURE_SIZE:
                return False
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))
            key.verify(bytes.fromhex(signature), text)
        except (InvalidSignature, ValueError):
            return False
        return True

    def signed_text(self, row: Row) -> bytes:
        """What is signed of a release."""
        parts = (b"dpfuse release 1", self.ledger.encode(), self.design.encode(), row.content, row.hash.hex().encode())
        return b"\n".join(parts)

    def signed_estimator_text(self, digest: str) -> bytes:
        """What is signed of an estimator's file."""
        return "\n".join(("dpfuse estimator 1", self.ledger, self.design, digest)).encode()


class Signer:
    """Signs the releases of one ledger, and their estimator, with the key in a file.

    Args:
        path: of the key, see `make_key`.
        ledger, design: the ledger's id and the design's fingerprint.
        earlier: fingerprints of the designs that the ledger had before, by the id that names them in rows.
    """

    def __init__(
        self, path: str | os.PathLike[str], ledger: str, design: str, earlier: Mapping[str, str] | None = None
    ) -> None:
        self._key = _read_key(Path(path))
        self.signatory = Signatory(self._key.public_key().public_bytes_raw().hex(), ledger, design)
        self._earlier = {each: self.signatory._replace(design=text) for each, text in (earlier or {}).items()}

    def sign(self, row: Row) -> bytes:
        """The signature of a row."""
        return self._key.sign(self._earlier.get(row.design, self.signatory).signed_text(row))

    def sign_estimator(self, digest: str) -> bytes:
        """The signature of an estimator's file with that digest."""
        return self._key.sign(self.signatory.signed_estimator_text(digest))

    def to_message(self, row: Row) -> Message:
        """The signed message of a row."""
        return release_message(row, self.sign(row))

    def __repr__(self) -> str:
        return f"Signer({self.signatory})"


def make_key(path: str | os.PathLike[str]) -> None:
    """Write a new signing key to a new file that only its owner may read."""
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(os.urandom(_KEY_SIZE).hex() + "\n")
        file.flush()
        os.fsync(file.fileno())


def _read_key(path: Path) -> Ed25519PrivateKey:
    with requires_extra("live", "signing releases"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    if not path.is_file():
        raise FileRefused(f"no signing key at {path}")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise FileRefused(f"only its owner may read the signing key in {path}; run `chmod 600 {path}`")
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not _LINE.fullmatch(text):
        raise FileRefused(f"{path} must hold one line of 64 hex digits, as `dpfuse serve --new` writes it")
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
