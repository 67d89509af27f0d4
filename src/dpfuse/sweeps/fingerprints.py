"""What decides a design, as a SHA-256: a sweep that is run again trains only designs whose fingerprint is new."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

import dpfuse
from dpfuse.guarantee import Guarantee
from dpfuse.trajectories import Trajectories


def fingerprint_parts(parts: Iterable[Trajectories]) -> str:
    """A SHA-256 of the recordings: every number in them, and their origins."""
    digest = hashlib.sha256()
    for part in parts:
        for field in fields(part):
            value = getattr(part, field.name)
            digest.update(field.name.encode())
            if isinstance(value, np.ndarray):
                digest.update(f"{value.dtype.str}{value.shape}".encode())
                digest.update(np.ascontiguousarray(value).data)
            else:
                digest.update(repr(value).encode())
    return digest.hexdigest()


def fingerprint_case(
    data: str,
    guarantee: Guarantee | None,
    seed: int,
    options: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    test: Callable[..., Any] | None = None,
) -> str:
    """A SHA-256 of recording, guarantee, seed, settings, the user's own test and version of dpfuse."""
    decides: list[Any] = [dpfuse.__version__, data, guarantee and guarantee.to_dict(), int(seed), options, evaluation]
    decides += [] if test is None else [test]
    return hashlib.sha256(json.dumps(plain(decides), sort_keys=True).encode()).hexdigest()


def plain(value: Any) -> Any:
    """The value as JSON takes it. A class or function of the user's own counts with its source."""
    if isinstance(value, type) or inspect.isfunction(value):
        try:
            return [value.__module__, value.__qualname__, inspect.getsource(value)]
        except (OSError, TypeError):  # typed in at a prompt
            return [value.__module__, value.__qualname__]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value
