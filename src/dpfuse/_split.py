"""Whether recordings are split along time or by run, where nobody says."""

from __future__ import annotations

import logging
from typing import Literal

_log = logging.getLogger(__name__)
_MANY_RUNS = 30


def usual_split(num_runs: int, num_steps: int) -> Literal["time", "run"]:
    """By run where runs are many and short: a tenth of a short run is too little to test on."""
    by: Literal["time", "run"] = "run" if num_runs >= _MANY_RUNS and num_runs > num_steps / 4 else "time"
    _log.info("%d runs of %d steps are split by %s", num_runs, num_steps, by)
    return by
