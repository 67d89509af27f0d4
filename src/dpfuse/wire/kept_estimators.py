"""The estimators of the designs that a ledger has had: signed files in a folder beside the ledger. All of it is public.

Rows that an earlier design has made can then still be turned into estimates.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from dpfuse.errors import FileRefused
from dpfuse.public.rows import DESIGN_ID_LENGTH
from dpfuse.public.signatures import Signer
from dpfuse.public.signed_estimator import read_signatory, sign_estimator

if TYPE_CHECKING:
    from dpfuse.policy.design import Design

_log = logging.getLogger(__name__)


def keep_estimators(folder: Path, design: Design, signer: Signer) -> dict[str, bytes]:
    """The content of each estimator's file in the folder, by the id of its design; that of `design` is written there.

    A file that was not signed with the same key for the same ledger, or has not the name of its design, is left out.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    own, new = signer.signatory, folder / ".new"
    design.export_estimator(new)
    sign_estimator(new, signer)
    new.replace(folder / own.design[:DESIGN_ID_LENGTH])
    found = {}
    for path in sorted(each for each in folder.iterdir() if len(each.name) == DESIGN_ID_LENGTH):
        try:
            signatory = read_signatory(path, own.public_key)
        except FileRefused as error:
            _log.warning("an estimator of an earlier design is not handed out: %s", error)
            continue
        assert signatory is not None  # with a key, a file without a signature is refused
        if signatory.ledger == own.ledger and signatory.design[:DESIGN_ID_LENGTH] == path.name:
            found[path.name] = path.read_bytes()
    return found
