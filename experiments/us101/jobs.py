"""The jobs of the case study: each trains one kind of design for all its budgets and seeds at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dpfuse import Architecture, Guarantee

Kind = Literal["classical", "schedule", "ppo", "pathwise", "individual", "floor"]

RECORDING = "recording.dpfuse-data"
WHO_REPORTS = "who-reports"  # the folder of tests with other reporting vehicles
ORDER = 2.0
BUDGETS = (0.07, 0.15, 0.3, 0.5, 1.0, 1.5, 3.0, 5.0)
HEADLINE = (0.15, 0.5, 1.5)
LONG = (0.07, 0.15, 0.5, 1.5)
PRIVATE: tuple[Kind, ...] = ("classical", "schedule", "ppo", "pathwise", "individual")
COMPARED: tuple[Kind, ...] = ("classical", "pathwise", "individual")
ADJACENCIES = ("remove-one", "replace-one")
SPENDING: Mapping[Kind, Any] = {"classical": "constant", "floor": "constant", "schedule": "schedule"}
# Feature sets and dimensions d to choose from, by adjacency and accounting. The best one on validation is chosen.
CANDIDATES: Mapping[tuple[str, str], tuple[tuple[str, int], ...]] = {
    ("remove-one", "total"): (("ball", 1), ("ball", 2), ("ball", 3)),
    ("remove-one", "individual"): (("ball", 1), ("ball", 2), ("ball", 3)),
    ("replace-one", "total"): (("box", 1), ("box", 2)),
    ("replace-one", "individual"): (("box", 1), ("orthant", 2), ("orthant", 3)),
}
# What was chosen for the classical designs of the headline; the classical designs beside guided ones use it too.
CLASSICAL = {"remove-one": ("ball", 2), "replace-one": ("box", 1)}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Designs that differ in budget and seed alone.

    Attributes:
        kind: how the designs spend and who is charged; `floor` has no noise and no guarantee.
        features, dimension: of f; None for what was chosen on validation.
        guided: whether f reads past releases too; otherwise it reads a vehicle's own reports alone, as in the paper.
        horizon: None for a stationary design.
        fold: number of the time fold, or None for the paper's split.
        spread: of the parameters of the simulated freeways in training; None to train without them.
        on_us101: whether US-101 is used in training and validation; otherwise simulated freeways alone.
        ppo: settings of PPO that differ from the defaults.
    """

    kind: Kind
    adjacency: Any = "remove-one"
    budgets: tuple[float, ...] = BUDGETS
    num_seeds: int = 5
    features: Any = None
    dimension: int | None = None
    guided: bool = False
    horizon: int | None = 100
    share: float = 0.3
    fold: int | None = None
    spread: float | None = None
    on_us101: bool = True
    ppo: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.on_us101 or self.spread is not None, "trained on nothing"

    @property
    def accounting(self) -> Literal["total", "individual"]:
        return "individual" if self.kind == "individual" else "total"

    @property
    def is_enlarged(self) -> bool:
        """Whether simulated traffic is used in training besides US-101."""
        return self.on_us101 and self.spread is not None

    @property
    def label(self) -> str:
        """The name of the designs in the results."""
        return f"{self.kind}, guided" if self.guided else self.kind

    @property
    def recording(self) -> str:
        """The name of what the designs are trained and tested on."""
        parts = [f"share{round(100 * self.share)}"]
        parts += [] if self.fold is None else [f"fold{self.fold}"]
        parts += ["both"] if self.is_enlarged else []
        parts += [] if self.spread is None else [f"freeway{round(100 * self.spread)}"]
        return "_".join(parts)

    @property
    def name(self) -> str:
        """A file name that no other job has."""
        parts = [self.kind, self.adjacency if self.kind != "floor" else "no-guarantee"]
        if self.features is not None:
            parts.append(f"{self.features}{self.dimension}")
        parts += ["guided"] if self.guided else []
        parts += [f"K{self.horizon or 'stationary'}", self.recording]
        parts += [f"{name}-{value}".lower() for name, value in self.ppo.items()]
        parts.append(f"{len(self.budgets)}x{self.num_seeds}")
        return "_".join(parts)

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
        recurrent_filter: Any = "guided" if self.guided else "gru"
        return Architecture(features=self.features, dimension=self.dimension, recurrent_filter=recurrent_filter)


def path_of(job: Job, folder: Path) -> Path:
    """Where the results of a job are."""
    return folder / "jobs" / f"{job.name}.json"


def candidates() -> list[Job]:
    """Some designs for each feature set, to choose from by validation error, without and with simulated traffic."""
    on_us101 = [_candidate(*kind, *chosen) for kind, sets in CANDIDATES.items() for chosen in sets]
    return [*on_us101, *map(_enlarged, on_us101)]


def guided_candidates() -> list[Job]:
    """The same for guided designs."""
    return [replace(p, guided=True, budgets=(0.15, 1.5), num_seeds=1) for p in candidates() if not p.is_enlarged]


def _candidate(adjacency: str, accounting: str, features: str, dimension: int) -> Job:
    kind: Kind = "pathwise" if accounting == "total" else "individual"
    return Job(kind=kind, adjacency=adjacency, budgets=HEADLINE, num_seeds=3, features=features, dimension=dimension)


def headline() -> list[Job]:
    """Every kind at every budget on the paper's split, under both adjacencies, and the floor."""
    private = [Job(kind=kind, adjacency=adjacency) for adjacency in ADJACENCIES for kind in PRIVATE]
    return [*private, Job(kind="floor", budgets=(0.0,))]


def folds() -> list[Job]:
    """Five folds in time."""
    return [
        Job(kind=kind, adjacency=adjacency, budgets=HEADLINE, num_seeds=3, fold=number)
        for adjacency, kinds in zip(ADJACENCIES, (COMPARED, COMPARED[:2]), strict=True)
        for number in range(5)
        for kind in kinds
    ]


def sensitivity() -> list[Job]:
    """Other shares of reporting vehicles, a horizon of 60 s, no horizon, training on simulated traffic alone."""
    base = [Job(kind=kind, num_seeds=3) for kind in COMPARED]
    shares = [replace(job, share=share, budgets=HEADLINE) for share in (0.1, 1.0) for job in base]
    long = [replace(job, horizon=300, budgets=LONG) for job in base]
    stationary = [Job(kind="individual", horizon=None, budgets=LONG, num_seeds=3)]
    simulated = [
        replace(job, spread=spread, on_us101=False, budgets=HEADLINE) for spread in (0.1, 0.2) for job in base[1:]
    ]
    return [*long, *stationary, *simulated, *shares]


def enlarged() -> list[Job]:
    """Training on US-101 and simulated traffic: the headline, a horizon of 60 s, no horizon."""
    longer = [job for job in sensitivity() if job.horizon != 100]
    return [_enlarged(job) for job in (*headline(), *longer)]


def guided() -> list[Job]:
    """Guided designs, and classical ones to compare with: the paper's split, a horizon of 60 s, the floor."""
    split = [
        Job(kind=kind, adjacency=adjacency, budgets=LONG, num_seeds=num_seeds)
        for adjacency, num_seeds in zip(ADJACENCIES, (5, 3), strict=True)
        for kind in COMPARED
    ]
    minute = [Job(kind=kind, horizon=300, budgets=(0.07,), num_seeds=2) for kind in ("classical", "individual")]
    private = [*split, *minute]
    references = [_as_in_headline(job) for job in private if job.kind == "classical"]
    # A classical design with a guided f shows what guidance alone is worth.
    followed = [
        Job(kind="classical", budgets=LONG, num_seeds=3),
        *(job for job in private if job.kind != "classical"),
    ]
    return [*references, *(replace(job, guided=True) for job in (*followed, Job(kind="floor", budgets=(0.0,))))]


def _as_in_headline(classical: Job) -> Job:
    features, dimension = CLASSICAL[classical.adjacency]
    return replace(classical, features=features, dimension=dimension)


def retested() -> list[Job]:
    """Jobs whose first seed is tested with more choices of reporting vehicles."""
    few = [job for job in headline() if job.kind in COMPARED]
    return [*few, *map(_enlarged, few)]


def guided_retested() -> list[Job]:
    """The same for guided designs and what they are compared with."""
    return [job for job in guided() if job.kind != "floor" and job.horizon == 100]


def _enlarged(job: Job) -> Job:
    return replace(job, spread=0.1)


def ablation() -> list[Job]:
    """Algorithm 2 as it is, and with one setting changed at a time."""
    changes: list[dict[str, Any]] = [{}, {"paired": False}, {"gae": 0.95}, {"spread": 0.5, "final_spread": 0.2}]
    changes.append({"joint_exploration": False})
    return [Job(kind="ppo", budgets=HEADLINE, num_seeds=3, ppo=change) for change in changes]


def quick() -> list[Job]:
    """One budget, one seed, every kind."""
    base = Job(kind="floor", budgets=(0.5,), num_seeds=1, features="ball", dimension=2)
    own = [replace(base, kind=kind) for kind in (*PRIVATE, "floor")]
    return [*own, *(replace(base, kind=kind, guided=True) for kind in COMPARED[1:])]


def stages(*, only_guided: bool = False) -> list[list[Job]]:
    """The full study, or its guided part: first the candidates, whose best features the other jobs use."""
    if only_guided:
        return [guided_candidates(), guided()]
    rest = [*headline(), *folds(), *sensitivity(), *enlarged(), *ablation(), *guided()]
    return [[*candidates(), *guided_candidates()], rest]
