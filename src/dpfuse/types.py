"""The two things a user brings: recorded `Trajectories`, and the `Guarantee` for the sensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfuse import _archive, _check
from dpfuse._arrays import Booleans, Floats32, Integers
from dpfuse._slots import assign_slots
from dpfuse.errors import FileRefused

Adjacency = Literal["replace-one", "remove-one"]
Accounting = Literal["total", "individual"]
ADJACENCIES: tuple[Adjacency, ...] = ("replace-one", "remove-one")
ACCOUNTINGS: tuple[Accounting, ...] = ("total", "individual")

NOBODY = -1
"""The sensor id of an empty slot."""

_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(order, budget)-Rényi differential privacy of everything released, for one sensor's whole trajectory.

    Attributes:
        order: the Rényi order alpha, above 1.
        budget: the budget B_G at that order.
        adjacency: how two neighbouring data sets differ. `replace-one`: in the whole trajectory of one sensor.
            `remove-one`: one of them lacks one sensor. There is no default, as the two are different guarantees.
        accounting: `total` charges each release for the worst possible sensor, to one budget for the stream;
            `individual` charges each sensor for what it adds, to a budget of its own.
    """

    order: float
    budget: float
    adjacency: Adjacency
    accounting: Accounting = "total"

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", _check.is_positive("order", self.order))
        if self.order <= 1:
            raise ValueError(f"order must be > 1, got {self.order!r}; 2 is a usual choice")
        remedy = "train with guarantee=None for the non-private floor"
        object.__setattr__(self, "budget", _check.is_positive("budget", self.budget, remedy))
        if self.budget / self.order > 2**20:
            raise ValueError(f"budget must be at most 2^20 * order, got {self.budget!r}; it would protect nobody")
        _check.is_one_of("adjacency", self.adjacency, ADJACENCIES)
        _check.is_one_of("accounting", self.accounting, ACCOUNTINGS)

    @property
    def squared_radius(self) -> Fraction:
        """2 B / alpha: the largest squared distance of two worlds over all releases, in noise standard deviations."""
        return 2 * Fraction(self.budget) / Fraction(self.order)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)


class Origin(NamedTuple):
    """Where a run was cut from: the number of its recording, and its first step there."""

    recording: int
    start: int


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Recorded runs of a system: its state, the measurements of its sensors, and which sensors were present.

    Attributes:
        state: the state that the estimator should recover, shape (N, K, n_x).
        measurements: shape (N, K, m, n_y). A sensor with a non-finite value counts as absent at that step.
        present: which slots hold a measurement, shape (N, K, m); by default all.
        sensors: the id of the sensor in each slot, shape (N, K, m), `NOBODY` (-1) for an empty slot; by default
            slot i holds sensor i throughout. A slot is storage only. Within a run an id keeps its slot. It may be
            absent for some steps, and cannot return once its slot was given to another id.
        interval_s: seconds between steps.
        origins: where each run was cut from; by default each run is a recording of its own. Runs of one
            recording are dependent, and confidence intervals take that into account.
    """

    state: Floats32
    measurements: Floats32
    present: Booleans = None  # type: ignore[assignment]  # filled in below
    sensors: Integers = None  # type: ignore[assignment]  # filled in below
    interval_s: float = 1.0
    origins: Sequence[Origin] = ()

    def __post_init__(self) -> None:
        state = _as_array("state", self.state, np.float32, "(N, K, n_x)", 3)
        measurements = _as_array("measurements", self.measurements, np.float32, "(N, K, m, n_y)", 4)
        num_runs, num_steps, num_slots, _ = measurements.shape
        if state.shape[:2] != (num_runs, num_steps):
            raise ValueError(
                f"state must have the (N, K) of measurements, {(num_runs, num_steps)}, got {state.shape[:2]}"
            )
        if not np.isfinite(state).all():
            raise ValueError("state must be finite everywhere; cut out the steps where it is unknown")
        shape = (num_runs, num_steps, num_slots)
        present = _or_default("present", self.present, np.bool_, True, shape)
        sensors = _or_default("sensors", self.sensors, np.int64, np.arange(num_slots), shape)
        if (sensors < NOBODY).any():
            raise ValueError(f"sensors must be ids of 0 or more, or {NOBODY} for an empty slot, got {sensors.min()}")
        if (present & (sensors == NOBODY)).any():
            raise ValueError(f"present must be False where sensors is {NOBODY}, an empty slot")
        present = present & np.isfinite(measurements).all(-1)
        origins = self.origins or [Origin(run, 0) for run in range(num_runs)]
        if len(origins) != num_runs:
            raise ValueError(f"origins must have one entry for each of the {num_runs} runs, got {len(origins)}")
        measurements = np.where(present[..., None], measurements, np.float32(0))
        for name, value in [
            ("state", state),
            ("measurements", measurements),
            ("present", present),
            ("sensors", sensors),
            ("interval_s", _check.is_positive("interval_s", self.interval_s)),
            ("origins", tuple(Origin(*origin) for origin in origins)),
        ]:
            object.__setattr__(self, name, value)
        self._check_slots()

    def _check_slots(self) -> None:
        begins_stay = self.begins_stay
        for run in range(self.num_runs):
            ids = self.sensors[run][begins_stay[run]]
            if len(np.unique(ids)) != len(ids):
                raise ValueError(
                    f"sensors must keep an id in one slot within a run, without another id in between, got two stays "
                    f"of one id in run {run}; give that sensor a slot of its own, as a new id would have a new budget"
                )

    @property
    def num_runs(self) -> int:
        return int(self.state.shape[0])

    @property
    def num_steps(self) -> int:
        return int(self.state.shape[1])

    @property
    def num_slots(self) -> int:
        return int(self.measurements.shape[2])

    @property
    def arrived(self) -> Booleans:
        """Where a slot holds another sensor than one step before, shape (N, K, m); nowhere at the first step."""
        changed = np.zeros(self.sensors.shape, bool)
        changed[:, 1:] = self.sensors[:, 1:] != self.sensors[:, :-1]
        return changed

    @property
    def begins_stay(self) -> Booleans:
        """Where a sensor is at its first step in its slot, shape (N, K, m): those that arrived, and all at step 0."""
        begins = self.arrived
        begins[:, 0] = True
        begins &= self.sensors != NOBODY
        return begins

    def split(
        self,
        fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
        by: Literal["time", "run"] = "time",
        gap: int = 0,
    ) -> tuple[Trajectories, Trajectories, Trajectories]:
        """Training, validation and test parts that share no step.

        Split recordings before windows are cut from them: overlapping windows would put test data into training.

        Args:
            fractions: the share of the steps (or runs) in each part, in this order.
            by: `time` cuts every run along its steps; `run` puts whole runs into a part, for independent runs.
            gap: steps (or runs) left out at each cut.
        """
        _check.is_one_of("by", by, ("time", "run"))
        _check.is_count("gap", gap, minimum=0)
        if len({origin.recording for origin in self.origins}) < self.num_runs:
            raise ValueError("split must come before windows are cut: windows of one recording would share steps")
        if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-9:
            raise ValueError(f"fractions must be three positive numbers that add up to 1, got {fractions!r}")
        total = self.num_steps if by == "time" else self.num_runs
        first, second = round(fractions[0] * total), round((fractions[0] + fractions[1]) * total)
        bounds = [(0, first), (first + gap, second), (second + gap, total)]
        if any(stop - start < 1 for start, stop in bounds):
            raise ValueError(f"split needs steps (or runs) for three parts, got {total} by {by!r}; use more data")
        if by == "time":
            parts = [self.between(start, stop) for start, stop in bounds]
        else:
            parts = [self.runs(np.arange(start, stop)) for start, stop in bounds]
        return parts[0], parts[1], parts[2]

    def between(self, start: int, stop: int) -> Trajectories:
        """Steps `start` to `stop` - 1 of every run."""
        origins = [Origin(recording, first + start) for recording, first in self.origins]
        return self._at((slice(None), slice(start, stop)), origins)

    def runs(self, indices: ArrayLike) -> Trajectories:
        """The runs with these numbers, in this order."""
        chosen = np.asarray(indices)
        return self._at(chosen, [self.origins[int(run)] for run in chosen])

    def windows(self, horizon: int, stride: int | None = None) -> Trajectories:
        """All windows of `horizon` steps, starting `stride` steps apart (by default `horizon`)."""
        _check.is_count("horizon", horizon)
        if horizon > self.num_steps:
            raise ValueError(f"horizon must be at most the {self.num_steps} recorded steps, got {horizon}")
        starts = np.arange(
            0, self.num_steps - horizon + 1, _check.is_count("stride", horizon if stride is None else stride)
        )
        run, start = (index.ravel() for index in np.meshgrid(np.arange(self.num_runs), starts, indexing="ij"))
        pairs = zip(run.tolist(), start.tolist(), strict=True)
        origins = [Origin(self.origins[r].recording, self.origins[r].start + s) for r, s in pairs]
        return self._at((run[:, None], start[:, None] + np.arange(horizon)), origins)

    def _at(self, index: Any, origins: Sequence[Origin]) -> Trajectories:
        """The runs and steps at an index of the first two axes."""
        arrays = {name: getattr(self, name)[index] for name in ("state", "measurements", "present", "sensors")}
        return replace(self, **arrays, origins=origins)

    def sample_sensors(self, share: float, seed: int) -> Trajectories:
        """A random share of the sensors, each kept or dropped for a whole recording, in as few slots as hold them."""
        _check.is_share("share", share)
        rng = np.random.default_rng(seed)
        sensors = self.sensors.copy()
        recording = np.array([origin.recording for origin in self.origins])
        for number in np.unique(recording):
            own = sensors[recording == number]
            ids = np.unique(own)
            dropped = ids[rng.random(len(ids)) >= share]
            sensors[recording == number] = np.where(np.isin(own, dropped), NOBODY, own)
        return replace(self, sensors=sensors, present=self.present & (sensors != NOBODY)).compact()

    def compact(self) -> Trajectories:
        """The same runs in as few slots as hold them."""
        layouts = [_assign_slots(self.sensors[run]) for run in range(self.num_runs)]
        num_slots = max(1, max(slots.max(initial=-1) + 1 for slots in layouts))
        measurements = np.zeros((*self.state.shape[:2], num_slots, self.measurements.shape[-1]), np.float32)
        present = np.zeros(measurements.shape[:3], bool)
        sensors = np.full(measurements.shape[:3], NOBODY)
        for run, slots in enumerate(layouts):
            step, old = np.nonzero(slots >= 0)
            new = slots[step, old]
            measurements[run, step, new] = self.measurements[run, step, old]
            present[run, step, new] = self.present[run, step, old]
            sensors[run, step, new] = self.sensors[run, step, old]
        return replace(self, measurements=measurements, present=present, sensors=sensors)

    @classmethod
    def join(cls, parts: Sequence[Trajectories]) -> Trajectories:
        """The runs of all parts, in order; recordings of equal number in `origins` count as one recording."""
        if not parts:
            raise ValueError("parts must have at least one entry")
        kinds = {(part.num_steps, part.state.shape[-1], part.measurements.shape[-1], part.interval_s) for part in parts}
        if len(kinds) > 1:
            raise ValueError(f"parts must agree in steps, states, channels and interval, got {sorted(kinds)}")
        num_slots = max(part.num_slots for part in parts)

        def pad(array: NDArray[Any], value: Any) -> NDArray[Any]:
            widths = [(0, num_slots - array.shape[2] if axis == 2 else 0) for axis in range(array.ndim)]
            return np.pad(array, widths, constant_values=value)

        return cls(
            state=np.concatenate([part.state for part in parts]),
            measurements=np.concatenate([pad(part.measurements, 0) for part in parts]),
            present=np.concatenate([pad(part.present, False) for part in parts]),
            sensors=np.concatenate([pad(part.sensors, NOBODY) for part in parts]),
            interval_s=parts[0].interval_s,
            origins=[origin for part in parts for origin in part.origins],
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to one file, without pickle."""
        _archive.write(
            path,
            {"kind": "trajectories", "version": _VERSION, "interval_s": self.interval_s},
            {
                "state": self.state,
                "measurements": self.measurements,
                "present": self.present,
                "sensors": self.sensors,
                "origins": np.asarray(self.origins, np.int64),
            },
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trajectories:
        """The recording in a file that `save` wrote."""
        metadata, arrays = _archive.read(path, "trajectories")
        if metadata.get("version") != _VERSION:
            raise FileRefused(
                f"{path} has trajectories version {metadata.get('version')!r}, this is {_VERSION}; save it again"
            )
        try:
            origins = [Origin(int(recording), int(start)) for recording, start in arrays.pop("origins")]
            return cls(**arrays, interval_s=metadata["interval_s"], origins=origins)
        except (KeyError, TypeError, ValueError) as error:
            raise FileRefused(f"{path} is not a recording that this version can read: {error!r}") from error


def _as_array(name: str, value: Any, dtype: Any, axes: str, ndim: int) -> NDArray[Any]:
    try:
        # 1e308 becomes inf in float32, and inf counts as absent.
        with np.errstate(over="ignore"):
            array = np.asarray(value, dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of {np.dtype(dtype).name}, shape {axes}") from error
    if array.ndim != ndim or 0 in array.shape:
        raise ValueError(f"{name} must have shape {axes}, none of them 0, got {array.shape}")
    return array


def _or_default(name: str, value: Any, dtype: Any, default: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    if value is None:
        return np.broadcast_to(np.asarray(default, dtype), shape)
    array = _as_array(name, value, dtype, "(N, K, m)", 3)
    if array.shape != shape:
        raise ValueError(f"{name} must have the (N, K, m) of measurements, {shape}, got {array.shape}")
    return array


def _assign_slots(sensors: Integers) -> Integers:
    """The lowest free slot for each stay of a sensor, shape (K, m), -1 where the slot is empty."""
    arrived = np.ones(sensors.shape, bool)
    arrived[1:] = sensors[1:] != sensors[:-1]
    stays = []
    for slot in range(sensors.shape[1]):
        bounds = np.append(np.nonzero(arrived[:, slot])[0], len(sensors))
        stays += [(a, b, slot) for a, b in zip(bounds, bounds[1:], strict=False) if sensors[a, slot] != NOBODY]
    stays.sort()
    starts, stops, _ = np.array(stays, np.int64).reshape(-1, 3).T
    slots = np.full(sensors.shape, -1)
    for (start, stop, slot), new in zip(stays, assign_slots(starts, stops - starts), strict=True):
        slots[start:stop, slot] = new
    return slots
