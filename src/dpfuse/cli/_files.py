"""Nothing is overwritten without --force."""

from __future__ import annotations

from pathlib import Path

import typer


def refuse_overwrite(path: Path, force: bool) -> None:
    """Stop with exit 2 if the file is there and --force was not given."""
    if path.exists() and not force:
        raise typer.BadParameter(f"{path} exists; give --force to overwrite it, or another --out")
