"""The problem that Theorem 1 solves, for hidden Markov systems with few states, and presets."""

from __future__ import annotations

import os
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.errors import FileRefused
from dpfuse.systems.hidden_markov import HiddenMarkov

_MOST_STATES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A Markov chain on two to four states, measured by sensors, to be estimated from releases within a Rényi budget.

    The cost is the posterior variance of the number of the state, 0 to S - 1, summed over the steps. It is the expected
    squared error of the best estimate.

    Attributes:
        transition: shape (S, S); row x holds the probabilities of the state after x.
        sensor_probabilities: the probability that a sensor measures 1 in each state, shape (S, m), or shape (S,) if it
            is the same for all sensors. For sensors that measure 0 to Y - 1, the probability of each, shape (S, m, Y)
            or (S, 1, Y).
        num_sensors: m, required if `sensor_probabilities` has shape (S,).
        prior: probabilities of the first state, shape (S,).
        horizon: K, the number of releases.
        order: the Rényi order alpha.
        budget: the Rényi budget B_G.
    """

    transition: Floats
    sensor_probabilities: Floats
    num_sensors: int | None = None
    prior: Floats
    horizon: int
    order: float
    budget: float

    def __post_init__(self) -> None:
        _check.is_count("horizon", self.horizon)
        for name in ("order", "budget"):
            object.__setattr__(self, name, _check.is_positive(name, getattr(self, name)))
        if self.order <= 1:
            raise ValueError(f"order must be > 1, got {self.order!r}; 2 is a usual choice")
        try:
            system = HiddenMarkov(
                transition=self.transition,
                sensor_probabilities=self.sensor_probabilities,
                initial=self.prior,
                num_sensors=self.num_sensors,
            )
        except (TypeError, ValueError) as error:
            # `initial` in HiddenMarkov is `prior` here.
            raise type(error)(str(error).replace("initial", "prior")) from None
        if not 2 <= len(system.transition) <= _MOST_STATES:
            raise ValueError(f"transition must have 2 to {_MOST_STATES} states, got {len(system.transition)}")
        object.__setattr__(self, "transition", system.transition)
        object.__setattr__(self, "sensor_probabilities", system.sensor_probabilities)
        object.__setattr__(self, "num_sensors", system.num_sensors)
        object.__setattr__(self, "prior", system.initial)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Problem:
        """The problem in a TOML file. Its keys are the attributes above."""
        try:
            fields = tomllib.loads(Path(path).read_text())
            return cls(**fields)
        except FileNotFoundError:
            raise FileRefused(f"no problem at {path}; the presets are {', '.join(PRESETS)}") from None
        except (tomllib.TOMLDecodeError, TypeError, ValueError, UnicodeDecodeError) as error:
            raise FileRefused(f"{path} is not a problem: {error}") from error

    @property
    def system(self) -> HiddenMarkov:
        """The system, from which `hidden_markov.simulate` makes recordings."""
        return HiddenMarkov(
            transition=self.transition, sensor_probabilities=self.sensor_probabilities, initial=self.prior
        )

    @property
    def num_states(self) -> int:
        return len(self.transition)

    @property
    def feature_sums(self) -> Floats:
        """What the features of all sensors can add up to, in order. A feature is the measurement, scaled to [0, 1]."""
        steps = self.system.output_probabilities.shape[2] - 1
        return np.asarray(np.arange(self.sensor_probabilities.shape[1] * steps + 1) / steps)

    @property
    def sum_probabilities(self) -> Floats:
        """The probability of each of `feature_sums` in each state, shape (S, sums)."""
        distributions = []
        for sensors in self.system.output_probabilities:
            distribution = np.ones(1)
            for probabilities in sensors:
                distribution = np.convolve(distribution, probabilities)
            distributions.append(distribution)
        return np.stack(distributions)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON and TOML values."""
        fields = asdict(self)
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


def _preset(
    rise: float, fall: float, prior: float, sensors: tuple[float, float], num_sensors: int, horizon: int, budget: float
) -> Problem:
    """A problem of order 2. `rise` and `fall` are p(1 | 0) and p(0 | 1), `prior` is p(X_1 = 1)."""
    return Problem(
        transition=np.array([[1 - rise, rise], [fall, 1 - fall]]),
        sensor_probabilities=np.array(sensors),
        num_sensors=num_sensors,
        prior=np.array([1 - prior, prior]),
        horizon=horizon,
        order=2.0,
        budget=budget,
    )


PRESETS: dict[str, Problem] = {
    # The state changes rarely. Once it is known, it is best to save the budget until it may have changed.
    "slow": _preset(0.02, 0.02, 0.5, (0.1, 0.9), 20, 20, 0.1),
    # The state changes once, from 0 to 1, at an unknown time. After that, releases are worth nothing.
    "onset": _preset(0.05, 0.0, 0.0, (0.1, 0.9), 20, 20, 0.1),
    # The budget is so small that releases tell little. A schedule fixed in advance is nearly optimal.
    "scarce": _preset(0.05, 0.05, 0.5, (0.2, 0.8), 20, 20, 0.02),
    # Three states: traffic flows (0), jams at once (2), and recovers in two stages (1, then 0). Sensors measure the
    # state with error. The budget is saved for jams.
    "incident": Problem(
        transition=np.array([[0.96, 0.0, 0.04], [0.1, 0.9, 0.0], [0.0, 0.1, 0.9]]),
        sensor_probabilities=np.array([[[0.85, 0.1, 0.05]], [[0.1, 0.8, 0.1]], [[0.05, 0.1, 0.85]]]),
        num_sensors=20,
        prior=np.array([1.0, 0.0, 0.0]),
        horizon=20,
        order=2.0,
        budget=0.2,
    ),
    # One sensor that measures the state without error: here `solve_general` covers all collections of the theorem.
    "single": _preset(0.1, 0.1, 0.5, (0.0, 1.0), 1, 10, 3.0),
}
"""Example problems by name."""
