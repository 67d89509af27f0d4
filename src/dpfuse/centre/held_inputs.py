"""Public inputs as a centre holds them between their publishers and the rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from dpfuse._arrays import Floats32, Integers
from dpfuse.policy.policy import Constants
from dpfuse.public_inputs import NEVER

# Steps of which new inputs wait for their row. A centre whose ticks stop keeps no more.
_MOST_WAITING = 8
_NOT_YET = -(2**62)


class HeldInputs:
    """The newest value of each public input of each stream, and of which step it is. All of it is public.

    What is given waits until the row from which on it counts: a row that is made late reads nothing that came after
    its own cut-off. Of two values of an input the one of the later step counts, of one step the first. What is computed
    from the step alone waits for nothing.

    Args:
        num_streams: how many streams there are.
        low, high: the design's range of each input, to which values are clipped.
    """

    def __init__(self, num_streams: int, low: ArrayLike, high: ArrayLike) -> None:
        self._low, self._high = np.asarray(low, np.float32), np.asarray(high, np.float32)
        shape = num_streams, len(self._low)
        self._values, self._steps = np.full(shape, np.nan, np.float32), np.full(shape, _NOT_YET, np.int64)
        self._waiting: dict[int, tuple[Floats32, Integers]] = {}
        self._lock = threading.Lock()
        self._compute: Callable[[int], ArrayLike] | None = None

    @classmethod
    def after(cls, step: int, held: ArrayLike | None, constants: Constants) -> HeldInputs | None:
        """Goes on from what E holds after that step; None for a design that reads no public inputs."""
        if held is None or constants.public_low is None or constants.public_high is None:
            return None
        inputs = cls(len(np.asarray(held)), constants.public_low, constants.public_high)
        inputs.resume(held, step)
        return inputs

    def compute_by(self, compute: Callable[[int], ArrayLike]) -> None:
        """Let rows hold what `compute` returns for their step: a number for each input, NaN for one that is given."""
        self._compute = compute

    def give(self, stream: int, step: int, values: Sequence[float], usable_from: int) -> None:
        """Take the inputs of a step; a value that is not finite is nothing new.

        Args:
            stream: its number.
            usable_from: the first step whose row may hold them.
        """
        given = np.asarray(values, np.float64)
        is_known = np.isfinite(given)
        clipped = np.clip(np.where(is_known, given, 0.0), self._low, self._high).astype(np.float32)
        with self._lock:
            if usable_from not in self._waiting:
                nothing = np.full(self._values.shape, np.nan, np.float32), np.full(self._steps.shape, _NOT_YET)
                self._waiting[usable_from] = nothing
                if len(self._waiting) > _MOST_WAITING:
                    oldest, next_one, *_ = sorted(self._waiting)
                    own = self._waiting.pop(oldest)
                    _keep_newest(own, self._waiting[next_one])
                    self._waiting[next_one] = own
            steps = np.full(self._steps.shape, _NOT_YET)
            steps[stream] = np.where(is_known, step, _NOT_YET)
            _keep_newest(self._waiting[usable_from], (np.broadcast_to(clipped, self._values.shape), steps))

    def at(self, step: int) -> Floats32:
        """What the rows of that step hold: values and ages of each stream, shape (streams, 2 n_p)."""
        with self._lock:
            for usable_from in sorted(self._waiting):
                if usable_from <= step:
                    _keep_newest((self._values, self._steps), self._waiting.pop(usable_from))
            if self._compute is not None:
                computed = np.asarray(self._compute(step), np.float32)
                is_known = np.isfinite(computed)
                self._values[:, is_known] = np.clip(computed, self._low, self._high)[is_known]
                self._steps[:, is_known] = step
            ages = np.where(np.isnan(self._values), NEVER, np.clip(step - self._steps, 0, NEVER))
            return np.concatenate([self._values, ages], axis=-1, dtype=np.float32)

    def resume(self, held: ArrayLike, step: int) -> None:
        """Go on from what E holds after that step, shape (streams, 2 n_p)."""
        values, ages = np.split(np.asarray(held, np.float32), 2, axis=-1)
        with self._lock:
            self._values = values.copy()
            self._steps = np.where(np.isnan(values), _NOT_YET, step - ages.astype(np.int64))


def _keep_newest(own: tuple[Floats32, Integers], others: tuple[Floats32, Integers]) -> None:
    """Take over, in place, the others' values of later steps."""
    (values, steps), (new_values, new_steps) = own, others
    is_newer = new_steps > steps
    values[is_newer], steps[is_newer] = new_values[is_newer], new_steps[is_newer]
