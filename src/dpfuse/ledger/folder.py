"""The folder of a ledger. Whoever may search it sees sizes and times of the ledger's files, and so how many report."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dpfuse.errors import LedgerMismatch

_OTHERS_MAY_SEARCH = stat.S_IXGRP | stat.S_IXOTH


def make_private_folder(folder: Path) -> None:
    """Make the folder, and those above it that are missing, for their owner alone."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700)


def check_private_folder(path: Path) -> None:
    """Refuse the path of a ledger that others can reach, through its folder and all folders above it."""
    if not is_private(path.parent):
        raise LedgerMismatch(
            f"{path.parent} may be searched by others, who could read sizes and times of the ledger's files there; put "
            f"it into a folder of its own (a new ledger in {path.stem}/{path.name} makes one), or chmod 700 "
            f"{path.parent}"
        )


def is_private(folder: Path) -> bool:
    """Whether others cannot reach what is in the folder, because of its own mode or that of a folder above it."""
    owners = (0, os.geteuid())
    facts = (each.stat() for each in (folder, *folder.parents))
    return any(one.st_uid in owners and not stat.S_IMODE(one.st_mode) & _OTHERS_MAY_SEARCH for one in facts)
