"""E alone, in a file for those who read the releases. The file holds nothing of f and g."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dpfuse import _archive
from dpfuse.errors import FileRefused
from dpfuse.policy.array_tree import check_types, fingerprint_of, from_arrays, to_arrays
from dpfuse.policy.estimators import Estimator
from dpfuse.policy.parts import Part, PartMissing, find_estimator
from dpfuse.policy.policy import Constants, Networks, Policy, make_networks
from dpfuse.policy.structure import Structure

_VERSION = 5
# Settings of f and g, which E does not read.
_UNUSED_BY_E: dict[str, Any] = {
    "num_channels": 1,
    "expected_stay": 1.0,
    "recurrent_filter": "gru",
    "filter_size": 1,
    "fusion_size": 1,
    "partial_reports": False,
    "num_attributes": 0,
}


class _EstimatorArrays(eqx.Module):
    """The arrays that `estimate` reads: E's weights, and the public constants in the state's and budget's units."""

    estimator: Estimator
    squared_radius: Float[Array, ""]
    state_mean: Float[Array, " n_x"]
    state_std: Float[Array, " n_x"]
    std_scale: Float[Array, " n_x"]
    public_low: Float[Array, " n_p"] | None = None
    public_high: Float[Array, " n_p"] | None = None


def export_estimator(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Write E: a zip of .npy arrays and metadata.json, without pickle.

    The file has no signature; a centre signs it, see `dpfuse.public.signed_estimator`.
    """
    # Of the spending rule E needs to know whether it is constant, which decides whether there is a clock to read.
    spending = "constant" if policy.structure.spending == "constant" else "adaptive"
    constants, structure = policy.constants, replace(policy.structure, **_UNUSED_BY_E, spending=spending)
    by_state = constants.state_mean, constants.state_std, constants.std_scale
    by_input = constants.public_low, constants.public_high
    stored = _EstimatorArrays(policy.networks.estimator, constants.squared_radius, *by_state, *by_input)
    metadata = {
        "kind": "estimator",
        "version": _VERSION,
        "structure": {name: value for name, value in structure.to_dict().items() if name not in _UNUSED_BY_E},
        "fingerprint": fingerprint_of(structure, stored),
    }
    _archive.write(path, metadata, to_arrays(stored))


def import_estimator(path: str | os.PathLike[str], parts: Sequence[Part] = ()) -> Policy:
    """What `export_estimator` wrote, as a policy that can `estimate`; its f and g are 0.

    Args:
        path: of the file.
        parts: the class of E, if it is a user's own.

    Raises:
        FileRefused: the file is damaged, was changed, is of another version, or needs a class that is not in `parts`.
    """
    metadata, types = _archive.read_headers(path, "estimator")
    if metadata.get("version") != _VERSION:
        raise FileRefused(
            f"{path} has estimator version {metadata.get('version')!r}, this is {_VERSION}; export it again"
        )
    try:
        structure = Structure(**metadata["structure"], **_UNUSED_BY_E)
        blank = _blank(structure, parts)
        check_types(blank, types)
        stored = from_arrays(blank, _archive.read_arrays(path, "estimator"))
    except PartMissing as error:
        raise FileRefused(f"{path} cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise FileRefused(f"{path} is not an estimator that this version can read: {error}") from error
    if fingerprint_of(structure, stored) != metadata.get("fingerprint"):
        raise FileRefused(f"{path} was changed after it was written; its fingerprint does not match")
    by_state = stored.state_mean, stored.state_std, stored.std_scale
    constants = Constants(
        stored.squared_radius,
        jnp.zeros(1),
        jnp.ones(1),
        *by_state,
        public_low=stored.public_low,
        public_high=stored.public_high,
    )
    without_f_and_g = replace(structure, spending="constant", estimator="gru")
    shapes = jax.eval_shape(partial(make_networks, without_f_and_g), jax.random.key(0))
    # f and g are never read: one 0 stands for each array, whatever its shape.
    zeros = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), shapes)
    networks = Networks(zeros.recurrent_filter, zeros.spending, stored.estimator)
    return Policy(networks, constants, structure)


def _blank(structure: Structure, parts: Sequence[Part]) -> _EstimatorArrays:
    """The shapes of the arrays in the file; nothing is allocated."""
    if not structure.is_private:
        raise ValueError("its features must be bounded: the non-private floor may not be released")
    kind = find_estimator(structure.estimator, parts)

    def make(key: PRNGKeyArray) -> _EstimatorArrays:
        by_state = jnp.zeros(structure.num_states)
        by_input = jnp.zeros(structure.num_public) if structure.num_public else None
        constants = jnp.zeros(()), by_state, by_state, by_state, by_input, by_input
        return _EstimatorArrays(kind(structure, key=key), *constants)

    blank: _EstimatorArrays = jax.eval_shape(make, jax.random.key(0))
    return blank
