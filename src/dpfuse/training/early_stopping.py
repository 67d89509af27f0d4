"""The best weights on validation, design by design."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpfuse._arrays import Booleans, Floats, Integers
from dpfuse.errors import TrainingDiverged
from dpfuse.policy.array_tree import AnyArray
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
        starts: the best validation errors of all starts when one of them was chosen, shape (designs, starts, n_x); None
            for one start.
    """

    networks: Networks
    best: Floats
    history: Floats
    starts: Floats | None = None


class Best:
    """Keeps the best weights of each design.

    Args:
        optimisation: training stops after `patience` validations in which no design improved, if it is given.
        watch: is called at every validation.
    """

    def __init__(self, optimisation: Optimisation, watch: Watch) -> None:
        self._optimisation, self._watch = optimisation, watch
        self._networks: Networks | None = None
        self._best: Floats | None = None
        self._history: list[Floats] = []
        self._num_since = 0

    def validate(
        self,
        number: int,
        networks: Networks,
        errors: AnyArray,
        *,
        is_sound: AnyArray | bool = True,
        num_starts: int = 1,
    ) -> bool:
        """Take the weights that `number` updates have made and their validation errors; returns whether to stop.

        Args:
            is_sound: False for those that had no finite gradient yet.
            num_starts: how many of them in a row are starts of one design. One that diverged is never chosen.

        Raises:
            TrainingDiverged: all starts of a design have a validation error that is not finite, or are not sound.
        """
        errors = np.asarray(errors, np.float64)
        can_go_on = np.isfinite(errors).all(1) & np.asarray(is_sound)
        errors = np.where(can_go_on[:, None], errors, np.inf)
        if not can_go_on.reshape(-1, num_starts).any(1).all():
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
        patience = self._optimisation.patience
        return patience is not None and self._num_since >= patience

    def errors_of_starts(self, num_starts: int) -> Floats:
        """The best validation errors so far, shape (designs, starts, n_x)."""
        assert self._best is not None  # a validation has come first
        return self._best.reshape(-1, num_starts, self._best.shape[1])

    def best_starts(self, num_starts: int, *, with_last: bool = False) -> Integers:
        """The number of the best start of each design, where every design has `num_starts` in a row.

        Args:
            with_last: give the best one of all but the last, and the last, of each design.
        """
        assert self._best is not None  # a validation has come first
        error = self._best.mean(1).reshape(-1, num_starts)
        first = num_starts * np.arange(len(error))
        if not with_last:
            best: Integers = np.argmin(error, axis=1) + first
            return best
        return np.stack([np.argmin(error[:, :-1], axis=1) + first, first + num_starts - 1], axis=1).ravel()

    def keep(self, chosen: Integers) -> Best:
        """The same for the chosen designs alone."""
        kept = Best(self._optimisation, self._watch)
        assert self._best is not None  # a validation has come first
        kept._networks = jax.tree.map(lambda leaf: leaf[chosen], self._networks)
        kept._best, kept._history = self._best[chosen], [errors[chosen] for errors in self._history]
        return kept

    def fitted(self) -> Fitted:
        """The best weights of all validations."""
        assert self._networks is not None and self._best is not None  # training ends with a validation
        return Fitted(self._networks, self._best, np.stack(self._history))


def _choose(is_better: Booleans, new: Array, old: Array) -> Array:
    return jnp.where(is_better.reshape(-1, *[1] * (new.ndim - 1)), new, old)
