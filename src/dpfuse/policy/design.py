"""A finished design: policy and estimator with the guarantee they were made for, in a file that holds no code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpfuse import _archive
from dpfuse.errors import FileRefused
from dpfuse.policy.array_tree import fingerprint_of, from_arrays, to_arrays
from dpfuse.policy.estimator_file import export_estimator
from dpfuse.policy.parts import Part, PartMissing, part_name
from dpfuse.policy.policy import Constants, Policy, make_policy
from dpfuse.policy.structure import Structure
from dpfuse.privacy.loss import charge_factor
from dpfuse.types import Guarantee

_VERSION = 2


@dataclass(frozen=True, eq=False)
class Design:
    """A fusion policy and estimator, ready to be evaluated or run.

    Attributes:
        policy: networks, constants and structure.
        guarantee: what the releases satisfy; None for the non-private floor, which may never be released.
        interval_s: seconds between releases.
        training: how it was made, for the record.
    """

    policy: Policy
    guarantee: Guarantee | None
    interval_s: float
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval_s", float(self.interval_s))
        structure, guarantee = self.structure, self.guarantee
        if (guarantee is None) == structure.is_private:
            raise ValueError("a design must have a guarantee if its features are bounded, and only then")
        if guarantee is None or structure.features == "unbounded":
            return
        factor = charge_factor(structure.features, structure.dimension, guarantee.adjacency, guarantee.accounting)
        if (structure.accounting, structure.charge_factor) != (guarantee.accounting, factor):
            raise ValueError(f"a design for {guarantee} must have its accounting and charge factor {factor}")
        if np.float32(self.policy.constants.squared_radius) != np.float32(float(guarantee.squared_radius)):
            raise ValueError(f"a design for {guarantee} must have its squared radius {float(guarantee.squared_radius)}")

    @classmethod
    def untrained(
        cls,
        guarantee: Guarantee | None,
        *,
        measurement_range: tuple[Any, Any] = (-1.0, 1.0),
        state_mean: Any = 0.0,
        state_std: Any = 1.0,
        interval_s: float = 1.0,
        seed: int = 0,
        **structure: Any,
    ) -> Design:
        """A design with fresh weights, which spends evenly; for benchmarks, tests and first steps.

        Args:
            guarantee: as above.
            measurement_range: (low, high), each a number or one for each channel.
            state_mean, state_std: a number or one for each coordinate of the state.
            interval_s: as above.
            seed: of the weights.
            **structure: fields of `Structure`, but for accounting and charge factor, which follow from the guarantee.
                A part may be a class of your own.
        """
        own = [part for part in structure.values() if isinstance(part, type)]
        named = {name: part_name(value) if isinstance(value, type) else value for name, value in structure.items()}
        made = Structure.for_guarantee(guarantee, **cast(dict[str, Any], named))
        radius = np.float32(float(guarantee.squared_radius) if guarantee else np.inf)
        by_channel = (jnp.full(made.num_channels, np.asarray(bound, np.float32)) for bound in measurement_range)
        by_state = (jnp.full(made.num_states, np.asarray(value, np.float32)) for value in (state_mean, state_std))
        constants = Constants(jnp.asarray(radius), *by_channel, *by_state)
        return cls(make_policy(made, constants, key=jax.random.key(seed), parts=own), guarantee, interval_s)

    @property
    def structure(self) -> Structure:
        return self.policy.structure

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of everything that decides what is released, to bind a ledger to this design."""
        return fingerprint_of((self.structure, self.guarantee, self.interval_s), self.policy)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the design: a zip of .npy arrays and metadata.json, without pickle."""
        metadata = {
            "kind": "design",
            "version": _VERSION,
            "structure": self.structure.to_dict(),
            "guarantee": self.guarantee.to_dict() if self.guarantee else None,
            "interval_s": self.interval_s,
            "training": self.training,
            "fingerprint": self.fingerprint,
        }
        _archive.write(path, metadata, to_arrays(self.policy))

    def export_estimator(self, path: str | os.PathLike[str]) -> None:
        """Write E alone, for those who read the releases, see `RemoteEstimator`. Nothing of f and g is in the file."""
        if self.guarantee is None:
            raise ValueError("a design must have a guarantee to be released; the non-private floor has none")
        export_estimator(self.policy, path)


def load(path: str | os.PathLike[str], parts: Sequence[Part] = ()) -> Design:
    """The design in a file that `Design.save` wrote.

    Args:
        path: of the file.
        parts: the classes of those parts of the design that are your own. The file names them and holds no code.

    Raises:
        FileRefused: the file is damaged, was changed, is of another version, or needs a class that is not in `parts`.
    """
    metadata, arrays = _archive.read(path, "design")
    if metadata.get("version") != _VERSION:
        raise FileRefused(f"{path} has design version {metadata.get('version')!r}, this is {_VERSION}; train it again")
    try:
        structure = Structure(**metadata["structure"])
        guarantee = Guarantee(**metadata["guarantee"]) if metadata["guarantee"] else None
        policy = _from_arrays(structure, arrays, parts)
        design = Design(policy, guarantee, float(metadata["interval_s"]), metadata["training"])
    except PartMissing as error:
        raise FileRefused(f"{path} cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise FileRefused(f"{path} is not a design that this version can read: {error}") from error
    if design.fingerprint != metadata.get("fingerprint"):
        raise FileRefused(f"{path} was changed after it was written; its fingerprint does not match")
    return design


def _from_arrays(structure: Structure, arrays: dict[str, NDArray[Any]], parts: Sequence[Part]) -> Policy:
    by_channel, by_state = jnp.zeros(structure.num_channels), jnp.zeros(structure.num_states)
    constants = Constants(jnp.zeros(()), by_channel, by_channel, by_state, by_state)
    make = partial(make_policy, structure, constants, parts=parts)
    blank: Policy = jax.eval_shape(lambda key: make(key=key), jax.random.key(0))
    # The floor alone has no budget.
    return from_arrays(blank, arrays, may_be_infinite="" if structure.is_private else "constants.squared_radius")
