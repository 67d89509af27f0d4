"""Estimators E: the contract, the package's own, and the table of their names."""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from dpfuse.policy.gru import GRU, linear
from dpfuse.policy.structure import Structure

_SMALLEST_STD = 1e-3
# One number in so many is remembered for the standard deviation.
_SPREAD_PART = 5


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
                its reliability (d), the reliability, the step and the budget left as shares of the whole, and 1 if the
                step was skipped, else 0. In individual accounting the budget left is always 0; in designs without a
                clock (`Structure.has_clock`) the step is 0 too. A skipped step has release and reliability 0.
        """


class GRUEstimator(Estimator):
    """E: one GRU reads the releases for the mean, and a small one for the standard deviation.

    The standard deviation has a memory of its own, a fifth of the whole, since it must remember what the mean need not:
    how long nothing came, or since when the releases say less than usual. It is fitted to the errors of the mean, and
    its gradient reaches neither the mean nor f and g. In one memory the two compete, and the error rises.
    """

    gru: GRU
    spread_gru: GRU
    mean_head: eqx.nn.Linear
    spread_head: eqx.nn.Linear
    hidden_size: int = eqx.field(static=True)

    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        gru_key, spread_gru_key, mean_key, spread_key = jax.random.split(key, 4)
        size, inputs = structure.estimator_size, structure.num_estimator_inputs
        if size < 2:
            raise ValueError(f"estimator_size must be at least 2, one for mean and deviation each, got {size}")
        spread_size = max(1, size // _SPREAD_PART)
        mean_size = size - spread_size
        self.gru = GRU(inputs, mean_size, key=gru_key)
        self.spread_gru = GRU(inputs + mean_size, spread_size, key=spread_gru_key)
        if structure.horizon is not None:
            # With the usual biases all units forget within two steps, and a longer memory is learned by luck. Not so
            # without an end: what outlasts a training window drifts after it.
            self.gru = self.gru.with_memories(structure.horizon)
            self.spread_gru = self.spread_gru.with_memories(structure.horizon)
        self.mean_head = eqx.nn.Linear(mean_size, structure.num_states, key=mean_key)
        self.spread_head = eqx.nn.Linear(size, structure.num_states, key=spread_key)
        self.hidden_size = size

    def step(self, hidden: Array, inputs: Array) -> tuple[Array, Array, Array]:
        size = self.gru.hidden_size
        of_mean, of_spread = self.gru(hidden[:, :size], inputs), hidden[:, size:]
        fixed = jax.lax.stop_gradient(of_mean)
        of_spread = self.spread_gru(of_spread, jnp.concatenate([jax.lax.stop_gradient(inputs), fixed], axis=-1))
        spread = linear(self.spread_head, jnp.concatenate([fixed, of_spread], axis=-1))
        hidden = jnp.concatenate([of_mean, of_spread], axis=-1)
        return hidden, linear(self.mean_head, of_mean), jax.nn.softplus(spread) + _SMALLEST_STD


ESTIMATORS: dict[str, type[Estimator]] = {"gru": GRUEstimator}
