"""What was published, for whoever asks: the last releases from memory, older ones from the ledger.

Nothing is pushed. A subscriber holds the number of the next step that it wants, sleeps until something was published
and fetches; one that is slow, or gone, costs a number and holds up nobody.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from dpfuse.public.rows import Published

History = Callable[[str, int], Iterator[Row]]
"""Committed rows of a stream from a step on, from a reader of its own: the writer's is in the middle of a step."""

_KEPT_IN_ALL, _KEPT_AT_MOST, _KEPT_AT_LEAST = 65536, 4096, 16
_PAGE = 500


class Hub:
    """Everything that may be handed out, and nothing before its time.

    **Guarantees**
        - A row is seen here after `publish` was called with it, or if it was committed before the hub was made: a row
          that is committed and waits for its moment is not shown, in whichever way it is asked for.
        - All of it is public, and so is how much is kept: a function of the number of streams.
        - `publish` waits for no subscriber.

    Args:
        last_steps: of each stream, the last step that was committed before; 0 for none.
        history: where rows come from that are no longer, or not yet, in memory.
        past: the last rows that were committed before, with their estimates, in order.
    """

    def __init__(self, last_steps: Mapping[str, int], history: History, past: Iterable[Published] = ()) -> None:
        self._history = history
        self._last = dict(last_steps)
        self._latest = {
            stream: next(history(stream, step), None) if step else None for stream, step in last_steps.items()
        }
        self._first = {stream: step + 1 for stream, step in last_steps.items()}
        kept = num_kept(len(self._last))
        self._recent: dict[str, deque[Published]] = {stream: deque(maxlen=kept) for stream in self._last}
        self._changed = threading.Condition()
        self._waiting: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._number = 0
        self._is_closed = False
        for one in past:
            self._first[one.row.stream] = min(one.row.step, self._first[one.row.stream])
            self._keep(one)
        self._watchers: list[Callable[[Sequence[Published]], object]] = []

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self._last)

    @property
    def number(self) -> int:
        """How often `publish` was called; to wait for the next time."""
        return self._number

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def last_step(self, stream: str) -> int:
        """The last step that was published, 0 for none."""
        return self._last[stream]

    def latest(self, stream: str) -> Row | None:
        """The last row that was published."""
        return self._latest[stream]

    def publish(self, published: Sequence[Published]) -> None:
        """Let everybody see these, from this moment on."""
        for watcher in self._watchers:
            watcher(published)
        with self._changed:
            for one in published:
                self._keep(one)
                self._last[one.row.stream], self._latest[one.row.stream] = one.row.step, one.row
            self._wake()

    def watch(self, watcher: Callable[[Sequence[Published]], object]) -> None:
        """Tell the watcher of everything that is published, in the thread that publishes it; for what is quick."""
        self._watchers.append(watcher)

    def close(self) -> None:
        """Nothing follows: whoever waits is woken, and streams of events end."""
        with self._changed:
            self._is_closed = True
            self._wake()

    def recent(self, stream: str, start: int = 1) -> list[Published]:
        """What is in memory from step `start` on, with estimates; the oldest may be later than asked for."""
        with self._changed:
            newest_first = itertools.takewhile(lambda one: one.row.step >= start, reversed(self._recent[stream]))
            return list(newest_first)[::-1]

    def rows(self, stream: str, start: int = 1, limit: int = _PAGE) -> list[Row]:
        """Up to `limit` published rows from step `start` on, in order; reads from the disk where `is_old`."""
        if not self.is_old(stream, start):
            return [one.row for one in self.recent(stream, start)[:limit]]
        last = self._last[stream]
        rows = self._history(stream, start)
        page = [row for row in itertools.islice(rows, limit) if row.step <= last]
        getattr(rows, "close", lambda: None)()  # a reader that stays open holds up the writer's housekeeping
        return page

    def is_old(self, stream: str, start: int) -> bool:
        """Whether rows from that step on must be read from the ledger."""
        return start < self._first[stream] and start <= self._last[stream]

    def wait(self, number: int, timeout_s: float) -> None:
        """Sleep until more was published than that number of times, for a thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self._is_closed, timeout_s)

    async def waited(self, number: int, timeout_s: float) -> None:
        """The same in an event loop."""
        loop = asyncio.get_running_loop()
        with self._changed:
            if self._number > number or self._is_closed:
                return
            future = loop.create_future()
            self._waiting[future] = loop
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            with self._changed:
                self._waiting.pop(future, None)

    def _keep(self, one: Published) -> None:
        recent = self._recent[one.row.stream]
        if len(recent) == recent.maxlen:
            self._first[one.row.stream] = recent[0].row.step + 1
        recent.append(one)

    def _wake(self) -> None:
        self._number += 1
        self._changed.notify_all()
        waiting, self._waiting = self._waiting, {}
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for future, loop in waiting.items():
            loops.setdefault(loop, []).append(future)
        for loop, futures in loops.items():
            with suppress(RuntimeError):  # a loop that is closed has nobody who waits
                loop.call_soon_threadsafe(_resolve, futures)


def num_kept(num_streams: int) -> int:
    """How many releases of each stream are kept in memory; public."""
    return min(_KEPT_AT_MOST, max(_KEPT_AT_LEAST, _KEPT_IN_ALL // num_streams))


class ReplayNotes:
    """What is known of a replay, where the data is nobody's: the truth, how many reports came, how long a step took.

    Never made for live sensors: how many there are is private, and so is the time that their work takes.
    """

    def __init__(self) -> None:
        self.truth: dict[tuple[str, int], list[float]] = {}
        self.num_reports: dict[tuple[str, int], int] = {}
        self.latency_s: dict[int, float] = {}

    def tell(self, stream: str, step: int, state: list[float]) -> None:
        """Note the truth of a step."""
        self.truth[stream, step] = state
        _forget(self.truth)

    def count(self, stream: str, step: int) -> None:
        """Note one more report for a step."""
        self.num_reports[stream, step] = self.num_reports.get((stream, step), 0) + 1
        _forget(self.num_reports)

    def time(self, step: int, latency_s: float) -> None:
        """Note how long the work of a step took."""
        self.latency_s[step] = latency_s
        _forget(self.latency_s)


def _forget(notes: dict[Any, Any]) -> None:
    if len(notes) > _KEPT_IN_ALL:
        del notes[next(iter(notes))]


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
