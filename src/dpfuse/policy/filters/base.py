"""The base class of the recurrent filter f, which turns each sensor's own history into features.

The package calls a filter in two places. A live step calls `step` for the sensors that report now. Training and
evaluation call `over_time` once for whole windows, before the loop through the releases, and `read` inside that loop.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.structure import Structure

# A pytree whose arrays lead with the axis `streams`, or None for a filter that is not guided.
Readout = Any


class RecurrentFilter(eqx.Module):
    """f: the base class of every filter, the package's own and a user's.

    A subclass has a constructor, `hidden_size` and `step`; the other methods have defaults for a filter that is not
    guided. Every field is a float32 array, which training changes, or static.

    **Guarantees** that every filter gives, for any weights; `dpfuse.check_filter` tests them
        - Independence: the results of a row depend on the arguments of that row and on the readout of its stream alone.
          They are equal bit for bit whatever the other rows hold and in whatever order the rows stand.
        - Bounds: features lie in the set `structure.features`, whatever was reported and released.
        - A row that is not present has features 0 and keeps its memory.
        - A row that has arrived starts with memory 0, whatever `hidden` holds: its place in memory was another's.

    Attributes:
        hidden_size: h, how many numbers are remembered of each sensor.
        is_guided: whether features depend on past releases, through `make_readout`.
    """

    hidden_size: eqx.AbstractVar[int]
    is_guided: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        """Fresh weights; a ValueError if the filter does not go with the structure."""

    def with_inputs_scaled(self, mean: Float[AnyArray, " inputs"], std: Float[AnyArray, " inputs"]) -> RecurrentFilter:
        """The filter with first weights that suit inputs of this mean and standard deviation; by default unchanged.

        Training calls it once, before the first update. Inputs that fill little of their range would otherwise start
        with features that hardly vary.
        """
        return self

    @abstractmethod
    def step(
        self,
        hidden: Float[AnyArray, "rows h"],
        inputs: Float[AnyArray, "rows inputs"],
        present: Bool[AnyArray, " rows"],
        arrived: Bool[AnyArray, " rows"],
    ) -> tuple[Float[Array, "rows h"], Float[Array, "rows n"]]:
        """Memory after one more step, and what `read` needs: the features (n = d) of a filter that is not guided.

        Args:
            hidden: memory of each row.
            inputs: `structure.num_filter_inputs` numbers in [-1, 1]: the channels; with partial reports, for each
                channel 1 if it is missing and otherwise 0; the sensor's attributes. Any values in that range where a
                row is not present.
            present: whether the row has a report.
            arrived: whether the row's sensor is a new one.
        """

    def over_time(
        self,
        inputs: Float[Array, "K rows inputs"],
        present: Bool[Array, "K rows"],
        arrived: Bool[AnyArray, "K rows"],
    ) -> Float[Array, "K rows n"]:
        """The second result of `step` at every step, from memory 0."""

        def next_step(hidden: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            return self.step(hidden, *now)

        start = jnp.zeros((inputs.shape[1], self.hidden_size))
        return jax.lax.scan(next_step, start, (inputs, present, jnp.asarray(arrived)))[1]

    def make_readout(self, estimator_hidden: Float[Array, "streams e"]) -> Readout:
        """What `read` needs of each stream, given E's memory of past releases, which is public."""
        return None

    def read(
        self, encoded: Float[Array, "rows n"], present: Bool[AnyArray, " rows"], readout: Readout
    ) -> Float[Array, "rows d"]:
        """The features of each row, given the readout of the row's own stream, its arrays of shape (rows, ...)."""
        return encoded


def read_features(
    recurrent_filter: RecurrentFilter,
    encoded: Float[Array, "rows n"],
    present: Bool[AnyArray, " rows"],
    readout: Readout,
    stream: Int[AnyArray, " rows"],
) -> Float[Array, "rows d"]:
    """The features of each row; `readout` is that of all streams, and `stream` the number of the row's own."""
    own = jax.tree.map(lambda array: array.at[stream].get(mode="fill", fill_value=0.0), readout)
    return recurrent_filter.read(encoded, present, own)
