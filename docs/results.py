"""The results that README quotes: written into it from the results files by `make results`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks/results"
_BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.S)
_US101 = re.compile(r"(?<=<!-- us101 -->\n).*?(?=<!-- /us101 -->)", re.S)


def read(name: str) -> dict[str, Any]:
    """One results file."""
    return dict(json.loads((RESULTS / f"{name}.json").read_text()))


def quoted() -> str:
    """The part of README that quotes results."""
    demo, update, live = read("demo"), read("update"), read("live_step")
    rows = [
        (name, design["mse"], demo["paired"].get(name), f"{design['budget_spent_max']:.4f}")
        for name, design in demo["designs"].items()
    ]
    rows.append(("no noise (non-private floor)", demo["non_private_mse"], None, ""))
    rows.append(("no releases (prior)", demo["prior_mse"], None, ""))
    table = [
        "| design | squared error [(veh/km)^2] | over classical (95% interval) | most spent of 0.5 |",
        "|---|---|---|---|",
        *(f"| {name} | {mse:.0f} | {_ratio(paired)} | {spent} |" for name, mse, paired, spent in rows),
    ]
    speed = update["speed_up"]["packed, all devices"]
    total, individual = (live["ms"][accounting] for accounting in ("total", "individual"))
    return (
        "\n".join(table)
        + "\n\n*`make demo`, kept in [benchmarks/results/demo.json](benchmarks/results/demo.json).*\n\n"
        + f"A gradient update takes {update['ms']['packed, all devices']['median']:.0f} ms on {update['devices']} "
        + f"cores, {speed:.1f} times less than the plain version (a GRU cell vmapped over all slots in a scan), "
        + f"{update['arithmetic']['times_the_limit']:.0f} times what its matrix products alone would need at the speed "
        + "of a large one: the rest is element-wise work and memory. A live step for 64 sensors takes "
        + f"{total['without noise']['median']:.2f} ms ({individual['without noise']['median']:.2f} ms with individual "
        + f"accounts) and {total['all']['median']:.2f} ms ({individual['all']['median']:.2f} ms) with the exact "
        + "release. *`make bench`, kept in [benchmarks/results](benchmarks/results).*\n"
    )


def quoted_us101() -> str:
    """The part of README on real traffic."""
    found = json.loads((ROOT / "experiments/us101/results.json").read_text())
    kinds, budgets = found["split"]["remove-one"], (0.07, 0.15, 0.5, 1.5)
    names = {
        "classical": "classical",
        "ppo": "the paper's Algorithm 2 (PPO)",
        "pathwise": "adaptive",
        "individual": "individual",
    }
    lines = ["| squared error [(veh/km)^2] | " + " | ".join(f"B = {budget:g}" for budget in budgets) + " |"]
    lines.append("|---" * (len(budgets) + 1) + "|")
    for kind, name in names.items():
        rows = [row for row in kinds[kind] if row["budget"] in budgets]
        cells = [f"{row['mse']:.0f}" + (f" ({row['ratio']:.2f})" if "ratio" in row else "") for row in rows]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return (
        "\n".join(lines)
        + "\n\n*Remove-one adjacency, in brackets the error over the classical one; without noise "
        + f"{found['floor']['mse']:.0f}, without releases {found['prior_mse']:.0f}. "
        + "[experiments/us101](experiments/us101/README.md) has both adjacencies, intervals, folds and figures.*\n"
    )


def _ratio(paired: dict[str, Any] | None) -> str:
    return f"{paired['ratio']:.2f} ({paired['ci95'][0]:.2f} to {paired['ci95'][1]:.2f})" if paired else ""


def main() -> None:
    """Write the results into README."""
    text = _BLOCK.sub(lambda _: quoted(), README.read_text())
    README.write_text(_US101.sub(lambda _: quoted_us101(), text))


if __name__ == "__main__":
    main()
