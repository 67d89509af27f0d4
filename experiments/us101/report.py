"""From the pieces to results.json and the tables of the page; figures are drawn in figures.py."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dpfuse._arrays import Floats, Integers
from dpfuse.evaluation.bootstrap import block_interval
from experiments.us101 import figures, pieces
from experiments.us101.pieces import ADJACENCIES, WHO_REPORTS, Piece, path_of
from experiments.us101.traffic import MORE_TESTS, NUM_TESTS

HERE = Path(__file__).parent
INTERVAL_S = 0.2
# One piece of evidence: 30 s of the short test part (nine of them), 3 minutes, the length of a wave, of the folds.
BLOCK_S, FOLD_BLOCK_S = 30.0, 180.0
SIMULATED = "with simulated traffic"


class Evidence:
    """The tested designs of one piece, or of its folds together."""

    def __init__(self, folder: Path, piece: Piece, num_folds: int | None = None) -> None:
        numbers: list[int | None] = [piece.fold] if num_folds is None else list(range(num_folds))
        parts = [_read(folder, replace(piece, fold=number)) for number in numbers]
        self.designs = {
            budget: [[d for d in part["designs"] if d["budget"] == budget] for part in parts]
            for budget in dict.fromkeys(design["budget"] for design in parts[0]["designs"])
        }
        first = [next(iter(of_fold)) for of_fold in next(iter(self.designs.values()))]
        starts = np.concatenate([np.asarray(design["window_starts"]) for design in first])
        block_s = BLOCK_S if num_folds is None else FOLD_BLOCK_S
        self.blocks = np.unique(starts // round(block_s / INTERVAL_S), return_inverse=True)[1]
        self.prior_mse = float(np.mean([design["prior_mse"] for design in first]))

    def errors(self, budget: float | None) -> Floats:
        """Squared error of each window, the mean over seeds."""
        by_fold = self.designs[budget]
        return np.concatenate([np.mean([d["window_errors"] for d in designs], axis=0) for designs in by_fold])

    def mean(self, budget: float | None, name: str) -> Any:
        """The mean over seeds and folds of a figure, or of one for each step."""
        return np.mean([design[name] for of_fold in self.designs[budget] for design in of_fold], axis=0)

    def row(self, budget: float | None, reference: Evidence | None = None) -> dict[str, Any]:
        """One line of a table; against the reference, paired window by window."""
        own = self.errors(budget)
        seeds = np.mean([[design["mse"] for design in of_fold] for of_fold in self.designs[budget]], axis=0)
        spent = [design["budget_spent_max"] for of_fold in self.designs[budget] for design in of_fold]
        row = {
            "budget": budget,
            "mse": float(own.mean()),
            "ci95": _interval(own[:, None], self.blocks, lambda m: m[:, 0]),
            "seed_std": float(np.std(seeds, ddof=1)) if len(seeds) > 1 else None,
            "validation_mse": float(self.mean(budget, "validation_mse")),
            "coverage": float(self.mean(budget, "coverage")),
        }
        if budget is not None:
            over = [not d["within_budget"] for of_fold in self.designs[budget] for d in of_fold]
            epsilon = self.designs[budget][0][0]["epsilon"]
            row |= {"most_spent": max(spent), "num_over_budget": sum(over), "epsilon": epsilon}
        if reference is not None and reference is not self:
            pairs = np.stack([own, reference.errors(budget)], axis=1)
            row |= {
                "ratio": float(pairs[:, 0].mean() / pairs[:, 1].mean()),
                "ratio_ci95": _interval(pairs, self.blocks, lambda m: m[:, 0] / m[:, 1]),
                "difference_ci95": _interval(pairs, self.blocks, lambda m: m[:, 0] - m[:, 1]),
            }
        return row

    def rows(self, reference: Evidence | None = None) -> list[dict[str, Any]]:
        return [self.row(budget, reference) for budget in self.designs]


def write_report(folder: Path, *, quick: bool = False, guided_alone: bool = False) -> None:
    """Everything that the pieces in the folder tell: results.json, tables.md and figures.

    If `guided_alone`, what else the results of record hold is kept.
    """
    if guided_alone:
        results = json.loads((HERE / "results.json").read_text())["results"] | {"guided": guided(folder)}
    elif quick:
        results = {"command": "make us101-quick"} | quick_results(folder)
    else:
        results = {"command": "make us101 DATA=DIR"} | record(folder)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    text = "\n\n".join(tables(results))
    (folder / "tables.md").write_text(text + "\n")
    figures.draw(results, folder, guided_alone=guided_alone)
    print(f"{text}\n\nResults, tables and figures are in {folder}/")


def quick_results(folder: Path) -> dict[str, Any]:
    """One budget, one seed."""
    found = {piece.label: Evidence(folder, piece) for piece in pieces.quick()}
    return {"machine": machine(folder), "split": {"remove-one": _against_classical(found)}} | _yardsticks(
        found["floor"]
    )


def record(folder: Path) -> dict[str, Any]:
    """The whole study."""
    plan = {adjacency: [p for p in pieces.headline() if p.adjacency == adjacency] for adjacency in ADJACENCIES}
    split = {
        adjacency: {piece.kind: Evidence(folder, piece) for piece in plan[adjacency] if piece.kind != "floor"}
        for adjacency in ADJACENCIES
    }
    (floor,) = (Evidence(folder, piece) for piece in pieces.headline() if piece.kind == "floor")
    results: dict[str, Any] = {"machine": machine(folder), "choice": _choice(folder, pieces.candidates())}
    results |= _yardsticks(floor)
    results["split"] = {adjacency: _against_classical(found) for adjacency, found in split.items()}
    results["per_step"] = {adjacency: _per_step(found) for adjacency, found in split.items()}
    folds: dict[str, dict[Any, Evidence]] = {adjacency: {} for adjacency in ADJACENCIES}
    for piece in pieces.folds():
        if piece.fold == 0:
            folds[piece.adjacency][piece.kind] = Evidence(folder, piece, num_folds=5)
    results["folds"] = {adjacency: _against_classical(found) for adjacency, found in folds.items()}
    groups: dict[str, list[Piece]] = {}
    for piece in pieces.sensitivity():
        groups.setdefault(_title(piece), []).append(piece)
    results["sensitivity"] = {
        title: _against_classical({piece.kind: Evidence(folder, piece) for piece in group})
        for title, group in groups.items()
    }
    for title, group in groups.items():
        if not group[0].on_us101:
            for piece in group:
                trained_here = split["remove-one"][piece.kind]
                results["sensitivity"][title][piece.kind] = Evidence(folder, piece).rows(trained_here)
    results["guided"] = guided(folder)
    results["enlarged"] = _enlarged(folder)
    results["who_reports"] = _who_reports(folder, pieces.retested())
    results["ablation"] = [
        {"changes": dict(piece.ppo), "designs": Evidence(folder, piece).rows()} for piece in pieces.ablation()
    ]
    return results


def guided(folder: Path) -> dict[str, Any]:
    """What came of features that follow the releases; each table against the classical design among them."""
    groups: dict[str, dict[str, Evidence]] = {}
    floor: dict[str, Any] = {}
    for piece in pieces.guided():
        if piece.kind == "floor":
            floor = Evidence(folder, piece).row(None)
        else:
            where = "the paper's split" if piece.horizon == 100 else _title(piece)
            groups.setdefault(f"{piece.adjacency}, {where}, guided", {})[piece.label] = Evidence(folder, piece)
    tables = {title: _against_classical(found) for title, found in groups.items()}
    return {
        "command": "make us101-guided DATA=DIR",
        "machine": machine(folder, [*pieces.guided_candidates(), *pieces.guided()]),
        "choice": _choice(folder, pieces.guided_candidates()),
        "floor": floor,
        "tables": tables | _who_reports(folder, pieces.guided_retested(), ", guided"),
    }


def _enlarged(folder: Path) -> dict[str, Any]:
    """What came of training on US-101 and simulated traffic; each table against the classical design among them."""
    tables: dict[str, dict[Any, Evidence]] = {}
    floor: dict[str, Any] = {}
    for piece in pieces.enlarged():
        if piece.kind == "floor":
            floor = Evidence(folder, piece).row(None)
        else:
            title = piece.adjacency if piece.horizon == 100 else f"{piece.adjacency}, {_title(piece)}"
            tables.setdefault(f"{title}, {SIMULATED}", {})[piece.kind] = Evidence(folder, piece)
    return {"floor": floor, "tables": {title: _against_classical(found) for title, found in tables.items()}}


def _who_reports(folder: Path, plan: list[Piece], ending: str = "") -> dict[str, Any]:
    """The first seeds on more choices of reporting vehicles, and their error on the usual ones, which come first."""
    tables: dict[str, dict[Any, Evidence]] = {}
    for piece in plan:
        title = f"{piece.adjacency}, {MORE_TESTS} choices{f', {SIMULATED}' if piece.is_enlarged else ending}"
        tables.setdefault(title, {})[piece.label] = Evidence(folder / WHO_REPORTS, piece)
    results = {title: _against_classical(found) for title, found in tables.items()}
    for title, found in tables.items():
        for kind, evidence in found.items():
            for row in results[title][kind]:
                errors = evidence.errors(row["budget"])
                row["usual_mse"] = float(errors[: len(errors) * NUM_TESTS // MORE_TESTS].mean())
    return results


def _title(piece: Piece) -> str:
    if not piece.on_us101:
        return f"trained on simulated traffic, give or take {piece.spread:.0%}"
    if piece.horizon is None:
        return "stationary, over the whole test part"
    return f"{piece.horizon} steps, {piece.share:.0%} report"


def _against_classical(found: dict[Any, Evidence]) -> dict[str, Any]:
    return {kind: evidence.rows(found.get("classical")) for kind, evidence in found.items() if kind != "floor"}


def _yardsticks(floor: Evidence) -> dict[str, Any]:
    return {"floor": floor.row(None), "prior_mse": floor.prior_mse}


def _per_step(found: dict[Any, Evidence]) -> dict[str, Any]:
    names = ("mse_per_step", "budget_per_step")
    return {
        kind: {name: np.round(evidence.mean(1.5, name), 6).tolist() for name in names}
        for kind, evidence in found.items()
    }


def _choice(folder: Path, candidates: list[Piece]) -> list[dict[str, Any]]:
    """Validation error of every set of features that was tried."""
    tried = []
    for piece in candidates:
        rows = Evidence(folder, piece).rows()
        tried.append(
            {
                "adjacency": piece.adjacency,
                "accounting": piece.accounting,
                "simulated_traffic": piece.is_enlarged,
                "features": piece.features,
                "dimension": piece.dimension,
                **{name: {f"{row['budget']:g}": row[name] for row in rows} for name in ("validation_mse", "mse")},
            }
        )
    return tried


def tables(results: dict[str, Any]) -> list[str]:
    """Markdown tables: a line for each kind, a column for each budget."""
    text = [table(f"{adjacency}, the paper's split", kinds) for adjacency, kinds in results["split"].items()]
    text += [table(f"{adjacency}, five folds", kinds) for adjacency, kinds in results.get("folds", {}).items()]
    text += [table(f"remove-one, {title}", kinds) for title, kinds in results.get("sensitivity", {}).items()]
    text += [table(title, kinds) for title, kinds in results.get("who_reports", {}).items()]
    for part in ("guided", "enlarged"):
        text += [table(title, kinds) for title, kinds in results.get(part, {"tables": {}})["tables"].items()]
    return text + ([ablation_table(results["ablation"])] if results.get("ablation") else [])


def table(title: str, kinds: dict[str, list[dict[str, Any]]]) -> str:
    """Errors, and where there is a reference the ratio to it with its interval."""
    budgets = [row["budget"] for row in next(iter(kinds.values()))]
    lines = [f"| {title} | " + " | ".join(f"B = {budget:g}" for budget in budgets) + " |"]
    lines.append("|---" * (len(budgets) + 1) + "|")
    lines += [f"| {kind} | " + " | ".join(_cell(row) for row in rows) + " |" for kind, rows in kinds.items()]
    return "\n".join(lines)


def ablation_table(ablation: list[dict[str, Any]]) -> str:
    """Validation and test error of Algorithm 2, as it is and with one choice made otherwise."""
    kinds = {", ".join(f"{k} = {v}" for k, v in tried["changes"].items()): tried["designs"] for tried in ablation}
    budgets = [row["budget"] for row in ablation[0]["designs"]]
    lines = ["| Algorithm 2, validation / test | " + " | ".join(f"B = {budget:g}" for budget in budgets) + " |"]
    lines.append("|---" * (len(budgets) + 1) + "|")
    for name, rows in kinds.items():
        cells = [f"{row['validation_mse']:.0f} / {row['mse']:.0f}" for row in rows]
        lines.append(f"| {name or 'as it is'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['mse']:.0f}"
    if "ratio" in row:
        interval = row["ratio_ci95"]
        text += f", {row['ratio']:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")
    return text


def machine(folder: Path, plan: list[Piece] | None = None) -> dict[str, Any]:
    """What the pieces, by default all, were trained on, how long it took, and the versions that matter."""
    paths = (folder / "pieces").glob("*.json") if plan is None else [path_of(piece, folder) for piece in plan]
    found = [json.loads(path.read_text()) for path in sorted(paths)]
    return {
        "devices": sorted({piece["device"] for piece in found}),
        "num_designs": sum(len(piece["designs"]) for piece in found),
        "piece_seconds": {piece["piece"]: piece["seconds"] for piece in found},
        "versions": {package: version(package) for package in ("jax", "equinox", "optax", "numpy")},
    }


def _interval(values: Floats, blocks: Integers, statistic: Any) -> list[float] | None:
    interval = block_interval(values, blocks, statistic)
    return None if interval is None else interval.tolist()


def _read(folder: Path, piece: Piece) -> dict[str, Any]:
    return dict(json.loads(path_of(piece, folder).read_text()))


def on_page(page: str, results: dict[str, Any]) -> str:
    """The page with each table between its marks, `<!-- table NAME -->` and `<!-- /table -->`."""
    by_name = {text.split("|")[1].strip(): text for text in tables(results)}

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{by_name[match[2]]}\n{match[3]}"

    return re.sub(r"(<!-- table (.*?) -->)\n.*?(<!-- /table -->)", fill, page, flags=re.S)


def keep() -> None:
    """Make what is in out/us101 the results of record, and quote them on the page."""
    source, page = Path("out/us101"), HERE / "README.md"
    (HERE / "figures").mkdir(exist_ok=True)
    shutil.copy(source / "results.json", HERE)
    for figure in source.glob("*.png"):
        shutil.copy(figure, HERE / "figures")
    page.write_text(on_page(page.read_text(), json.loads((HERE / "results.json").read_text())))


if __name__ == "__main__":
    keep()
