"""Recorded `Trajectories`: what a user brings of a system."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfuse import _archive, _check
from dpfuse._arrays import Booleans, Floats32, Integers
from dpfuse._labels import Labels
from dpfuse._slots import pack_stays
from dpfuse._split import usual_split
from dpfuse.attributes import SensorAttributes
from dpfuse.errors import FileRefused
from dpfuse.public_inputs import hold, join_inputs

NOBODY = -1
"""The sensor id of an empty slot."""

_VERSION = 3


class Origin(NamedTuple):
    """Where a run was cut from: the number of its recording, and its first step there."""

    recording: int
    start: int


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Recorded runs of a system: its state, the measurements of its sensors, and which sensors were present.

    Attributes:
        state: the state that the estimator should recover, shape (N, K, n_x).
        measurements: shape (N, K, m, n_y). A channel that is not finite is missing and becomes NaN. A sensor without
            any channel is absent at that step.
        present: which slots hold a measurement, shape (N, K, m); by default all.
        sensors: the id of the sensor in each slot, shape (N, K, m), `NOBODY` (-1) for an empty slot; by default
            slot i holds sensor i throughout. A slot is storage only. Within a run an id keeps its slot. It may be
            absent for some steps, and cannot return once its slot was given to another id.
        interval_s: seconds between steps.
        origins: where each run was cut from; by default each run is a recording of its own. Runs of one
            recording are dependent, and confidence intervals take that into account.
        labels: names of columns, sensors and runs of the table that the recording was read from.
        attributes: fixed public numbers of each sensor, which its f reads: a `SensorAttributes`, or a mapping from ids
            to numbers, with an entry for every id.
        public: what everybody may know at each step, shape (N, K, n_p), such as a detector's count; g and E read it.
            What comes during a step is of the next one. NaN where nothing is new: the last value then holds.
        public_age: the age of each public input in steps, `dpfuse.public_inputs.NEVER` before the first; by default 0
            where `public` is finite.
    """

    state: Floats32
    measurements: Floats32
    present: Booleans = None  # type: ignore[assignment]  # filled in below
    sensors: Integers = None  # type: ignore[assignment]  # filled in below
    interval_s: float = 1.0
    origins: Sequence[Origin] = ()
    labels: Labels | None = None
    attributes: SensorAttributes | None = None
    public: Floats32 | None = None
    public_age: Integers | None = None

    def __post_init__(self) -> None:
        state = _check.as_array("state", self.state, np.float32, "(N, K, n_x)", 3)
        measurements = _check.as_array("measurements", self.measurements, np.float32, "(N, K, m, n_y)", 4)
        num_runs, num_steps, num_slots, _ = measurements.shape
        if state.shape[:2] != (num_runs, num_steps):
            raise ValueError(
                f"state must have the (N, K) of measurements, {(num_runs, num_steps)}, got {state.shape[:2]}"
            )
        if not np.isfinite(state).all():
            raise ValueError("state must be finite everywhere; cut out the steps where it is unknown")
        shape = (num_runs, num_steps, num_slots)
        present = _check.or_default("present", self.present, np.bool_, True, shape)
        sensors = _check.or_default("sensors", self.sensors, np.int64, np.arange(num_slots), shape)
        if (sensors < NOBODY).any():
            raise ValueError(f"sensors must be ids of 0 or more, or {NOBODY} for an empty slot, got {sensors.min()}")
        if (present & (sensors == NOBODY)).any():
            raise ValueError(f"present must be False where sensors is {NOBODY}, an empty slot")
        is_known = np.isfinite(measurements)
        present = present & is_known.any(-1)
        origins = self.origins or [Origin(run, 0) for run in range(num_runs)]
        if len(origins) != num_runs:
            raise ValueError(f"origins must have one entry for each of the {num_runs} runs, got {len(origins)}")
        if not is_known.all():
            measurements = np.where(is_known, measurements, np.float32(np.nan))
        measurements = np.where(present[..., None], measurements, np.float32(0))
        for name, value in [
            ("state", state),
            ("measurements", measurements),
            ("present", present),
            ("sensors", sensors),
            ("interval_s", _check.is_positive("interval_s", self.interval_s)),
            ("origins", tuple(Origin(*origin) for origin in origins)),
            ("attributes", None if self.attributes is None else SensorAttributes.of(self.attributes)),
        ]:
            object.__setattr__(self, name, value)
        if self.public is not None and self.public_age is None:
            public = _check.as_array("public", self.public, np.float32, "(N, K, n_p)", 3)
            if public.shape[:2] != state.shape[:2] or not public.shape[2]:
                raise ValueError(f"public must have shape (N, K, n_p) with the (N, K) of state, got {public.shape}")
            for name, value in zip(("public", "public_age"), hold(public), strict=True):
                object.__setattr__(self, name, value)
        self._check_slots()
        if self.attributes is not None and np.isnan(self.attributes.look_up(np.unique(sensors))).any():
            raise ValueError("attributes must have an entry for every id in sensors; a sensor without one has no f")

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
    def num_partial(self) -> int:
        """How many reports lack some of their channels."""
        return int(np.isnan(self.measurements).any(-1).sum())

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
        by: Literal["time", "run"] | None = None,
        gap: int = 0,
    ) -> tuple[Trajectories, Trajectories, Trajectories]:
        """Training, validation and test parts that share no step.

        Split recordings before windows are cut from them: overlapping windows would put test data into training.

        Args:
            fractions: the share of the steps (or runs) in each part, in this order.
            by: `time` cuts every run along its steps; `run` puts whole runs into a part, for independent runs. By
                default `run` where runs are many and short: at least 30, and more than a quarter of their steps.
            gap: steps (or runs) left out at each cut.
        """
        by = usual_split(self.num_runs, self.num_steps) if by is None else by
        _check.is_one_of("by", by, ("time", "run"))
        _check.is_count("gap", gap, minimum=0)
        if self._shares_steps:
            raise ValueError("split must come before windows are cut: windows of one recording would share steps")
        if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-9:
            raise ValueError(f"fractions must be three positive numbers that add up to 1, got {fractions!r}")
        total = self.num_steps if by == "time" else self.num_runs
        first, second = round(fractions[0] * total), round((fractions[0] + fractions[1]) * total)
        bounds = [(0, first), (first + gap, second), (second + gap, total)]
        if any(stop - start < 1 for start, stop in bounds):
            raise ValueError(f"split needs steps (or runs) for three parts, got {total} by {by!r}; use more data")
        parts = [self.between(*each) if by == "time" else self.runs(np.arange(*each)) for each in bounds]
        return parts[0], parts[1], parts[2]

    @property
    def _shares_steps(self) -> bool:
        """Whether two runs hold the same step of a recording."""
        places = sorted(self.origins)
        pairs = zip(places, places[1:], strict=False)
        return any(a.recording == b.recording and b.start - a.start < self.num_steps for a, b in pairs)

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
        names = ["state", "measurements", "present", "sensors"]
        names += [] if self.public is None else ["public", "public_age"]
        arrays = {name: getattr(self, name)[index] for name in names}
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

    def drop_channels(self, share: float, seed: int) -> Trajectories:
        """The same recording, each channel of each report missing with probability `share`.

        A design that is trained on it reads reports that lack channels. A report that loses all is absent.
        """
        _check.is_share("share", share)
        is_lost = np.random.default_rng(seed).random(self.measurements.shape, np.float32) < share
        return replace(self, measurements=np.where(is_lost, np.float32(np.nan), self.measurements))

    def compact(self) -> Trajectories:
        """The same runs in as few slots as hold them."""
        layouts = [pack_stays(self.sensors[run]) for run in range(self.num_runs)]
        num_slots = max(1, max(slots.max(initial=-1) + 1 for slots in layouts))
        shape, num_channels = (*self.state.shape[:2], num_slots), self.measurements.shape[-1]
        made: dict[str, Any] = {"present": np.zeros(shape, bool), "sensors": np.full(shape, NOBODY)}
        made["measurements"] = np.zeros((*shape, num_channels), np.float32)
        for run, slots in enumerate(layouts):
            step, old = np.nonzero(slots >= 0)
            for name, array in made.items():
                array[run, step, slots[step, old]] = getattr(self, name)[run, step, old]
        return replace(self, **made)

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
            **join_inputs([(part.public, part.public_age) for part in parts]),
            attributes=SensorAttributes.merge_all([part.attributes for part in parts]),
            labels=parts[0].labels if all(part.labels == parts[0].labels for part in parts) else None,
        )

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        time: str,
        sensor: str,
        values: str | Sequence[str],
        state: str | Sequence[str],
        run: str | None = None,
        states: Any = None,
        region: Mapping[str, tuple[float, float]] | None = None,
        interval_s: float | None = None,
        resample: Literal["last", "mean"] | None = None,
        steps: int | None = None,
        public: str | Sequence[str] = (),
        quiet: bool = False,
    ) -> Trajectories:
        """The recording in a long table with one row for each report: pandas, polars or pyarrow. Prints a summary.

        Needs the extra `data`. Rows may be in any order. Of rows with the same run, sensor and time the first counts.
        Ids that are not whole numbers of 0 or more are numbered; `labels.sensor_names` holds the id of each number.

        Args:
            table: the reports.
            time: the column of times: seconds, or dates with a time.
            sensor: the column of ids, of any type.
            values: the columns of measurements.
            state: the columns of the state, equal in all rows of one time, or aggregates over the sensors of a step:
                `count:COLUMN`, `mean:COLUMN`, `sum:COLUMN`.
            run: the column that names the run of a row; by default all rows are one run.
            states: another table with the columns of time, run and state, one row for each time.
            region: bounds of columns, such as `{"position": (0, 400)}`; aggregates are over the sensors inside.
            interval_s: seconds between steps; by default the smallest difference of two times in a run.
            resample: what to take of several rows of a sensor in one step, for times that do not lie on steps; by
                default such a time is refused.
            steps: length of the runs that are made; by default the one that keeps the most steps where each unbroken
                part of a run gives one. A step of unknown state breaks a run.
            public: the columns of public inputs, equal in all rows of one time and in the same table as the state;
                empty (null, NaN) where nothing new was published. A value counts from the step after its time on, as
                in a live centre. `to_table` gives them back.
            quiet: print no summary.
        """
        from dpfuse.data.table import read_table

        made, summary = read_table(
            table,
            time=time,
            sensor=sensor,
            values=values,
            state=state,
            run=run,
            states=states,
            region=region,
            interval_s=interval_s,
            resample=resample,
            steps=steps,
            public=public,
        )
        if not quiet:
            print(summary.to_text())
        return made

    def to_table(
        self,
        kind: Literal["reports", "states"] = "reports",
        backend: Literal["pyarrow", "pandas", "polars"] = "pyarrow",
    ) -> Any:
        """A long table with one row for each report and the state beside it, or one row for each step (`states`)."""
        from dpfuse.data._to_table import to_table

        return to_table(self, kind, backend)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to one file, without pickle."""
        own = self.attributes
        _archive.write(
            path,
            {
                "kind": "trajectories",
                "version": _VERSION,
                "interval_s": self.interval_s,
                "labels": self.labels and self.labels.to_dict(),
            },
            {
                "state": self.state,
                "measurements": self.measurements,
                "present": self.present,
                "sensors": self.sensors,
                "origins": np.asarray(self.origins, np.int64),
            }
            | ({} if own is None else {"attribute_ids": own.ids, "attribute_values": own.values})
            | ({} if self.public is None else {"public": self.public, "public_age": np.asarray(self.public_age)}),
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
            table = arrays.pop("origins")
            if table.shape != (len(arrays["state"]), 2):
                raise ValueError(f"origins must have a row of two numbers for each run, got shape {table.shape}")
            origins = [Origin(int(recording), int(start)) for recording, start in table]
            labels = metadata["labels"] and Labels.from_dict(metadata["labels"])
            ids = arrays.pop("attribute_ids", None)
            own = None if ids is None else SensorAttributes(ids, arrays.pop("attribute_values"))
            interval_s = metadata["interval_s"]
            return cls(**arrays, interval_s=interval_s, origins=origins, labels=labels, attributes=own)
        except (KeyError, TypeError, ValueError) as error:
            raise FileRefused(f"{path} is not a recording that this version can read: {error!r}") from error
