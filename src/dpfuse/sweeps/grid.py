"""The grid of a sweep: settings with lists become single ones, and designs that can share a program form groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfuse import _check
from dpfuse.guarantee import Guarantee
from dpfuse.sweeps.fingerprints import fingerprint_case, fingerprint_parts
from dpfuse.training.settings import PPO, Architecture, Optimisation
from dpfuse.training.train import TrainingOptions
from dpfuse.trajectories import Trajectories

if TYPE_CHECKING:
    from dpfuse.policy.design import Design

_ARCHITECTURE = {field.name for field in fields(Architecture)}
_OPTIMISATION = {field.name for field in fields(Optimisation)}
_TRAIN = set(TrainingOptions.__annotations__) - {"progress"}
_GRID = {"guarantees", "seeds", "recordings", "evaluation"}


OwnTest = Callable[["Design", Trajectories], Mapping[str, Any]]
"""More columns about a design, by name; it gets the part of its recording that the design is tested on."""


class RecordingParts(NamedTuple):
    """The parts of a recording, which share no step."""

    training: Trajectories
    validation: Trajectories
    test: Trajectories


Recording = (
    Trajectories
    | tuple[Trajectories, Trajectories, Trajectories]
    | str
    | os.PathLike[str]
    | Callable[[], tuple[Trajectories, Trajectories, Trajectories]]
)
"""What a sweep takes as a recording: one to split 80/10/10 along time, or the file of one; its three parts; or a
function that makes them."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How some designs of a sweep are trained.

    Attributes:
        name: of the setting, with what was chosen from its lists.
        base: its name without that.
        choices: what was chosen from lists, by name.
        options: arguments of `dpfuse.train`; `evaluation`: arguments of `dpfuse.evaluate`.
        guarantees, seeds, recordings: what replaces those of the sweep; None for those of the sweep.
    """

    name: str
    base: str
    choices: Mapping[str, Any]
    options: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    guarantees: Sequence[Guarantee | None] | None = None
    seeds: Sequence[int] | None = None
    recordings: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One design of a sweep; `fingerprint` is of everything that decides it."""

    recording: str
    setting: Setting
    guarantee: Guarantee | None
    seed: int
    fingerprint: str = field(repr=False)

    @property
    def label(self) -> str:
        """Words that name the design among those of its sweep."""
        kind = self.guarantee
        words = "no guarantee"
        if kind is not None:
            period = "" if kind.period is None else f" per {period_in_words(kind)}"
            words = f"budget {kind.budget:g}{period} {kind.adjacency} {kind.accounting}"
        return f"{self.recording}, {self.setting.name}, {words}, seed {self.seed}"

    @property
    def program(self) -> tuple[Any, ...]:
        """Designs with an equal one can be trained side by side."""
        kind = self.guarantee and (self.guarantee.adjacency, self.guarantee.accounting, self.guarantee.period)
        return self.recording, self.setting.name, kind


def period_in_words(guarantee: Guarantee | None) -> str | None:
    """The period as one column of a table holds it: `day`, `hour`, or a number with its unit; None without periods."""
    period = None if guarantee is None else guarantee.period
    if not isinstance(period, float):
        return period
    return f"{int(period) if period.is_integer() else repr(period)} s"  # all digits: two periods are two rows


def expand_settings(
    given: Mapping[str, Mapping[str, Any]], evaluation: Mapping[str, Any] | None = None
) -> list[Setting]:
    """Single settings: every combination of the values in lists. `evaluation` is that of all settings."""
    expanded = []
    for base, values in given.items():
        lists = {name: value for name, value in values.items() if isinstance(value, list) and name not in _GRID}
        if empty := [name for name, value in lists.items() if not value]:
            raise ValueError(f"{empty[0]} of settings {base!r} must have at least one value, got an empty list")
        for chosen in product(*lists.values()):
            choices = dict(zip(lists, chosen, strict=True))
            words = (f"{name} {_in_words(value, lists[name])}" for name, value in choices.items())
            flat = {**values, **choices}
            grid = {name: flat.pop(name) for name in _GRID & set(flat)}
            grid["evaluation"] = {**(evaluation or {}), **grid.get("evaluation", {})}
            options = make_options(base, flat)
            expanded.append(
                Setting(name=", ".join([base, *words]), base=base, choices=choices, options=options, **grid)
            )
    return expanded


def _in_words(value: Any, among: list[Any]) -> str:
    return (
        f"{value:g}" if isinstance(value, float) else str(value) if _is_plain(value) else f"#{among.index(value) + 1}"
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int)


def make_options(name: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `dpfuse.train`, from its own names and those of the fields of `Architecture` and `Optimisation`."""
    if unknown := set(flat) - _TRAIN - _ARCHITECTURE - _OPTIMISATION:
        known = ", ".join(sorted(_TRAIN | _ARCHITECTURE | _OPTIMISATION | _GRID))
        raise ValueError(f"settings {name!r} must have names among {known}; got {sorted(unknown)[0]!r}")
    options = {key: value for key, value in flat.items() if key in _TRAIN}
    for key, kind, names in (
        ("architecture", Architecture, _ARCHITECTURE),
        ("optimisation", Optimisation, _OPTIMISATION),
    ):
        changed = {field: value for field, value in flat.items() if field in names}
        options[key] = replace(_made(name, key, kind, options.get(key, {})), **changed)
    if "ppo" in options:
        options["ppo"] = _made(name, "ppo", PPO, options["ppo"])
    return options


def _made(name: str, key: str, kind: type[Any], value: Any) -> Any:
    """The settings object; a mapping becomes one."""
    if isinstance(value, kind):
        return value
    known = {field.name for field in fields(kind)}
    if not isinstance(value, Mapping) or not set(value) <= known:
        raise ValueError(f"{key} of settings {name!r} must be a {kind.__name__} or have its fields, got {value!r}")
    return kind(**value)


def resolve_recordings(given: Recording | Mapping[str, Recording]) -> dict[str, Recording]:
    """Recordings by name; a single one is named after its file, or `recording`."""
    if isinstance(given, Mapping):
        if not given:
            raise ValueError("recordings must have at least one entry, got none")
        return dict(given)
    name = os.path.basename(os.fspath(given)).partition(".")[0] if isinstance(given, str | os.PathLike) else "recording"
    return {name: given}


def load_parts(given: Recording) -> RecordingParts:
    """The three parts of a recording."""
    if callable(given):
        given = given()
    if isinstance(given, str | os.PathLike):
        given = Trajectories.load(given)
    if isinstance(given, Trajectories):
        given = given.split()
    if not isinstance(given, tuple) or len(given) != 3 or not all(isinstance(part, Trajectories) for part in given):
        raise TypeError("a recording must be Trajectories, a path, or three of them: training, validation and test")
    return RecordingParts(*given)


def make_cases(
    recording: str,
    parts: RecordingParts,
    settings: Iterable[Setting],
    guarantees: Sequence[Guarantee | None],
    seeds: Sequence[int],
    test: OwnTest | None,
) -> list[Case]:
    """Every design on one recording, each once."""
    data = fingerprint_parts(parts)
    cases: dict[str, Case] = {}
    for setting in settings:
        if setting.recordings is not None and recording not in setting.recordings:
            continue
        own_guarantees = guarantees if setting.guarantees is None else setting.guarantees
        own_seeds = seeds if setting.seeds is None else setting.seeds
        for guarantee, seed in product(dict.fromkeys(own_guarantees), dict.fromkeys(own_seeds)):
            _check.is_count("seeds", seed, minimum=0)
            kept = fingerprint_case(data, guarantee, seed, setting.options, setting.evaluation, test)
            named = f"{setting.name}\0{kept}"
            cases[named] = Case(
                recording=recording, setting=setting, guarantee=guarantee, seed=int(seed), fingerprint=kept
            )
    return list(cases.values())


def make_groups(cases: Sequence[Case], largest: int | None) -> list[list[Case]]:
    """Cases that are trained side by side, at most `largest` at once, in groups of nearly equal size."""
    by_program: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        by_program.setdefault(case.program, []).append(case)
    groups = []
    for several in by_program.values():
        count = 1 if largest is None else -(-len(several) // largest)
        cuts = [len(several) * number // count for number in range(count + 1)]
        groups += [several[start:stop] for start, stop in zip(cuts, cuts[1:], strict=False)]
    return groups
