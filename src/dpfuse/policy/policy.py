"""A fusion policy and estimator: the three networks, the constants around them, and the structure of both."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from dpfuse.policy.estimators import Estimator
from dpfuse.policy.filters import RecurrentFilter
from dpfuse.policy.parts import Part, find_estimator, find_filter, find_spending
from dpfuse.policy.spending import SpendingRule
from dpfuse.policy.structure import Structure


class Networks(eqx.Module):
    """What training changes."""

    recurrent_filter: RecurrentFilter
    spending: SpendingRule
    estimator: Estimator


class Constants(eqx.Module):
    """What training leaves alone.

    Attributes:
        squared_radius: 2 B / alpha, the budget; infinite for a design without a guarantee.
        measurement_low, measurement_high: the range of each channel; finite values outside are clipped to it.
        state_mean, state_std: of the state in the training data.
        std_scale: by which E's standard deviations are multiplied, so that the 95% band covers 95% of held-out data.
        measurement_fill: what f reads for a missing channel, the mean of the training data; None for a design without
            partial reports.
        attribute_low, attribute_high: the range of each attribute; values outside are clipped to it. None for a design
            without attributes.
        public_low, public_high: the range of each public input, the same way.
    """

    squared_radius: Float[Array, ""]
    measurement_low: Float[Array, " n_y"]
    measurement_high: Float[Array, " n_y"]
    state_mean: Float[Array, " n_x"]
    state_std: Float[Array, " n_x"]
    std_scale: Float[Array, " n_x"]
    measurement_fill: Float[Array, " n_y"] | None = None
    attribute_low: Float[Array, " n_a"] | None = None
    attribute_high: Float[Array, " n_a"] | None = None
    public_low: Float[Array, " n_p"] | None = None
    public_high: Float[Array, " n_p"] | None = None


class Policy(eqx.Module):
    """Networks, constants and the structure that both were made for."""

    networks: Networks
    constants: Constants
    structure: Structure = eqx.field(static=True)

    @property
    def is_clipped(self) -> bool:
        """Whether g proposes weights that the stream's budget may not pay for: total accounting without an end."""
        structure = self.structure
        return structure.is_private and structure.accounting == "total" and structure.horizon is None

    @property
    def is_summed(self) -> bool:
        """Whether features can be summed over sensors before the loop through the releases."""
        return self.structure.accounting == "total" and not self.networks.recurrent_filter.is_guided


def make_networks(structure: Structure, key: PRNGKeyArray, parts: Sequence[Part] = ()) -> Networks:
    """Fresh weights; `parts` are the classes of parts that are a user's own."""
    filter_key, spending_key, estimator_key = jax.random.split(key, 3)
    networks = Networks(
        recurrent_filter=find_filter(structure.recurrent_filter, parts)(structure, key=filter_key),
        spending=find_spending(structure.spending, parts)(structure, key=spending_key),
        estimator=find_estimator(structure.estimator, parts)(structure, key=estimator_key),
    )
    if not all(eqx.is_array(leaf) for leaf in jax.tree.leaves(networks)):
        raise TypeError("a part must have arrays or static fields only; mark others with equinox.field(static=True)")
    if networks.estimator.hidden_size != structure.estimator_size:
        raise ValueError(
            f"estimator must remember estimator_size numbers, {structure.estimator_size}, got hidden_size "
            f"{networks.estimator.hidden_size}; set Architecture.estimator_size to it"
        )
    return networks


def make_policy(structure: Structure, constants: Constants, *, key: PRNGKeyArray, parts: Sequence[Part] = ()) -> Policy:
    """A policy with fresh weights."""
    return Policy(make_networks(structure, key, parts), constants, structure)
