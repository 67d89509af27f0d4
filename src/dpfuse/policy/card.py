"""The design card: what a design guarantees, what it was trained on, how good it is, and where its limits are.

The part on privacy has the fields of the public registry of deployments of differential privacy where they fit: unit,
neighbours, loss, trust model, mechanism and accounting. It is computed from the design itself. Errors are what the
maker of the file recorded: nothing in the file proves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpfuse.privacy.statement import NO_GUARANTEE, Statement, state_guarantee

if TYPE_CHECKING:
    from dpfuse.policy.design import Design
    from dpfuse.policy.structure import Structure
    from dpfuse.trajectories import Trajectories

_LIMITS = (
    "Errors and calibration were measured on data like the training data. On other data they are unknown.",
    "Finite measurements outside the range of the design are clipped to it.",
)
_ATTRIBUTES = "Not covered: attributes of sensors, which are public and read by their features."
_NOT_RECORDED = "not recorded"


def make_card(design: Design) -> dict[str, Any]:
    """The card as JSON takes it."""
    structure, constants, training, stated = design.structure, design.policy.constants, design.training, _state(design)
    tested = training.get("test")
    tested = tested if isinstance(tested, Mapping) else {}
    return {
        "fingerprint": design.fingerprint,
        "privacy": {"in_words": [NO_GUARANTEE]} if stated is None else _privacy(stated),
        "mechanism": {
            "releases": "without end" if structure.horizon is None else structure.horizon,
            "interval_s": design.interval_s,
            "numbers_per_release": structure.dimension,
            "features": structure.features,
            "recurrent_filter": structure.recurrent_filter,
            "spending": structure.spending,
            "estimator": structure.estimator,
            "measurement_low": constants.measurement_low.tolist(),
            "measurement_high": constants.measurement_high.tolist(),
            "reports_may_lack_channels": structure.partial_reports,
            "attributes": _numbers(structure.num_attributes, constants.attribute_low, constants.attribute_high),
            "public_inputs": _numbers(structure.num_public, constants.public_low, constants.public_high),
            "expected_sensors": structure.expected_sensors,
        },
        "training_data": training.get("data", _NOT_RECORDED),
        "settings": {name: training[name] for name in ("method", "seed", "window", "optimisation") if name in training},
        "errors": {
            "unit": "squared error, in the squared units of the state",
            "state_std_in_training": constants.state_std.tolist(),
            "validation": training.get("validation_mse", _NOT_RECORDED),
            "test": {name: tested[name] for name in _TESTED if name in tested} if tested else _NOT_RECORDED,
        },
        "calibration": tested.get("calibration") or _NOT_RECORDED,
        "limits": [*(() if stated is None else _privacy_limits(stated, structure)), *_LIMITS],
    }


_TESTED = "mse", "ci95", "prior_mse", "coverage", "budget_spent_max", "within_budget", "num_windows"


def _numbers(count: int, low: Any, high: Any) -> dict[str, Any] | str:
    """How many attributes or public inputs networks read, and the range to which each is clipped."""
    return {"count": count, "low": low.tolist(), "high": high.tolist()} if count else "none"


def _state(design: Design) -> Statement | None:
    if design.guarantee is None:
        return None
    structure = design.structure
    return state_guarantee(
        design.guarantee,
        horizon=structure.horizon,
        dimension=structure.dimension,
        has_inputs=structure.num_public > 0,
    )


def _privacy_limits(stated: Statement, structure: Structure) -> list[str]:
    words = stated.to_dict()
    limits = [f"Assumed: {each}" for each in words["assumed"]] + [f"Not covered: {each}" for each in words["uncovered"]]
    return limits + ([_ATTRIBUTES] if structure.num_attributes else [])


def _privacy(stated: Statement) -> dict[str, Any]:
    facts, words = dict(stated.facts), stated.to_dict()
    return {
        "in_words": words["in_words"],
        "unit": facts["Unit of privacy"],
        "neighbours": facts["Neighbouring worlds"],
        "accounting": facts["Accounting"],
        "parameters": words["guarantee"],
        "delta": words["delta"],
        "epsilon": words["epsilon"],
        "chance_to_tell": words["chance_to_tell"],
        "trust_model": "central: a fusion centre that the sensors trust adds the noise",
        "mechanism": "discrete Gaussian noise on a sum of bounded contributions, in integers",
    }


def card_text(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    lines = ["# Design card", "", f"Design {card['fingerprint'][:16]}.", "", "## Guarantee", ""]
    privacy = dict(card["privacy"])
    lines += [f"- {sentence}" for sentence in privacy.pop("in_words")]
    lines += _listed(privacy)
    for title in ("mechanism", "training_data", "settings", "errors", "calibration"):
        lines += ["", f"## {title.replace('_', ' ').capitalize()}", "", *_listed(card[title])]
    lines += ["", "## Limits", "", *(f"- {limit}" for limit in card["limits"])]
    return "\n".join(lines)


def _listed(values: Mapping[str, Any] | str, indent: str = "") -> list[str]:
    if isinstance(values, str):
        return [f"{indent}- {values}"]
    lines = []
    for name, value in values.items():
        label = f"{indent}- {name.replace('_', ' ')}:"
        if isinstance(value, Mapping):
            lines += [label, *_listed(value, indent + "  ")]
        else:
            lines.append(f"{label} {_shown(value)}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)


def describe_recording(data: Trajectories) -> dict[str, Any]:
    """What the design card says of a recording."""
    return {
        "runs": data.num_runs,
        "steps_per_run": data.num_steps,
        "interval_s": data.interval_s,
        "states": data.state.shape[-1],
        "channels": data.measurements.shape[-1],
        "sensors_present_on_average": round(float(data.present.sum(-1).mean()), 2),
        "attributes": 0 if data.attributes is None else data.attributes.num_attributes,
        "public_inputs": _public_names(data),
    } | ({"reports_with_missing_channels": data.num_partial} if data.num_partial else {})


def _public_names(data: Trajectories) -> list[str] | int:
    """The names of the public inputs, or how many there are where the recording has no names for them."""
    count = 0 if data.public is None else data.public.shape[-1]
    names = [] if data.labels is None else list(data.labels.public)
    return names if count and len(names) == count else count
