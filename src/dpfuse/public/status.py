"""The status of a centre's clock, as the API, the page and the metrics show it."""

from __future__ import annotations

from typing import Literal, get_args

TickerStatus = Literal["running", "over", "failed", "stopped"]
"""`over`: a finite design has made its last release. `failed`: an error stopped all releases."""
STATUSES: tuple[TickerStatus, ...] = get_args(TickerStatus)
HEALTHS = ("ok", "late", *(status for status in STATUSES if status != "running"))
"""What `/healthz` calls a centre. `ok` and `late`: it runs, and most steps are released, or too few are."""
