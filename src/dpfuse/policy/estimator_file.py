"""E alone, in a file for whoever reads the releases: nothing of f and g is in it, nor a trace of what they were."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpfuse import _archive
from dpfuse.errors import FileRefused
from dpfuse.policy.array_tree import fingerprint_of, from_arrays, to_arrays
from dpfuse.policy.networks import AffineFilter, Estimator, FusionWeight
from dpfuse.policy.step import Constants, Networks, Policy
from dpfuse.policy.structure import Structure

_VERSION = 2
# Settings of f and g, which E has no use for.
_NOT_OF_E: dict[str, Any] = {
    "num_channels": 1,
    "expected_stay": 1.0,
    "recurrent_filter": "gru",
    "filter_size": 1,
    "fusion_size": 1,
}


class _Alone(eqx.Module):
    """The arrays that `estimate` reads: E's weights, and the public constants in the state's and budget's units."""

    estimator: Estimator
    squared_radius: Float[Array, ""]
    state_mean: Float[Array, " n_x"]
    state_std: Float[Array, " n_x"]


def export_estimator(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Write E: a zip of .npy arrays and metadata.json, without pickle."""
    constants, structure = policy.constants, replace(policy.structure, **_NOT_OF_E)
    alone = _Alone(policy.networks.estimator, constants.squared_radius, constants.state_mean, constants.state_std)
    metadata = {
        "kind": "estimator",
        "version": _VERSION,
        "structure": {name: value for name, value in structure.to_dict().items() if name not in _NOT_OF_E},
        "fingerprint": fingerprint_of(structure, alone),
    }
    _archive.write(path, metadata, to_arrays(alone))


def import_estimator(path: str | os.PathLike[str]) -> Policy:
    """What `export_estimator` wrote, as a policy that can `estimate`; its f and g have no weights.

    Raises:
        FileRefused: if anything in it is not as it should be.
    """
    metadata, arrays = _archive.read(path, "estimator")
    if metadata.get("version") != _VERSION:
        raise FileRefused(
            f"{path} has estimator version {metadata.get('version')!r}, this is {_VERSION}; export it again"
        )
    try:
        structure = Structure(**metadata["structure"], **_NOT_OF_E)
        alone = from_arrays(_blank(structure), arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise FileRefused(f"{path} is not an estimator that this version can read: {error}") from error
    if fingerprint_of(structure, alone) != metadata.get("fingerprint"):
        raise FileRefused(f"{path} was changed after it was written; its fingerprint does not match")
    nothing = FusionWeight(replace(structure, spending="constant"), key=jax.random.key(0))
    constants = Constants(alone.squared_radius, jnp.zeros(1), jnp.ones(1), alone.state_mean, alone.state_std)
    return Policy(Networks(AffineFilter(), nothing, alone.estimator), constants, structure)


def _blank(structure: Structure) -> _Alone:
    if not structure.is_private:
        raise ValueError("its features must be bounded: the non-private floor may not be released")
    states = jnp.zeros(structure.num_states)
    return _Alone(Estimator(structure, key=jax.random.key(0)), jnp.zeros(()), states, states)
