"""A sweep as a TOML file: recordings, guarantees, seeds and settings; a list is a choice.

seeds = [0, 1, 2]

[recordings]
road = "road.dpfuse-data"                              # split 80/10/10 along time
runs = {file = "runs.dpfuse-data", split_by = "run"}

[guarantees]
budget = [0.15, 0.5, 1.5]
adjacency = "remove-one"
accounting = ["total", "individual"]
floor = true                                           # also without a guarantee

[common]                                               # for all settings
horizon = 100

[settings.classical]
spending = "constant"

[settings.adaptive]
recurrent_filter = ["gru", "guided"]
guarantees = {budget = 0.5, adjacency = "remove-one"}  # others than the sweep's
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dpfuse.guarantee import Guarantee
from dpfuse.trajectories import Trajectories

_KEYS = {"recordings", "guarantees", "seeds", "settings", "common", "evaluation", "out"}
_GUARANTEE_KEYS = {"order", "budget", "adjacency", "accounting", "period", "floor"}
_RECORDING_KEYS = {"file", "split_by", "split"}
_USUAL_ORDER = 2.0


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The arguments of `dpfuse.sweep` that a file holds; `**plan.to_arguments()` gives them.

    Attributes:
        recordings, guarantees, seeds, settings, evaluation: as in `dpfuse.sweep`.
        out: the folder for the results; None if the file names none.
    """

    recordings: Mapping[str, Callable[[], tuple[Trajectories, Trajectories, Trajectories]]]
    guarantees: Sequence[Guarantee | None]
    seeds: Sequence[int]
    settings: Mapping[str, Mapping[str, Any]]
    evaluation: Mapping[str, Any]
    out: Path | None

    def to_arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def read_plan(path: str | os.PathLike[str]) -> SweepPlan:
    """The sweep in a TOML file. Paths in it are relative to its folder."""
    with open(path, "rb") as file:
        try:
            content = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path} must be a TOML file: {error}") from error
    _refuse_unknown("the file", content, _KEYS)
    for name in ("recordings", "guarantees"):
        if not isinstance(content.get(name), dict) or not content[name]:
            raise ValueError(
                f"{path} must have a table [{name}] with at least one entry; `dpfuse sweep --help` shows one"
            )
    folder = Path(path).parent
    common = content.get("common", {})
    given = content.get("settings", {"default": {}})
    return SweepPlan(
        recordings={name: _make_reader(name, folder, value) for name, value in content["recordings"].items()},
        guarantees=make_guarantees(content["guarantees"]),
        seeds=content.get("seeds", [0]),
        settings={name: _make_setting(common | value) for name, value in given.items()},
        evaluation=content.get("evaluation", {}),
        out=folder / content["out"] if "out" in content else None,
    )


def make_guarantees(table: Mapping[str, Any]) -> list[Guarantee | None]:
    """Every combination of the values in a table of guarantees, by adjacency, accounting, period, order and budget."""
    _refuse_unknown("guarantees", table, _GUARANTEE_KEYS)
    if "budget" not in table:
        made: list[Guarantee | None] = []
    else:
        if "adjacency" not in table:
            raise ValueError("guarantees must state their adjacency, remove-one or replace-one: it has no default")
        choices = [_listed(table["adjacency"]), _listed(table.get("accounting", "total"))]
        choices += [_listed(table.get("period")), _listed(table.get("order", _USUAL_ORDER)), _listed(table["budget"])]
        made = [
            Guarantee(order=order, budget=budget, adjacency=adjacency, accounting=accounting, period=period)
            for adjacency, accounting, period, order, budget in product(*choices)
        ]
    made += [None] if table.get("floor") else []
    if not made:
        raise ValueError("guarantees must have a budget, or floor = true for designs without a guarantee")
    return made


def _make_setting(values: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(values)
    if "guarantees" in made:
        made["guarantees"] = make_guarantees(made["guarantees"])
    if "measurement_range" in made:
        made["measurement_range"] = tuple(made["measurement_range"])  # a pair, no choice
    return made


def _make_reader(name: str, folder: Path, value: Any) -> Callable[[], tuple[Trajectories, Trajectories, Trajectories]]:
    table = {"file": value} if isinstance(value, str) else value
    if not isinstance(table, dict) or not isinstance(table.get("file"), str):
        raise ValueError(f"recordings.{name} must be a path, or a table with file and split_by, got {value!r}")
    _refuse_unknown(f"recordings.{name}", table, _RECORDING_KEYS)
    return partial(_read, folder / table["file"], tuple(table.get("split", (0.8, 0.1, 0.1))), table.get("split_by"))


def _read(path: Path, shares: Any, split_by: Any) -> tuple[Trajectories, Trajectories, Trajectories]:
    training, validation, test = Trajectories.load(path).split(shares, by=split_by)
    return training, validation, test


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _refuse_unknown(where: str, table: Mapping[str, Any], known: set[str]) -> None:
    if unknown := set(table) - known:
        raise ValueError(f"{where} must have keys among {', '.join(sorted(known))}; got {sorted(unknown)[0]!r}")
