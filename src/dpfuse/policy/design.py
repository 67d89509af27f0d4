"""A finished design: policy and estimator with the guarantee they were made for, in a file that holds no code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from dpfuse import _archive, _check
from dpfuse.errors import FileRefused
from dpfuse.guarantee import Guarantee
from dpfuse.policy.array_tree import check_types, fingerprint_of, from_arrays, to_arrays
from dpfuse.policy.card import card_text, make_card
from dpfuse.policy.estimator_file import export_estimator
from dpfuse.policy.parts import Part, PartMissing, find_spending, part_name
from dpfuse.policy.policy import Constants, Policy, make_policy
from dpfuse.policy.spending import SPENDING_RULES, AgentSpending, SpendingRule
from dpfuse.policy.structure import Structure, check_end
from dpfuse.privacy.loss import charge_factor

_VERSION = 4
SHIPPED = Path(__file__).parents[1] / "designs"


class HasDict(Protocol):
    """What a card reads of a `dpfuse.Report`."""

    def to_dict(self) -> dict[str, Any]: ...


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
        object.__setattr__(self, "interval_s", _check.is_positive("interval_s", float(self.interval_s)))
        structure, guarantee = self.structure, self.guarantee
        if (guarantee is None) == structure.is_private:
            raise ValueError("a design must have a guarantee if its features are bounded, and only then")
        if guarantee is None or structure.features == "unbounded":
            return
        check_end(guarantee, structure.horizon)
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
        attribute_range: tuple[Any, Any] = (-1.0, 1.0),
        public_range: tuple[Any, Any] = (-1.0, 1.0),
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
            attribute_range, public_range: the same for each attribute and each public input, where there are some.
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
        low, high = (jnp.full(made.num_channels, np.asarray(bound, np.float32)) for bound in measurement_range)
        by_state = (state_mean, state_std, 1.0)
        mean, std, scale = (jnp.full(made.num_states, np.asarray(value, np.float32)) for value in by_state)
        fill = (low + high) / 2 if made.partial_reports else None
        sizes = made.num_attributes, made.num_attributes, made.num_public, made.num_public
        bounds = (
            jnp.full(size, np.asarray(bound, np.float32)) if size else None
            for size, bound in zip(sizes, (*attribute_range, *public_range), strict=True)
        )
        constants = Constants(jnp.asarray(radius), low, high, mean, std, scale, fill, *bounds)
        return cls(make_policy(made, constants, key=jax.random.key(seed), parts=own), guarantee, interval_s)

    @property
    def structure(self) -> Structure:
        return self.policy.structure

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of everything that decides what is released, to bind a ledger to this design."""
        return fingerprint_of((self.structure, self.guarantee, self.interval_s), self.policy)

    @property
    def card(self) -> dict[str, Any]:
        """Guarantee, training data, settings, errors and limits, as JSON takes them; `dpfuse card` prints it."""
        return make_card(self)

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Name and unit, as "density [veh/km]", of each coordinate (`state`), channel and public input, if known."""
        found, structure = self.training.get("labels"), self.structure
        sizes = {"state": structure.num_states, "channels": structure.num_channels, "public": structure.num_public}
        given = found if isinstance(found, Mapping) else {}
        return {
            name: tuple(str(label) for label in given[name])
            for name, size in sizes.items()
            if size and isinstance(given.get(name), Sequence) and len(given[name]) == size
        }

    def with_labels(
        self, state: Sequence[str] = (), channels: Sequence[str] = (), public: Sequence[str] = ()
    ) -> Design:
        """This design with a name and unit for each coordinate of the state, channel of a measurement and public input.

        Page, metrics and `/v1/guarantee` show them. They change nothing that is released.
        """
        structure, given = self.structure, {"state": list(state), "channels": list(channels), "public": list(public)}
        sizes = {"state": structure.num_states, "channels": structure.num_channels, "public": structure.num_public}
        for name, size in sizes.items():
            if given[name] and len(given[name]) != size:
                raise ValueError(f"{name} must hold {size} labels, got {len(given[name])}")
        kept = {name: list(labels) for name, labels in self.labels.items()}
        named = kept | {name: labels for name, labels in given.items() if labels}
        return replace(self, training=self.training | {"labels": named})

    def with_spending(self, rule: SpendingRule) -> Design:
        """This design with another spending rule g: f, E and the guarantee stay.

        The budget holds for any rule. How good the estimates are with it is for `dpfuse.evaluate` to say: the record of
        errors starts anew.

        Args:
            rule: an `AgentSpending`, or an object of a class of your own, see `SpendingRule`.
        """
        kind = type(rule)
        name = next((name for name, part in SPENDING_RULES.items() if part is kind), part_name(kind))
        width = rule.width if isinstance(rule, AgentSpending) else self.structure.fusion_size
        reads_step = name == "constant" and self.structure.has_clock
        structure = replace(self.structure, spending=name, fusion_size=width, reads_step=reads_step)
        if structure.has_clock != self.structure.has_clock:
            raise ValueError(
                f"with_spending must not give a design without a clock a rule that reads one, got {name!r}: E was not "
                "trained to read it; train a design with the new rule"
            )
        fresh = jax.eval_shape(partial(find_spending(name, [kind]), structure), key=jax.random.key(0))
        given = from_arrays(fresh, to_arrays(rule))
        networks = replace(self.policy.networks, spending=given)
        kept = {name: self.training[name] for name in ("data",) if name in self.training}
        policy = Policy(networks, self.policy.constants, structure)
        return replace(self, policy=policy, training=kept | {"method": "g replaced after training"})

    def save(self, path: str | os.PathLike[str], *, report: HasDict | None = None) -> None:
        """Write the design: a zip of .npy arrays and metadata.json, without pickle. The metadata hold the card.

        Args:
            path: of the file.
            report: the `dpfuse.Report` on test data, for the card. It becomes as public as the file.
        """
        if report is not None:
            replace(self, training=self.training | {"test": report.to_dict()}).save(path)
            return
        card = make_card(self)
        metadata = {
            "kind": "design",
            "version": _VERSION,
            "structure": self.structure.to_dict(),
            "guarantee": self.guarantee.to_dict() if self.guarantee else None,
            "interval_s": self.interval_s,
            "training": self.training,
            "fingerprint": self.fingerprint,
            "card": card | {"text": card_text(card).splitlines()},
        }
        _archive.write(path, metadata, to_arrays(self.policy))

    def export_estimator(self, path: str | os.PathLike[str]) -> None:
        """Write E alone, for those who read the releases, see `RemoteEstimator`. Nothing of f and g is in the file.

        The file has no signature, and its reader cannot tell whose the releases are. A centre hands out the same file
        with its signature.
        """
        if self.guarantee is None:
            raise ValueError("a design must have a guarantee to be released; the non-private floor has none")
        export_estimator(self.policy, path)


def find_design(path: str | os.PathLike[str]) -> Path:
    """The file of a design: the path itself or, for a name without a file, the design that comes with dpfuse."""
    shipped = SHIPPED / f"{os.fspath(path)}.dpfuse"
    is_shipped = not Path(path).is_file() and shipped.parent == SHIPPED and shipped.is_file()
    return shipped if is_shipped else Path(path)


def load(path: str | os.PathLike[str], parts: Sequence[Part] = ()) -> Design:
    """The design in a file that `Design.save` wrote, or one that comes with dpfuse.

    Args:
        path: of the file; `freeway` is the design that `dpfuse live` runs.
        parts: the classes of those parts of the design that are your own. The file names them and holds no code.

    Raises:
        FileRefused: the file is damaged, was changed, is of another version, or needs a class that is not in `parts`.
    """
    path = find_design(path)
    metadata, types = _archive.read_headers(path, "design")
    if metadata.get("version") != _VERSION:
        raise FileRefused(f"{path} has design version {metadata.get('version')!r}, this is {_VERSION}; train it again")
    try:
        structure = Structure(**metadata["structure"])
        guarantee = Guarantee(**metadata["guarantee"]) if metadata["guarantee"] else None
        blank = _blank(structure, parts)
        check_types(blank, types)
        # The floor alone has no budget.
        may_be_infinite = "" if structure.is_private else "constants.squared_radius"
        policy = from_arrays(blank, _archive.read_arrays(path, "design"), may_be_infinite)
        design = Design(policy, guarantee, float(metadata["interval_s"]), dict(metadata["training"]))
    except PartMissing as error:
        raise FileRefused(f"{path} cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise FileRefused(f"{path} is not a design that this version can read: {error}") from error
    if design.fingerprint != metadata.get("fingerprint"):
        raise FileRefused(f"{path} was changed after it was written; its fingerprint does not match")
    return design


def _blank(structure: Structure, parts: Sequence[Part]) -> Policy:
    """The shapes of the policy's arrays; nothing is allocated."""

    def make(key: PRNGKeyArray) -> Policy:
        by_channel, by_state = jnp.zeros(structure.num_channels), jnp.zeros(structure.num_states)
        fill = by_channel if structure.partial_reports else None
        sizes = structure.num_attributes, structure.num_attributes, structure.num_public, structure.num_public
        bounds = [jnp.zeros(size) if size else None for size in sizes]
        constants = Constants(jnp.zeros(()), by_channel, by_channel, by_state, by_state, by_state, fill, *bounds)
        return make_policy(structure, constants, key=key, parts=parts)

    blank: Policy = jax.eval_shape(make, jax.random.key(0))
    return blank
