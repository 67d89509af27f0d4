"""The report on a design: its errors on test data with confidence intervals, and the budget that it spent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse import _check
from dpfuse._arrays import Floats, Integers
from dpfuse._frames import to_columns, to_frame, write_columns
from dpfuse.evaluation.bootstrap import block_interval, blocks_of
from dpfuse.evaluation.debits import exact_spending
from dpfuse.evaluation.simulate import simulate_windows
from dpfuse.guarantee import Guarantee
from dpfuse.policy.design import Design
from dpfuse.policy.faults import FAULTS
from dpfuse.policy.recordings import check_recording
from dpfuse.privacy.budget import as_loss, squared_steps
from dpfuse.privacy.conversion import Conversion, epsilons
from dpfuse.privacy.statement import NO_GUARANTEE, state_guarantee
from dpfuse.trajectories import Origin, Trajectories

# The shortest block of the bootstrap: a stop-and-go wave lasts two to three minutes, so shorter blocks are dependent.
_BLOCK_S = 180.0

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Nominal levels at which intervals of the estimator are checked, see `Report.calibration`."""
# In standard deviations of the estimate.
_HALF_WIDTHS = [NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS]


@dataclass(frozen=True, eq=False)
class Report:
    """The result of an evaluation.

    Attributes:
        mse: squared error of the estimate, averaged over steps, windows and coordinates of the state.
        ci95: the 95% interval of `mse`, by block bootstrap over time; None if the test data is too short for one.
        mse_per_step: shape (K,); `ci95_per_step`: shape (2, K), as `ci95`.
        coverage: the share of steps at which the estimator's 95% interval contains the state.
        calibration: the same share for the estimator's interval of each of `LEVELS`, by level; empty for a baseline.
        prior_mse: error of a constant estimate, the mean of the state in training.
        budget_per_step: Rényi loss of each step, shape (K,), see `SpendingSummary`; None without a guarantee, and for
            a baseline whose loss is known for all releases together only.
        budget_spent_max: the largest spending of a window (total) or of a sensor (individual), from exact accounts.
        within_budget: whether `budget_spent_max` is at most the budget, decided in integers.
        epsilon: the guarantee as (epsilon, delta), by the conversions of `dpfuse.privacy.epsilons`.
        statement: the guarantee in words.
        validation_quarters: the best validation error after each quarter of the updates, which tells how it fell in
            training; empty where it was not recorded.
        window_errors: squared error of each window; `origins`: where each was cut from; `blocks`: the bootstrap block
            of each.

    A report on private recordings is private: its errors, coverage and individual spending depend on them.
    """

    mse: float
    mse_per_step: Floats
    coverage: float
    prior_mse: float
    guarantee: Guarantee | None
    interval_s: float
    ci95: tuple[float, float] | None = None
    ci95_per_step: Floats | None = None
    budget_per_step: Floats | None = None
    budget_spent_max: float | None = None
    within_budget: bool | None = None
    epsilon: Mapping[Conversion, float] = field(default_factory=dict)
    delta: float = 1e-5
    statement: str = NO_GUARANTEE
    calibration: Mapping[float, float] = field(default_factory=dict)
    validation_quarters: Sequence[float] = ()
    window_errors: Floats = field(default_factory=lambda: np.zeros(0), repr=False)
    blocks: Integers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    origins: Sequence[Origin] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """All fields but those of single windows, as JSON takes them."""
        return {
            "mse": self.mse,
            "ci95": self.ci95,
            "mse_per_step": self.mse_per_step.tolist(),
            "ci95_per_step": None if self.ci95_per_step is None else self.ci95_per_step.tolist(),
            "coverage": self.coverage,
            "calibration": {f"{level:g}": share for level, share in self.calibration.items()},
            "prior_mse": self.prior_mse,
            "validation_quarters": list(self.validation_quarters),
            "guarantee": self.guarantee.to_dict() if self.guarantee else None,
            "budget_per_step": None if self.budget_per_step is None else self.budget_per_step.tolist(),
            "budget_spent_max": self.budget_spent_max,
            "within_budget": self.within_budget,
            "epsilon": dict(self.epsilon),
            "delta": self.delta,
            "num_windows": len(self.window_errors),
            "interval_s": self.interval_s,
        }

    def to_row(self) -> dict[str, Any]:
        """One flat row of numbers: guarantee, error with its interval, coverage and spending. For tables of designs."""
        guarantee = self.guarantee.to_dict() if self.guarantee else {}
        low, high = self.ci95 or (None, None)
        return guarantee | {
            "epsilon": min(self.epsilon.values(), default=None),
            "delta": self.delta,
            "mse": self.mse,
            "mse_low": low,
            "mse_high": high,
            "prior_mse": self.prior_mse,
            "coverage": self.coverage,
            "budget_spent_max": self.budget_spent_max,
            "within_budget": self.within_budget,
            "num_windows": len(self.window_errors),
        }

    def to_columns(self) -> dict[str, Any]:
        """Columns with one row for each step: error with its 95% interval, and Rényi loss."""
        steps = range(1, len(self.mse_per_step) + 1)
        columns = {"step": list(steps), "time_s": [self.interval_s * step for step in steps]}
        columns["mse"] = self.mse_per_step.tolist()
        if self.ci95_per_step is not None:
            columns |= dict(zip(("mse_low", "mse_high"), self.ci95_per_step.tolist(), strict=True))
        if self.budget_per_step is not None:
            columns["budget"] = self.budget_per_step.tolist()
        return columns

    def to_frame(self) -> Any:
        """The columns as a DataFrame, of polars or else of pandas."""
        return to_frame(self.to_columns())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the columns to a .csv, .json or .parquet file."""
        write_columns(self.to_columns(), path)


class Comparison(NamedTuple):
    """The errors of one design against those of a reference on the same windows; a ratio below 1 is better.

    Attributes:
        ratio: error of the design over error of the reference; `ci95`: its paired 95% interval, None if the test data
            is too short for one.
        difference: error of the design minus error of the reference; `difference_ci95`: as `ci95`.
    """

    ratio: float
    ci95: tuple[float, float] | None
    difference: float
    difference_ci95: tuple[float, float] | None

    def to_row(self) -> dict[str, Any]:
        """One flat row of numbers; None where there is no interval."""
        row: dict[str, Any] = {}
        for name, value, bounds in (("ratio", *self[:2]), ("difference", *self[2:])):
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), (value, *(bounds or (None, None))), strict=True))
        return row

    def to_frame(self) -> Any:
        """A DataFrame with one row, of polars or else of pandas."""
        return to_frame(to_columns([self.to_row()]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the row to a .csv, .json or .parquet file."""
        write_columns(to_columns([self.to_row()]), path)


def evaluate(
    design: Design,
    test: Trajectories,
    *,
    num_steps: int | None = None,
    stride: int | None = None,
    num_draws: int = 4,
    delta: float = 1e-5,
    seed: int = 0,
    fault: str | None = None,
    epoch_s: float | None = None,
) -> Report:
    """The report on a design that runs over windows of the test recordings.

    Args:
        num_steps: steps of a window; by default the horizon, and whole runs for a stationary design.
        stride: steps between the starts of windows, by default a quarter of a window.
        num_draws: runs of each window, each with fresh noise.
        delta: of the (epsilon, delta) statement.
        seed: of the simulated noise; designs that are evaluated with equal seeds get equal noise.
        fault: a fault of live streams that every window has, by its name in `dpfuse.policy.faults.FAULTS`.
        epoch_s: of the bank that lends to the centre (see `train`); by default that for which the design was trained.
    """
    epoch_s = design.training.get("epoch_s") if epoch_s is None else _check.is_positive("epoch_s", epoch_s)
    if fault is not None:
        _check.is_one_of("fault", fault, tuple(FAULTS))
    check_recording(design.structure, test, "test")
    length = (design.structure.horizon or test.num_steps) if num_steps is None else num_steps
    _check.is_count("num_steps", length)
    horizon, dimension = design.structure.horizon, design.structure.dimension
    if horizon is not None and (length > horizon or (design.structure.has_clock and length != horizon)):
        raise ValueError(f"num_steps must be the design's horizon, {horizon}, got {length}")
    windows = test.windows(length, max(1, length // 4) if stride is None else stride)
    _check.is_count("num_draws", num_draws)
    errors, inside = np.zeros((windows.num_runs, length)), np.zeros(len(LEVELS))
    spent_per_step, most_spent = np.zeros(length), 0
    for numbers, real, result in simulate_windows(
        design, windows, num_draws=num_draws, seed=seed, fault=fault, epoch_s=epoch_s
    ):
        squared = (result.mean - real.state).astype(np.float64) ** 2
        share = len(numbers) / (windows.num_runs * num_draws)
        errors[numbers] += squared.mean(axis=2).T / num_draws
        inside += [share * float(np.mean(squared <= (z * result.std) ** 2)) for z in _HALF_WIDTHS]
        if design.guarantee:
            spending = exact_spending(design, real, result)
            spent_per_step += share * spending.per_step
            most_spent = max(most_spent, spending.largest)
    calibration = dict(zip(LEVELS, inside.tolist(), strict=True))
    report = summarise(
        windows, errors, calibration[0.95], np.asarray(design.policy.constants.state_mean), design.guarantee, delta
    )
    history = design.training.get("validation_history", ())
    report = replace(report, calibration=calibration, validation_quarters=_quarters(history))
    if guarantee := design.guarantee:
        report = replace(
            report,
            budget_per_step=spent_per_step,
            budget_spent_max=as_loss(guarantee.order, most_spent),
            within_budget=most_spent <= squared_steps(guarantee),
            epsilon=epsilons(guarantee.order, guarantee.budget, delta, (horizon or length) * dimension),
            statement=state_guarantee(
                guarantee,
                horizon=horizon,
                dimension=dimension,
                has_inputs=design.structure.num_public > 0,
                delta=delta,
            ).to_text(),
        )
    return report


def _quarters(history: Sequence[float]) -> list[float]:
    """The smallest validation error after each quarter of the validations; none if there are fewer than four."""
    ends = [round(len(history) * quarter / 4) for quarter in (1, 2, 3, 4)]
    return [float(min(history[:end])) for end in ends] if len(history) >= len(ends) else []


def summarise(
    windows: Trajectories,
    errors: Floats,
    coverage: float,
    state_mean: NDArray[Any],
    guarantee: Guarantee | None,
    delta: float,
) -> Report:
    """The report on squared errors of shape (windows, K), without the fields on spending."""
    blocks = blocks_of(windows, max(2 * windows.num_steps, round(_BLOCK_S / windows.interval_s)))
    return Report(
        mse=float(errors.mean()),
        ci95=_pair(block_interval(errors.mean(1, keepdims=True), blocks, lambda means: means[:, 0])),
        mse_per_step=errors.mean(0),
        ci95_per_step=block_interval(errors, blocks, lambda means: means),
        coverage=coverage,
        prior_mse=float(np.mean((windows.state - state_mean) ** 2)),
        guarantee=guarantee,
        interval_s=windows.interval_s,
        delta=delta,
        window_errors=errors.mean(1),
        blocks=blocks,
        origins=windows.origins,
    )


def compare(report: Report, reference: Report) -> Comparison:
    """The errors of a report against those of a reference, paired by window."""
    if tuple(report.origins) != tuple(reference.origins) or len(report.blocks) != len(reference.blocks):
        raise ValueError("report and reference must come from the same windows; evaluate both on the same test data")
    pairs = np.stack([report.window_errors, reference.window_errors], axis=1)
    return Comparison(
        ratio=report.mse / reference.mse,
        ci95=_pair(block_interval(pairs, report.blocks, lambda means: means[:, 0] / means[:, 1])),
        difference=report.mse - reference.mse,
        difference_ci95=_pair(block_interval(pairs, report.blocks, lambda means: means[:, 0] - means[:, 1])),
    )


def _pair(interval: Floats | None) -> tuple[float, float] | None:
    return None if interval is None else (float(interval[0]), float(interval[1]))
