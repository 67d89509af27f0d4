"""The question that Theorem 1 answers, for binary hidden Markov systems, and some that are worth asking."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A binary state seen by binary sensors, to be estimated from releases within a Rényi budget.

    The cost is the squared error of the best estimate of the state, which is its posterior variance, summed over the
    steps.

    Attributes:
        transition: shape (2, 2), the row of a state holds the probabilities of the next one.
        sensor_probabilities: probability that a sensor says 1 in each state, shape (2, m), or (2,) if all are alike.
        num_sensors: m, needed where the sensors are alike.
        prior: probabilities of the first state, shape (2,).
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
            # What is the first state's distribution there is the prior here.
            raise type(error)(str(error).replace("initial", "prior")) from None
        if len(system.transition) != 2:
            raise ValueError(f"transition must have shape (2, 2), got {system.transition.shape}")
        object.__setattr__(self, "transition", system.transition)
        object.__setattr__(self, "sensor_probabilities", system.sensor_probabilities)
        object.__setattr__(self, "num_sensors", system.num_sensors)
        object.__setattr__(self, "prior", system.initial)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Problem:
        """The problem in a TOML file, whose keys are the attributes above."""
        try:
            fields = tomllib.loads(Path(path).read_text())
            return cls(**fields)
        except FileNotFoundError:
            raise FileRefused(f"no problem at {path}; the presets are {', '.join(PRESETS)}") from None
        except (tomllib.TOMLDecodeError, TypeError, ValueError, UnicodeDecodeError) as error:
            raise FileRefused(f"{path} is not a problem: {error}") from error

    @property
    def system(self) -> HiddenMarkov:
        """The same system as a source of recordings."""
        return HiddenMarkov(
            transition=self.transition, sensor_probabilities=self.sensor_probabilities, initial=self.prior
        )

    @property
    def count_probabilities(self) -> Floats:
        """The probability of each number of sensors that say 1, in each state, shape (2, m + 1)."""
        distributions = []
        for probabilities in self.sensor_probabilities:
            distribution = np.ones(1)
            for says_one in probabilities:
                distribution = np.convolve(distribution, [1 - says_one, says_one])
            distributions.append(distribution)
        return np.stack(distributions)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON and TOML take them."""
        fields = asdict(self)
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


def _preset(
    rise: float, fall: float, prior: float, says_one: tuple[float, float], num_sensors: int, horizon: int, budget: float
) -> Problem:
    """A problem of order 2: `rise` and `fall` are the chances of a change, `prior` that of state 1 at the start."""
    return Problem(
        transition=np.array([[1 - rise, rise], [fall, 1 - fall]]),
        sensor_probabilities=np.array(says_one),
        num_sensors=num_sensors,
        prior=np.array([1 - prior, prior]),
        horizon=horizon,
        order=2.0,
        budget=budget,
    )


PRESETS: dict[str, Problem] = {
    # A state that changes rarely: once it is known, releases are better saved for when it may have changed.
    "slow": _preset(0.02, 0.02, 0.5, (0.1, 0.9), 20, 20, 0.1),
    # Something begins, at a time unknown, and never ends: once it has been seen to begin there is nothing to spend on.
    "onset": _preset(0.05, 0.0, 0.0, (0.1, 0.9), 20, 20, 0.1),
    # So little budget that the releases never tell much, and when to spend it can as well be fixed beforehand.
    "scarce": _preset(0.05, 0.05, 0.5, (0.2, 0.8), 20, 20, 0.02),
    # One sensor that shows the state itself: the case in which whole collections are optimised without any restriction.
    "single": _preset(0.1, 0.1, 0.5, (0.0, 1.0), 1, 10, 3.0),
}
"""Problems worth solving."""
