"""Reports as JSON takes them, and back without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from dpfuse.evaluation.report import Report
from dpfuse.guarantee import Guarantee
from dpfuse.trajectories import Origin

_ARRAYS = ("mse_per_step", "ci95_per_step", "budget_per_step", "window_errors")


def report_to_dict(report: Report) -> dict[str, Any]:
    """All fields, those of single windows too."""
    made = {field.name: getattr(report, field.name) for field in fields(Report)}
    return made | {
        **{name: None if made[name] is None else made[name].tolist() for name in _ARRAYS},
        "guarantee": report.guarantee and report.guarantee.to_dict(),
        "blocks": report.blocks.tolist(),
        "origins": [list(origin) for origin in report.origins],
        "epsilon": dict(report.epsilon),
        "validation_quarters": list(report.validation_quarters),
        "calibration": [list(pair) for pair in report.calibration.items()],
    }


def report_from_dict(values: Mapping[str, Any]) -> Report:
    """The report that `report_to_dict` was given."""
    arrays = {name: None if values[name] is None else np.asarray(values[name], np.float64) for name in _ARRAYS}
    made = dict(values) | arrays
    made["guarantee"] = Guarantee(**values["guarantee"]) if values["guarantee"] else None
    made["ci95"] = None if values["ci95"] is None else tuple(values["ci95"])
    made["blocks"] = np.asarray(values["blocks"], np.int64)
    made["origins"] = tuple(Origin(*origin) for origin in values["origins"])
    made["calibration"] = {level: share for level, share in values["calibration"]}
    return Report(**made)
