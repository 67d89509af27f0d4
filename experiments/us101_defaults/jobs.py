"""The jobs of the study with default settings: each trains one kind of design for all its budgets and seeds at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dpfuse import Architecture, Guarantee

Kind = Literal["classical", "schedule", "ppo", "pathwise", "individual", "floor"]

RECORDING = "recording.dpfuse-data"
ORDER = 2.0
BUDGETS = (0.07, 0.15, 0.3, 0.5, 1.0, 1.5, 3.0, 5.0)
HEADLINE = (0.15, 0.5, 1.5)
LONG = (0.07, 0.15, 0.5, 1.5)
PRIVATE: tuple[Kind, ...] = ("classical", "schedule", "ppo", "pathwise", "individual")
COMPARED: tuple[Kind, ...] = ("classical", "pathwise", "individual")
ADJACENCIES = ("remove-one", "replace-one")
SPENDING: Mapping[Kind, Any] = {"classical": "constant", "floor": "constant", "schedule": "schedule"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Designs that differ in budget and seed alone.

    Attributes:
        kind: how the designs spend and who is charged; `floor` has no noise and no guarantee.
        recurrent_filter: f; by default that of `dpfuse.train`.
        horizon: None for a design without end.
        fold: number of the time fold, or None for the paper's split.
        simulated: whether simulated traffic is used in training besides US-101.
    """

    kind: Kind
    adjacency: Any = "remove-one"
    budgets: tuple[float, ...] = BUDGETS
    num_seeds: int = 5
    recurrent_filter: Any = None
    horizon: int | None = 100
    fold: int | None = None
    simulated: bool = True

    @property
    def accounting(self) -> Literal["total", "individual"]:
        return "individual" if self.kind == "individual" else "total"

    @property
    def label(self) -> str:
        """The name of the designs in the results."""
        return self.kind if self.recurrent_filter is None else f"{self.kind}, {self.recurrent_filter}"

    @property
    def name(self) -> str:
        """A file name that no other job has."""
        parts = [self.kind, self.adjacency if self.kind != "floor" else "no-guarantee"]
        parts += [self.recurrent_filter] if self.recurrent_filter else []
        parts.append(f"K{self.horizon or '-without-end'}")
        parts += [] if self.fold is None else [f"fold{self.fold}"]
        parts += [] if self.simulated else ["recorded"]
        parts.append(f"{len(self.budgets)}x{self.num_seeds}")
        return "_".join(parts)

    @property
    def recording(self) -> str:
        """The name of its parts of the recording."""
        return ("split" if self.fold is None else f"fold{self.fold}") + ("" if self.simulated else "_recorded")

    @property
    def guarantees(self) -> list[Guarantee | None]:
        if self.kind == "floor":
            return [None]
        return [
            Guarantee(order=ORDER, budget=budget, adjacency=self.adjacency, accounting=self.accounting)
            for budget in self.budgets
        ]

    @property
    def architecture(self) -> Architecture:
        return Architecture(recurrent_filter=self.recurrent_filter)


def split() -> list[Job]:
    """Every kind at every budget on the paper's split, under both adjacencies."""
    return [Job(kind=kind, adjacency=adjacency) for adjacency in ADJACENCIES for kind in PRIVATE]


def endless() -> list[Job]:
    """Designs without end."""
    return [Job(kind="individual", horizon=None, budgets=LONG)]


def floors() -> list[Job]:
    """The floor for each horizon, each trained on windows as long as those of its designs."""
    return [Job(kind="floor", budgets=(0.0,), horizon=horizon) for horizon in (None, 100)]


def folds() -> list[Job]:
    """Five folds in time."""
    return [
        Job(kind=kind, budgets=HEADLINE, num_seeds=3, fold=fold)
        for kind in ("individual", "classical", "pathwise")
        for fold in range(5)
    ]


def filters() -> list[Job]:
    """The other f: the paper's where the default is guided, and guided where it is the paper's."""
    other = {"classical": "guided", "pathwise": "gru", "individual": "gru"}
    return [Job(kind=kind, budgets=LONG, recurrent_filter=other[kind]) for kind in COMPARED]


def recorded() -> list[Job]:
    """Training on US-101 alone, without simulated traffic."""
    return [Job(kind=kind, budgets=LONG, simulated=False) for kind in (*COMPARED, "floor")]


def plan() -> list[Job]:
    """The full study, the longest jobs first."""
    return [*endless(), *floors(), *split()[::-1], *folds(), *filters(), *recorded()]
