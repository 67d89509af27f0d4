"""The best weights on validation, design by design."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpfuse._arrays import Booleans, Floats
from dpfuse.errors import TrainingDiverged
from dpfuse.policy.policy import Networks
from dpfuse.training.settings import Optimisation

# Called with the number of updates made, and the validation errors now and at their best, as in `Fitted`.
Watch = Callable[[int, Floats, Floats], None]


class Fitted(NamedTuple):
    """The best weights on validation.

    Attributes:
        networks: weights, with a leading axis for the designs.
        best: their validation errors in standard units, shape (designs, n_x).
        history: the validation errors of every validation, shape (validations, designs, n_x).
    """

    networks: Networks
    best: Floats
    history: Floats


class Best:
    """Keeps the best weights of each design.

    Args:
        validate: gives the validation errors of weights, shape (designs, n_x).
        optimisation: training stops after `patience` validations in which no design improved.
        watch: is called at every validation.
    """

    def __init__(self, validate: Callable[[Networks], Array], optimisation: Optimisation, watch: Watch) -> None:
        self._errors_of, self._optimisation, self._watch = validate, optimisation, watch
        self._networks: Networks | None = None
        self._best: Floats | None = None
        self._history: list[Floats] = []
        self._num_since = 0

    def validate(self, number: int, networks: Networks, *, is_sound: bool = True) -> bool:
        """Validate the weights that `number` updates have made; returns whether to stop.

        Raises:
            TrainingDiverged: a validation error is not finite, or `is_sound` is False: no update had a finite gradient.
        """
        errors = np.asarray(self._errors_of(networks), np.float64)
        if not (is_sound and np.isfinite(errors).all()):
            raise TrainingDiverged(
                f"the validation error or the gradient is not finite after {number} updates; lower learning_rate "
                f"({self._optimisation.learning_rate}) or look for extreme values in the training data"
            )
        self._history.append(errors)
        before = np.full_like(errors, np.inf) if self._best is None else self._best
        is_better = errors.mean(1) < before.mean(1)
        self._best = np.where(is_better[:, None], errors, before)
        kept = networks if self._networks is None else self._networks
        self._networks = jax.tree.map(partial(_choose, is_better), networks, kept)
        self._watch(number, errors, self._best)
        self._num_since = 0 if is_better.any() else self._num_since + 1
        return self._num_since >= self._optimisation.patience

    def fitted(self) -> Fitted:
        """The best weights of all validations."""
        assert self._networks is not None and self._best is not None  # training ends with a validation
        return Fitted(self._networks, self._best, np.stack(self._history))


def _choose(is_better: Booleans, new: Array, old: Array) -> Array:
    return jnp.where(is_better.reshape(-1, *[1] * (new.ndim - 1)), new, old)
