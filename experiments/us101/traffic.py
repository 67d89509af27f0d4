"""The data of the case study: parts of the recording that share no step, and simulated traffic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpfuse import Trajectories, data
from dpfuse.systems import freeway

SECTION = (120.0, 520.0)
INTERVAL_S = 0.2
NUM_FOLDS = 5
# Longer than any vehicle takes to pass the section: with such a gap no vehicle is in two parts.
GAP_S = 75.0
# Choices of reporting vehicles in training.
NUM_SUBSETS = 16
# Choices of reporting vehicles in the test; and in the test of how much the choice matters.
NUM_TESTS, MORE_TESTS = 2, 16
# Training windows are drawn from runs of this length. They overlap by 300 steps, the longest horizon, so that a window
# can start at any step.
_RUN_STEPS, _STRIDE = 900, 600


class Parts(NamedTuple):
    """Recordings for training, validation and test."""

    training: Trajectories
    validation: Trajectories
    test: Trajectories


def prepare(data_folder: Path | None, path: Path) -> None:
    """Make the file of the recording, if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        data.us101(data_folder, section=SECTION, interval_s=INTERVAL_S, progress=True).save(path)


def paper_split(recording: Trajectories, share: float, num_tests: int = NUM_TESTS) -> Parts:
    """80 / 10 / 10 by time, as in the paper, with `num_tests` choices of reporting vehicles in the test."""
    total = recording.num_steps
    cuts = round(0.8 * total), round(0.9 * total)
    return _parts(recording, share, [(0, cuts[0])], cuts, (cuts[1], total), num_tests)


def fold(recording: Trajectories, share: float, number: int) -> Parts:
    """Fold `number` of five: a fifth of the time for the test, the tenth after it for validation, the rest to train."""
    total, gap = recording.num_steps, round(GAP_S / recording.interval_s)
    bounds = [round(total * i / (2 * NUM_FOLDS)) for i in range(2 * NUM_FOLDS + 1)]
    test = bounds[2 * number], bounds[2 * number + 2]
    # After the last fold comes the first tenth.
    first = (2 * number + 2) % (2 * NUM_FOLDS)
    validation = bounds[first], bounds[first + 1]
    held = sorted([test, validation])
    free = [(0, held[0][0] - gap), (held[0][1] + gap, held[1][0] - gap), (held[1][1] + gap, total)]
    usable = [(start, stop) for start, stop in free if stop - start >= _RUN_STEPS]
    after = validation[0] + gap if validation[0] == test[1] else validation[0]
    return _parts(recording, share, usable, (after, validation[1]), test)


def with_freeways(parts: Parts, share: float, spread: float, *, on_us101: bool) -> Parts:
    """The parts with simulated freeways in training, besides US-101 or instead of it; the test stays."""
    training, validation = _simulated(share, spread)
    if not on_us101:
        return Parts(training, validation, parts.test)
    # About ten hours of each: US-101 is there once for each choice of reporting vehicles.
    return parts._replace(training=Trajectories.join([parts.training, training.windows(_RUN_STEPS, _STRIDE)]))


@lru_cache(maxsize=1)
def _simulated(share: float, spread: float, num_runs: int = 24) -> tuple[Trajectories, Trajectories]:
    """Training and validation on simulated freeways with randomised drivers and bottlenecks."""
    roads = [freeway.Freeway().randomised(seed, spread) for seed in range(num_runs + 3)]
    runs = freeway.simulate(roads, num_runs=len(roads), duration_s=1500.0, interval_s=INTERVAL_S, seed=1)
    reporting = runs.sample_sensors(share, seed=0)
    return reporting.runs(np.arange(num_runs)), reporting.runs(np.arange(num_runs, len(roads)))


def _parts(
    recording: Trajectories,
    share: float,
    training: Sequence[tuple[int, int]],
    validation: tuple[int, int],
    test: tuple[int, int],
    num_tests: int = NUM_TESTS,
) -> Parts:
    subsets = [recording.between(*part).sample_sensors(share, seed) for part in training for seed in range(NUM_SUBSETS)]
    return Parts(
        Trajectories.join([subset.windows(_RUN_STEPS, _STRIDE) for subset in subsets]),
        Trajectories.join([recording.between(*validation).sample_sensors(share, 100 + i) for i in range(2)]),
        Trajectories.join([recording.between(*test).sample_sensors(share, 200 + i) for i in range(num_tests)]),
    )
