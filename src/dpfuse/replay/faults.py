"""Faults of sensors and network that a replay simulates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfuse import _check


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong between a sensor and the centre.

    Attributes:
        loss: probability that a report is never sent.
        delay_s: each report is delayed by a time that is uniform from 0 to this.
        duplicates: probability that a report is sent twice.
        garbage: probability that a sensor sends something else in place of its report.
        seed: of all random choices.
    """

    loss: float = 0.0
    delay_s: float = 0.0
    duplicates: float = 0.0
    garbage: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicates", "garbage"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if not 0 <= self.delay_s <= 3600:
            raise ValueError(f"delay_s must be from 0 to 3600, got {self.delay_s}")
        _check.is_count("seed", self.seed, minimum=0)


def make_garbage(report: dict[str, Any], rng: np.random.Generator) -> Any:
    """What a broken or malicious sensor might send in place of its report."""
    kinds: list[Callable[[], Any]] = [
        lambda: report | {"values": [float("nan")] * len(report["values"])},
        lambda: report | {"values": [1e308] * len(report["values"])},
        lambda: report | {"values": [-(10**400)] * len(report["values"])},
        lambda: report | {"values": []},
        lambda: report | {"values": report["values"] * 50},
        lambda: report | {"values": "fast"},
        lambda: report | {"values": {"x": [[[[]]]]}},
        lambda: report | {"values": [None, True]},
        lambda: report | {"step": -1},
        lambda: report | {"step": 2**70},
        lambda: report | {"step": "now"},
        lambda: report | {"stream": "elsewhere"},
        lambda: report | {"mac": report["mac"][:-4] + "0000"},
        lambda: report | {"key": "0"},
        lambda: {"key": report["key"]},
        lambda: [report],
        lambda: None,
        lambda: "\x00" * 100,
    ]
    return kinds[int(rng.integers(len(kinds)))]()
