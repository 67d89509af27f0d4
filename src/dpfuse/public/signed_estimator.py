"""The signature of an estimator's file, by the key that signs the releases.

The metadata of the file name who signed it, `signed_by`, and hold the `signature`. It covers ledger, design, all other
metadata and every array. So a file that anybody hands out is the centre's if its signature is that of the centre's key.
"""

from __future__ import annotations

import os

from dpfuse import _archive
from dpfuse.errors import FileRefused
from dpfuse.public.signatures import Signatory, Signer

_KIND = "estimator"
_SIGNED_BY, _SIGNATURE = "signed_by", "signature"


def sign_estimator(path: str | os.PathLike[str], signer: Signer) -> None:
    """Write who signs the releases, and the signature, into the file of an estimator."""
    signature = signer.sign_estimator(_digest(path))
    metadata, arrays = _archive.read(path, _KIND)
    signed = {_SIGNED_BY: signer.signatory._asdict(), _SIGNATURE: signature.hex()}
    _archive.write(path, metadata | signed, arrays)


def read_signatory(path: str | os.PathLike[str], public_key: str | None = None) -> Signatory | None:
    """Who has signed the file and signs the releases; None if nobody has.

    Args:
        public_key: of the centre, 64 hex digits, if it is known from elsewhere.

    Raises:
        FileRefused: the signature is not that of the key which the file names, or that is not `public_key`.
    """
    metadata, _ = _archive.read_headers(path, _KIND)
    try:
        named = metadata.get(_SIGNED_BY)
        signatory = None if named is None else Signatory.from_dict(named)
    except ValueError as error:
        raise FileRefused(f"{path} is not an estimator that this version can read: {error}") from error
    if public_key is not None and (signatory is None or signatory.public_key != public_key.strip().lower()):
        raise FileRefused(f"{path} does not have the public key that was given; is it from the right centre?")
    if signatory is not None and not signatory.has_signed_estimator(_digest(path), metadata.get(_SIGNATURE)):
        raise FileRefused(f"{path} is not what the centre signed; fetch it again, from the centre or another relay")
    return signatory


def _digest(path: str | os.PathLike[str]) -> str:
    return _archive.digest_of(path, _KIND, without=(_SIGNED_BY, _SIGNATURE))
