"""The result of a sweep: a tidy table, the designs and their reports, and figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpfuse._frames import to_columns, to_frame, write_columns
from dpfuse.evaluation.bootstrap import block_interval
from dpfuse.evaluation.report import Report
from dpfuse.policy.design import Design, load
from dpfuse.policy.parts import Part
from dpfuse.sweeps.grid import Case, period_in_words
from dpfuse.sweeps.reports import report_from_dict
from dpfuse.sweeps.store import SweepStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GROUPED = "recording", "setting", "order", "budget", "adjacency", "accounting", "period"


class SweepFailure(NamedTuple):
    """A design that was not made, and why."""

    design: str
    reason: str


@dataclass(frozen=True, eq=False)
class SweepResult:
    """What a sweep has made.

    Attributes:
        rows: one for each design: recording, setting, guarantee, seed, what the design looks like, errors with 95%
            intervals, spending, coverage, time, and the path of its file.
        reports: the `Report` on each, in the same order.
        failures: designs that were not made.
        folder: that holds the files.
    """

    rows: Sequence[dict[str, Any]]
    reports: Sequence[Report] = field(repr=False)
    failures: Sequence[SweepFailure]
    folder: Path
    _kept: Any = field(default=None, repr=False)

    @classmethod
    def collect(
        cls, store: SweepStore, cases: Sequence[Case], failures: Sequence[SweepFailure], kept: Any = None
    ) -> SweepResult:
        """The result in the folder of a sweep, in the order of its grid."""
        done = store.read()
        rows, reports = [], []
        for case in cases:
            if (entry := done.get(case.fingerprint)) is not None:
                reports.append(report_from_dict(entry["report"]))
                rows.append(_make_row(case, entry, reports[-1], store.folder))
        return cls(rows, reports, list(failures), store.folder, kept)

    def select(self, **columns: Any) -> SweepResult:
        """The designs whose rows have these values, such as `select(setting="classical", budget=0.5)`."""
        if unknown := set(columns) - {name for row in self.rows for name in row}:
            raise ValueError(f"columns must be among those of the table, got {sorted(unknown)}")
        chosen = [n for n, row in enumerate(self.rows) if all(row.get(k) == value for k, value in columns.items())]
        return replace(self, rows=[self.rows[n] for n in chosen], reports=[self.reports[n] for n in chosen])

    def designs(self, parts: Sequence[Part] = ()) -> list[Design]:
        """The designs, read from their files, in the order of the rows; `parts` as in `dpfuse.load`."""
        return [load(row["design"], parts) for row in self.rows]

    def summary(self) -> list[dict[str, Any]]:
        """One row for each recording, setting and guarantee: the mean over seeds, and how much seeds differ.

        The 95% interval is that of the mean over seeds of the error in each window, by block bootstrap over time.
        """
        several: dict[tuple[Any, ...], list[int]] = {}
        for number, row in enumerate(self.rows):
            several.setdefault(tuple(row.get(name) for name in _GROUPED), []).append(number)
        summary = []
        for key, numbers in several.items():
            reports = [self.reports[number] for number in numbers]
            errors = np.mean([report.window_errors for report in reports], axis=0)
            bounds = block_interval(errors[:, None], reports[0].blocks, lambda means: means[:, 0])
            low, high = (None, None) if bounds is None else map(float, bounds)
            spread = float(np.std([report.mse for report in reports], ddof=1)) if len(reports) > 1 else None
            spent = [report.budget_spent_max for report in reports if report.budget_spent_max is not None]
            summary.append(
                dict(zip(_GROUPED, key, strict=True))
                | {
                    "epsilon": self.rows[numbers[0]]["epsilon"],
                    "num_seeds": len(reports),
                    "mse": float(errors.mean()),
                    "mse_low": low,
                    "mse_high": high,
                    "seed_std": spread,
                    "coverage": float(np.mean([report.coverage for report in reports])),
                    "budget_spent_max": max(spent, default=None),
                    "within_budget": all(report.within_budget for report in reports) if spent else None,
                    "prior_mse": reports[0].prior_mse,
                }
            )
        return summary

    def to_frame(self) -> Any:
        """The table as a DataFrame, of polars or else of pandas."""
        return to_frame(to_columns(self.rows))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a .csv, .json or .parquet file."""
        write_columns(to_columns(self.rows), path)

    def save_tables(self) -> list[Path]:
        """The paths of `table` and `summary`, written into the folder as .csv and, with pyarrow, as .parquet."""
        kinds = [".csv", *([".parquet"] if find_spec("pyarrow") else [])]
        paths = []
        for name, rows in {"table": self.rows, "summary": self.summary()}.items():
            for kind in kinds if rows else ():
                paths.append(self.folder / f"{name}{kind}")
                write_columns(to_columns(rows), paths[-1])
        return paths

    def to_text(self) -> str:
        """The summary as a Markdown table."""
        heads = ["recording", "setting", "guarantee", "seeds", "squared error", "95% interval", "seed std", "coverage"]
        lines = [heads, ["---"] * len(heads), *map(_cells, self.summary())]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def figures(self) -> dict[str, Figure]:
        """Figures by name: error against budget, spread of seeds, price of privacy; for each recording."""
        from dpfuse.sweeps.figures import draw_result

        return draw_result(self)


def _make_row(case: Case, entry: dict[str, Any], report: Report, folder: Path) -> dict[str, Any]:
    made = dict(entry["row"])
    choices = {name: value for name, value in case.setting.choices.items() if name not in made and _is_plain(value)}
    looks = ("spending", "method", "horizon", "recurrent_filter", "features", "dimension")
    return (
        {"recording": case.recording, "setting": case.setting.name}
        | choices
        | {name: made.pop(name) for name in looks}
        | {"order": None, "budget": None, "adjacency": None, "accounting": None, "period": None, "seed": case.seed}
        | report.to_row()
        | {"period": period_in_words(case.guarantee)}
        | made
        | {"design": str(folder / entry["design"])}
    )


def _cells(row: dict[str, Any]) -> list[str]:
    guarantee = "none"
    if row["budget"] is not None:
        period = "" if row["period"] is None else f" per {row['period']}"
        guarantee = f"{row['budget']:g}{period} at order {row['order']:g}, {row['adjacency']}, {row['accounting']}"
    interval = "" if row["mse_low"] is None else f"{row['mse_low']:.4g} to {row['mse_high']:.4g}"
    spread = "" if row["seed_std"] is None else f"{row['seed_std']:.2g}"
    cells = [row["recording"], row["setting"], guarantee, str(row["num_seeds"])]
    return [*cells, f"{row['mse']:.4g}", interval, spread, f"{row['coverage']:.0%}"]


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)
