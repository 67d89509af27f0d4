"""The status of a centre's clock, as the API, the page and the metrics show it."""

from __future__ import annotations

from typing import Literal, get_args

TickerStatus = Literal["running", "over", "failed", "stopped"]
"""`over`: a finite design has made its last release. `failed`: an error stopped all releases."""
STATUSES: tuple[TickerStatus, ...] = get_args(TickerStatus)
