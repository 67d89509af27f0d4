"""What the case study trains, in pieces: each is one method with all its budgets and seeds, trained at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dpfuse import Architecture, Guarantee

Kind = Literal["classical", "schedule", "ppo", "pathwise", "individual", "floor"]

WHO_REPORTS = "who-reports"  # the folder of what came of testing again
ORDER = 2.0
BUDGETS = (0.07, 0.15, 0.3, 0.5, 1.0, 1.5, 3.0, 5.0)
HEADLINE = (0.15, 0.5, 1.5)
LONG = (0.07, 0.15, 0.5, 1.5)
PRIVATE: tuple[Kind, ...] = ("classical", "schedule", "ppo", "pathwise", "individual")
COMPARED: tuple[Kind, ...] = ("classical", "pathwise", "individual")
ADJACENCIES = ("remove-one", "replace-one")
SPENDING: Mapping[Kind, Any] = {"classical": "constant", "floor": "constant", "schedule": "schedule"}
# What f may give under each adjacency and accounting: the set of features and d. The best is chosen on validation.
CANDIDATES: Mapping[tuple[str, str], tuple[tuple[str, int], ...]] = {
    ("remove-one", "total"): (("ball", 1), ("ball", 2), ("ball", 3)),
    ("remove-one", "individual"): (("ball", 1), ("ball", 2), ("ball", 3)),
    ("replace-one", "total"): (("box", 1), ("box", 2)),
    ("replace-one", "individual"): (("box", 1), ("orthant", 2), ("orthant", 3)),
}
# What was chosen for the classical designs of the headline; those beside guided designs have it from here.
CLASSICAL = {"remove-one": ("ball", 2), "replace-one": ("box", 1)}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Designs that differ in budget and seed alone.

    Attributes:
        kind: how they spend and who is charged; `floor` promises nothing.
        features, dimension: of f; None for what was chosen on validation.
        guided: whether f follows what was released; else it reads a vehicle's own reports alone, as in the paper.
        horizon: None for a stationary design.
        fold: number of the time fold, or None for the paper's split.
        spread: of the drivers and bottlenecks of the simulated freeways that they are trained on; None for none.
        on_us101: whether they are trained and chosen on US-101, which always tests; else on simulated freeways alone.
        ppo: settings of PPO other than the usual ones.
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
        """Whether simulated traffic comes on top of US-101."""
        return self.on_us101 and self.spread is not None

    @property
    def label(self) -> str:
        """What the piece is called in a table."""
        return f"{self.kind}, guided" if self.guided else self.kind

    @property
    def name(self) -> str:
        """Unlike any other piece's, and a file name."""
        parts = [self.kind, self.adjacency if self.kind != "floor" else "no-promise"]
        if self.features is not None:
            parts.append(f"{self.features}{self.dimension}")
        parts += ["guided"] if self.guided else []
        parts.append(f"K{self.horizon or 'stationary'}")
        parts.append(f"share{round(100 * self.share)}")
        parts += [] if self.fold is None else [f"fold{self.fold}"]
        parts += ["both"] if self.is_enlarged else []
        parts += [] if self.spread is None else [f"freeway{round(100 * self.spread)}"]
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


def path_of(piece: Piece, folder: Path) -> Path:
    """Where a piece's results are."""
    return folder / "pieces" / f"{piece.name}.json"


def candidates() -> list[Piece]:
    """Few designs for each set of features, to choose from by validation error; with simulated traffic too."""
    on_us101 = [_candidate(*kind, *chosen) for kind, sets in CANDIDATES.items() for chosen in sets]
    return [*on_us101, *map(_enlarged, on_us101)]


def guided_candidates() -> list[Piece]:
    """The same for features that follow the releases."""
    return [replace(p, guided=True, budgets=(0.15, 1.5), num_seeds=1) for p in candidates() if not p.is_enlarged]


def _candidate(adjacency: str, accounting: str, features: str, dimension: int) -> Piece:
    kind: Kind = "pathwise" if accounting == "total" else "individual"
    return Piece(kind=kind, adjacency=adjacency, budgets=HEADLINE, num_seeds=3, features=features, dimension=dimension)


def headline() -> list[Piece]:
    """Every kind at every budget on the paper's split, under both adjacencies, and the floor."""
    private = [Piece(kind=kind, adjacency=adjacency) for adjacency in ADJACENCIES for kind in PRIVATE]
    return [*private, Piece(kind="floor", budgets=(0.0,))]


def folds() -> list[Piece]:
    """The whole recording, a fifth at a time."""
    return [
        Piece(kind=kind, adjacency=adjacency, budgets=HEADLINE, num_seeds=3, fold=number)
        for adjacency, kinds in zip(ADJACENCIES, (COMPARED, COMPARED[:2]), strict=True)
        for number in range(5)
        for kind in kinds
    ]


def sensitivity() -> list[Piece]:
    """Shares of reporting vehicles, a 60 s horizon, no horizon, training on simulated traffic."""
    base = [Piece(kind=kind, num_seeds=3) for kind in COMPARED]
    shares = [replace(piece, share=share, budgets=HEADLINE) for share in (0.1, 1.0) for piece in base]
    long = [replace(piece, horizon=300, budgets=LONG) for piece in base]
    stationary = [Piece(kind="individual", horizon=None, budgets=LONG, num_seeds=3)]
    simulated = [
        replace(piece, spread=spread, on_us101=False, budgets=HEADLINE) for spread in (0.1, 0.2) for piece in base[1:]
    ]
    return [*long, *stationary, *simulated, *shares]


def enlarged() -> list[Piece]:
    """Training on US-101 and as many hours of simulated traffic: the headline, a minute, and no end."""
    longer = [piece for piece in sensitivity() if piece.horizon != 100]
    return [_enlarged(piece) for piece in (*headline(), *longer)]


def guided() -> list[Piece]:
    """Features that follow the releases, beside classical designs: the paper's split, a minute, the floor."""
    split = [
        Piece(kind=kind, adjacency=adjacency, budgets=LONG, num_seeds=num_seeds)
        for adjacency, num_seeds in zip(ADJACENCIES, (5, 3), strict=True)
        for kind in COMPARED
    ]
    minute = [Piece(kind=kind, horizon=300, budgets=(0.07,), num_seeds=2) for kind in ("classical", "individual")]
    private = [*split, *minute]
    references = [_as_in_headline(piece) for piece in private if piece.kind == "classical"]
    # How much is guidance alone: a classical design that has it.
    followed = [
        Piece(kind="classical", budgets=LONG, num_seeds=3),
        *(piece for piece in private if piece.kind != "classical"),
    ]
    return [*references, *(replace(piece, guided=True) for piece in (*followed, Piece(kind="floor", budgets=(0.0,))))]


def _as_in_headline(classical: Piece) -> Piece:
    features, dimension = CLASSICAL[classical.adjacency]
    return replace(classical, features=features, dimension=dimension)


def retested() -> list[Piece]:
    """Whose first seed is tested on more choices of reporting vehicles, with simulated traffic and without."""
    few = [piece for piece in headline() if piece.kind in COMPARED]
    return [*few, *map(_enlarged, few)]


def guided_retested() -> list[Piece]:
    """The same for features that follow the releases, and what they are compared with."""
    return [piece for piece in guided() if piece.kind != "floor" and piece.horizon == 100]


def _enlarged(piece: Piece) -> Piece:
    return replace(piece, spread=0.1)


def ablation() -> list[Piece]:
    """Algorithm 2 as it is, and with one choice made otherwise at a time."""
    changes: list[dict[str, Any]] = [{}, {"paired": False}, {"gae": 0.95}, {"spread": 0.5, "final_spread": 0.2}]
    changes.append({"joint_exploration": False})
    return [Piece(kind="ppo", budgets=HEADLINE, num_seeds=3, ppo=change) for change in changes]


def quick() -> list[Piece]:
    """One budget, one seed, every kind."""
    base = Piece(kind="floor", budgets=(0.5,), num_seeds=1, features="ball", dimension=2)
    own = [replace(base, kind=kind) for kind in (*PRIVATE, "floor")]
    return [*own, *(replace(base, kind=kind, guided=True) for kind in COMPARED[1:])]
