"""Imports of packages that a plain install leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpfuse.errors import MissingExtra


@contextmanager
def requires_extra(extra: str, use: str) -> Iterator[None]:
    """Runs the imports in its body; a package that is not installed raises MissingExtra with the pip line.

    Args:
        extra: the group of optional dependencies in pyproject.toml that holds the package.
        use: what needs the package, as the subject of the error's sentence.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{use} needs {error.name}: pip install 'dpfuse[{extra}]'") from error
