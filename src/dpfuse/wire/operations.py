"""What the operator of a centre sees: whether it has started, is ready and is alive, and numbers of its process.

The answers of the three checks depend on public facts alone. The numbers are private: latency, reports and memory
depend on who reports. They are for the operator, who is trusted with the centre's machine anyway.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse._extras import requires_extra
from dpfuse._logs import fields
from dpfuse.centre.clock import SkipReason, StepObserver
from dpfuse.public.metrics import health_of, is_healthy
from dpfuse.public.parts import CentreParts

with requires_extra("live", "the operator's port"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
    from prometheus_client.metrics_core import Metric

if TYPE_CHECKING:
    from dpfuse.centre.clock import Ticker
    from dpfuse.ledger.bank.client import BankClient
    from dpfuse.public.feed import Feed
    from dpfuse.wire.mqtt import Bridge

_log = logging.getLogger(__name__)
_BUCKETS_S = 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0
# A ticker that neither released nor skipped a step for so many intervals, and so many seconds, hangs.
_HANGS_STEPS, _HANGS_S = 20, 30.0
_LIBRARIES = "dpfuse", "jax", "opendp", "apsw"


class Operations(StepObserver):
    """Follows a centre from its start; any thread may ask.

    Every run of skipped steps is logged once when it begins, and once with its length when it ends.
    """

    def __init__(self) -> None:
        self.is_started = False
        self._ticker: Ticker | None = None
        self._feed: Feed | None = None
        self._ledger: Path | None = None
        self._counts: Callable[[], Counter[str]] = Counter
        self._lock = threading.Lock()
        self._num_steps: Counter[str] = Counter(released=0, late=0, bank=0)
        self._num_below = [0] * len(_BUCKETS_S)
        self._num_seen, self._sum_s = 0, 0.0
        self._num_skipped_in_a_row = 0
        self._last_step_at = time.monotonic()

    def watch(self, ticker: Ticker, feed: Feed, ledger: Path, counts: Callable[[], Counter[str]]) -> None:
        """Follow these from now on; `counts` returns the numbers of reports by what became of them."""
        self._ticker, self._feed, self._ledger, self._counts = ticker, feed, ledger, counts

    def on_release(self, step: int, latency_s: float) -> None:
        with self._lock:
            num_skipped, self._num_skipped_in_a_row = self._num_skipped_in_a_row, 0
            self._num_steps["released"] += 1
            self._num_seen, self._sum_s = self._num_seen + 1, self._sum_s + latency_s
            for place, bound_s in enumerate(_BUCKETS_S):
                self._num_below[place] += latency_s <= bound_s
            self._last_step_at = time.monotonic()
        if num_skipped > 1:
            _log.warning("releases go on", extra=fields(step=step, skipped=num_skipped))

    def on_skip(self, step: int, reason: SkipReason) -> None:
        with self._lock:
            self._num_skipped_in_a_row += 1
            self._num_steps[reason] += 1
            self._last_step_at = time.monotonic()
            is_first = self._num_skipped_in_a_row == 1
        if is_first:
            _log.warning("a step was skipped", extra=fields(step=step, reason=reason))

    def startup(self) -> tuple[bool, dict[str, Any]]:
        """Whether the centre has started."""
        return self.is_started, {"started": self.is_started}

    def liveness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the centre is not stuck: a supervisor restarts it if it is. A centre that starts is alive."""
        ticker = self._ticker
        if not self.is_started or ticker is None or ticker.status != "running":
            status = None if ticker is None else ticker.status
            return status != "failed", {"status": status}
        allowed_s = max(_HANGS_S, _HANGS_STEPS * ticker.interval_s)
        is_moving = time.monotonic() - self._last_step_at <= allowed_s
        return is_moving, {"status": ticker.status, "steps_move": is_moving}

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether releases are on time and all parts answer."""
        if not self.is_started or self._ticker is None or self._feed is None:
            return False, {"started": self.is_started}
        health, parts = health_of(self._feed, self._ticker.clock()), self._feed.parts
        is_ready = is_healthy(health) and parts.ledger and parts.bank is not False and parts.broker is not False
        return is_ready, health | {"parts": parts._asdict()}

    def collect(self) -> Iterator[Metric]:
        """The operator's metrics."""
        yield InfoMetricFamily("dpfuse_versions", "Versions of this process", value=_versions())
        yield GaugeMetricFamily("dpfuse_started", "1 once the centre has started", value=self.is_started)
        if self._ticker is not None:
            delay_s = self._ticker.delay_s
            yield GaugeMetricFamily("dpfuse_delay_seconds", "From the end of a step to its release", value=delay_s)
        with self._lock:
            steps, below, total_s = dict(self._num_steps), list(self._num_below), self._sum_s
            num_seen = self._num_seen
        counted = CounterMetricFamily("dpfuse_steps", "Steps by what became of them", labels=["result"])
        for result, name in (("released", "released"), ("late", "skipped_late"), ("bank", "skipped_bank")):
            counted.add_metric([name], steps[result])
        yield counted
        buckets = [(str(bound_s), float(number)) for bound_s, number in zip(_BUCKETS_S, below, strict=True)]
        ticks = HistogramMetricFamily("dpfuse_tick_seconds", "From the end of a step until its work is done. Private")
        ticks.add_metric([], [*buckets, ("+Inf", float(num_seen))], total_s)
        yield ticks
        reports = CounterMetricFamily("dpfuse_reports", "Reports by what became of them. Private", labels=["result"])
        sizes = CounterMetricFamily("dpfuse_report_bytes", "Bytes of reports and public inputs. Private")
        for result, number in sorted(self._counts().items()):
            if result == "bytes":
                sizes.add_metric([], number)
            else:
                reports.add_metric([result], number)
        yield from (reports, sizes, *self._disk())

    def _disk(self) -> Iterator[Metric]:
        if self._ledger is None:
            return
        size = sum(os.path.getsize(path) for path in _files_of(self._ledger))
        yield GaugeMetricFamily("dpfuse_ledger_bytes", "Size of the ledger's files. Private", value=size)
        free = shutil.disk_usage(self._ledger.parent).free
        yield GaugeMetricFamily("dpfuse_disk_free_bytes", "Room left on the disk of the ledger", value=free)


@dataclass
class PartsWatch:
    """Returns which parts of a centre answer.

    Attributes:
        bank: the centre's side of its bank, if it has one.
        errors: what stopped the centre.
        bridge: to the broker, if there is one.
    """

    bank: BankClient | None
    errors: list[BaseException]
    bridge: Bridge | None = None

    def __call__(self) -> CentreParts:
        """The parts now."""
        return CentreParts(
            ledger=not self.errors,
            bank=None if self.bank is None else self.bank.may_release,
            broker=None if self.bridge is None else self.bridge.is_connected,
            epoch_age_s=None if self.bank is None else float(int(self.bank.answer_age_s)),  # it is public
            epoch_s=None if self.bank is None else self.bank.terms.epoch_s,
        )


def _files_of(ledger: Path) -> list[Path]:
    return [path for path in (ledger, Path(f"{ledger}-wal")) if path.exists()]


def _versions() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES} | {"python": platform.python_version()}
