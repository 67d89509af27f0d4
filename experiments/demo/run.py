"""Run `dpfuse demo`, and keep its numbers and its figure: `make results`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from dpfuse.cli.demo import demo
from tools.results import ROOT, results_path, write_results

OUT = Path("out/demo")
SEED = 0


def main() -> None:
    """Train the designs of the demo, compare them and write results.json."""
    demo(OUT, seed=SEED)
    report = json.loads((OUT / "report.json").read_text())
    write_results(results_path("demo"), report, command="make results", seeds=[SEED])
    shutil.copy(OUT / "estimates.png", ROOT / "docs/img")


if __name__ == "__main__":
    main()
