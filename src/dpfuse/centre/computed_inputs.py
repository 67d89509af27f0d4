"""Public inputs that need no publisher: constants, and the time of day and of week."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dpfuse._arrays import Floats32
from dpfuse.policy.design import Design
from dpfuse.public.settings import split_label
from dpfuse.public_inputs import clock_inputs

_HIGHEST = float(np.finfo(np.float32).max)
CLOCK = ("day-sine", "day-cosine", "week-sine", "week-cosine")
"""The columns of `clock_inputs`, in their order."""


class ComputedInputs:
    """Some of a design's public inputs, as a function of the moment alone.

    Args:
        design: reads the inputs.
        sources: by name or number, from 1, of an input: a finite number, which is its value at every step, or one of
            `CLOCK`.
        utc_offset_s: is added to the moment, for local time.
    """

    def __init__(self, design: Design, sources: Mapping[str, str | float], utc_offset_s: float = 0.0) -> None:
        if not math.isfinite(utc_offset_s):
            raise ValueError(f"utc_offset_s must be finite, got {utc_offset_s}")
        num_public = design.structure.num_public
        self._utc_offset_s, self._constants = utc_offset_s, np.full(num_public, np.nan, np.float32)
        self._columns: dict[int, int] = {}
        self._design = design
        self.places: dict[int, str] = {}
        """The input that each source is for, by its place from 0."""
        for name, source in sources.items():
            place = find_input(design, name)
            if place in self.places:
                raise ValueError(f"input {name!r} is the same as {self.places[place]!r}; give it one value")
            self.places[place] = name
            if source in CLOCK:
                self._columns[place] = CLOCK.index(source)
            else:
                self._constants[place] = _as_constant(name, source)

    def at(self, moment_s: float) -> Floats32:
        """The inputs at that moment, in seconds since 1970, shape (n_p,); NaN for one that is not computed."""
        values = self._constants.copy()
        if self._columns:
            columns = clock_inputs(moment_s + self._utc_offset_s, 1, 1.0)[0, 0]
            values[list(self._columns)] = columns[list(self._columns.values())]
        return values

    def warnings(self) -> list[str]:
        """A sentence for each input that has no source, or a constant that the design was not trained on."""
        constants = self._design.policy.constants
        lows, highs = np.asarray(constants.public_low), np.asarray(constants.public_high)
        found = []
        for place in range(self._design.structure.num_public):
            name, value = self.places.get(place), float(self._constants[place])
            if name is None:
                name = _name(self._design, place)
                found.append(f"{name}: no --input; it counts as not known until a publisher sends it")
                continue
            low, high = float(lows[place]), float(highs[place])
            if not (math.isnan(value) or low <= value <= high):
                found.append(
                    f"input {name} = {value:g} is outside what the design was trained on, {low:.3g} to {high:.3g}; "
                    f"it counts as {max(low, min(value, high)):.3g}"
                )
        return found


def _name(design: Design, place: int) -> str:
    labels = design.labels.get("public", ())
    return split_label(labels[place])[0] if labels else f"public input {place + 1}"


def find_input(design: Design, name: str) -> int:
    """The place, from 0, of a public input, by its name, with or without the unit, or by its number from 1."""
    num_public, labels = design.structure.num_public, list(design.labels.get("public", ()))
    names = [split_label(one)[0] for one in labels]
    for known_as in (labels, names):
        if name in known_as:
            return known_as.index(name)
    if not num_public:
        raise ValueError(f"input {name!r} is for no one: the design reads no public inputs; leave it out")
    if not (name.isascii() and name.isdecimal() and 1 <= int(name) <= num_public):
        known = f", or one of {', '.join(names)}" if names else ""
        raise ValueError(f"input must be a number from 1 to {num_public}{known}, got {name!r}")
    return int(name) - 1


def _as_constant(name: str, source: str | float) -> float:
    try:
        value = float(source)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"input {name!r} must be a finite number or one of {', '.join(CLOCK)}, got {source!r}")
    return max(-_HIGHEST, min(value, _HIGHEST))  # in float32 a larger one would be infinite, which means missing
