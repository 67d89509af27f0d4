"""The traffic that a replay sends: the built-in freeway without end, or a recording that repeats."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse import _check
from dpfuse._arrays import Booleans, Floats32, Integers
from dpfuse.data import us101
from dpfuse.systems import freeway
from dpfuse.trajectories import Trajectories

_FREEWAY_INTERVAL_S = 0.2


class Scene(NamedTuple):
    """One time step of the data.

    Attributes:
        state: the true state, shape (n_x,).
        sensors: ids of the sensors that report, shape (m,).
        measurements: shape (m, n_y).
        inputs: the public inputs that hold, NaN for one that was never published, and their ages in steps, each of
            shape (n_p,); None without any.
    """

    state: NDArray[Any]
    sensors: Integers
    measurements: NDArray[Any]
    inputs: tuple[Floats32, Integers] | None = None


class SceneSequence(NamedTuple):
    """Scenes in the order of time, `interval_s` seconds from one to the next."""

    scenes: Iterator[Scene]
    interval_s: float


def make_scenes(
    data: Path | None,
    share: float,
    seed: int,
    first_id: int,
    tell: Callable[[str], object] = lambda _: None,
    num_lanes: int = 1,
) -> SceneSequence:
    """Scenes without end, in which a share of the vehicles reports.

    Args:
        data: a recording, or a folder with the files of US-101; None for the built-in freeway.
        share: share of the vehicles that report, in (0, 1].
        seed: of the simulated traffic and of the choice of vehicles.
        first_id: is added to the ids of the vehicles.
        tell: is called with a message when a recording repeats.
        num_lanes: the true state is divided by it, for a design that estimates the density of each lane.
    """
    _check.is_share("share", share)
    _check.is_count("num_lanes", num_lanes)
    if data is None:
        scenes, interval_s = _freeway(share, seed, first_id), _FREEWAY_INTERVAL_S
    else:
        recording = Trajectories.load(data) if data.is_file() and data.suffix == ".dpfuse-data" else us101(data)
        scenes, interval_s = _recorded(recording, share, seed, first_id, tell), recording.interval_s
    return SceneSequence((scene._replace(state=scene.state / num_lanes) for scene in scenes), interval_s)


def _freeway(share: float, seed: int, first_id: int) -> Iterator[Scene]:
    for state, sensors, measurements in freeway.watch(interval_s=_FREEWAY_INTERVAL_S, seed=seed):
        reports = is_chosen(sensors, share, seed)
        yield Scene(state, sensors[reports] + first_id, measurements[reports])


def _recorded(
    data: Trajectories, share: float, seed: int, first_id: int, tell: Callable[[str], object]
) -> Iterator[Scene]:
    num_ids = int(data.sensors.max()) + 1
    for turn in itertools.count():
        if turn:
            tell(f"the recording starts again, with new ids (turn {turn + 1})")
        run = turn % data.num_runs
        for step in range(data.num_steps):
            ids = data.sensors[run, step] + turn * num_ids
            reports = data.present[run, step] & is_chosen(ids, share, seed)
            inputs = None
            if data.public is not None and data.public_age is not None:
                inputs = data.public[run, step], data.public_age[run, step]
            yield Scene(data.state[run, step], ids[reports] + first_id, data.measurements[run, step][reports], inputs)


def is_chosen(ids: Integers, share: float, seed: int) -> Booleans:
    """Whether each vehicle reports, by a hash of id and seed: splitmix64 (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    chosen: Booleans = (mixed >> np.uint64(11)) * 2.0**-53 < share
    return chosen
