"""Estimators E: the contract, the package's own, and the table of their names."""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from dpfuse.policy.gru import GRU, linear
from dpfuse.policy.structure import Structure

_SMALLEST_STD = 1e-3


class Estimator(eqx.Module):
    """E: the base class of every estimator, the package's own and a user's.

    A subclass has a constructor, `hidden_size` and `step`. Every field is a float32 array, which training changes, or
    static.

    **Guarantees** that every estimator gives, for any weights; `dpfuse.check_estimator` tests them
        - A stream's results are a deterministic function of that stream's arguments, which are all public. They are
          equal bit for bit whatever the other streams hold.
        - Mean and standard deviation are finite and the latter is above 0, whatever was released.

    Attributes:
        hidden_size: e, how many numbers are remembered of each stream. It must be `structure.estimator_size`: a guided
            filter reads this memory.
    """

    hidden_size: eqx.AbstractVar[int]

    @abstractmethod
    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        """Fresh weights; a ValueError if the estimator does not go with the structure."""

    @abstractmethod
    def step(
        self, hidden: Float[Array, "streams e"], inputs: Float[Array, "streams n"]
    ) -> tuple[Float[Array, "streams e"], Float[Array, "streams n_x"], Float[Array, "streams n_x"]]:
        """Memory after one more release, and mean and standard deviation of the state in standard units.

        Args:
            hidden: memory of each stream, 0 at first.
            inputs: n = `structure.num_estimator_inputs` numbers: the release scaled to unit size (d), the same times
                its reliability (d), the reliability, the step and the budget left as shares of the whole. In individual
                accounting the budget left is always 0; in constant and stationary designs the step is 0 too.
        """


class GRUEstimator(Estimator):
    """E: a GRU reads the releases, and two linear layers compute mean and standard deviation from its memory."""

    gru: GRU
    mean_head: eqx.nn.Linear
    spread_head: eqx.nn.Linear
    hidden_size: int = eqx.field(static=True)

    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        gru_key, mean_key, spread_key = jax.random.split(key, 3)
        self.gru = GRU(structure.num_estimator_inputs, structure.estimator_size, key=gru_key)
        self.mean_head = eqx.nn.Linear(structure.estimator_size, structure.num_states, key=mean_key)
        self.spread_head = eqx.nn.Linear(structure.estimator_size, structure.num_states, key=spread_key)
        self.hidden_size = structure.estimator_size

    def step(self, hidden: Array, inputs: Array) -> tuple[Array, Array, Array]:
        hidden = self.gru(hidden, inputs)
        mean = linear(self.mean_head, hidden)
        # The standard deviation is fitted to the errors of the mean. Its gradient does not reach the GRU.
        spread = linear(self.spread_head, jax.lax.stop_gradient(hidden))
        return hidden, mean, jax.nn.softplus(spread) + _SMALLEST_STD


ESTIMATORS: dict[str, type[Estimator]] = {"gru": GRUEstimator}
