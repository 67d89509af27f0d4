"""The published releases: the last ones in memory, older ones read from a history.

The hub keeps no queues. A subscriber remembers the next step that it wants, waits until something is published and
fetches it. A slow subscriber delays no other.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from dpfuse.public.rows import Message, Published, Row, release_message

History = Callable[[str, int], Iterator[Message]]
"""Messages of a stream from a step on, read over a connection of its own: the writer's is busy with a step."""

_KEPT_TOTAL, _MAX_KEPT, _MIN_KEPT = 65536, 4096, 16
_PAGE = 500


class HistoryAway(Exception):
    """A history raises it if old releases cannot be read at the moment."""


class Hub:
    """Holds what was published and hands it to subscribers.

    **Guarantees**
        - The hub shows a row after `publish` was called with it, or if it was committed before the hub was made. It
          does not show a committed row that waits for its moment, by any method.
        - Everything in it is public. The number of releases in memory depends on the number of streams alone.
        - `publish` waits for no subscriber.

    Args:
        last_steps: the last committed step of each stream; 0 for none.
        history: reads the messages that are not in memory. It may return committed rows that are not published.
        past: the last committed rows with their estimates, in order.
        to_message: makes the message of a row, signed where releases are; called once for each row.
    """

    def __init__(
        self,
        last_steps: Mapping[str, int],
        history: History,
        past: Iterable[Published] = (),
        to_message: Callable[[Row], Message] = release_message,
    ) -> None:
        self._history, self._to_message = history, to_message
        self._last = dict(last_steps)
        self._first = {stream: step + 1 for stream, step in last_steps.items()}
        kept = num_in_memory(len(self._last))
        self._recent: dict[str, deque[Published]] = {stream: deque(maxlen=kept) for stream in self._last}
        self._messages: dict[str, deque[Message]] = {stream: deque(maxlen=kept) for stream in self._last}
        self._prepared: dict[bytes, Message] = {}
        self._changed = threading.Condition()
        self._waiting: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._number = 0
        self._is_closed = False
        for one in past:
            self._first[one.row.stream] = min(one.row.step, self._first[one.row.stream])
            self._keep(one, to_message(one.row))
        self._callbacks: list[Callable[[Sequence[Published]], object]] = []

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self._last)

    @property
    def number(self) -> int:
        """How many times something was published or the hub was closed; `wait` takes it."""
        return self._number

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def last_step(self, stream: str) -> int:
        """The last step that was published, 0 for none."""
        return self._last[stream]

    def prepare(self, published: Sequence[Published]) -> list[Message]:
        """Make the messages of rows that are published next, so that `publish` takes no time for them."""
        self._prepared = {one.row.hash: self._to_message(one.row) for one in published}
        return list(self._prepared.values())

    def publish(self, published: Sequence[Published], messages: Sequence[Message] | None = None) -> None:
        """Show these rows from this moment on; `messages` are theirs, if they are not to be made."""
        if messages is None:
            messages = [self._prepared.get(one.row.hash) or self._to_message(one.row) for one in published]
        for callback in self._callbacks:
            callback(published)
        with self._changed:
            for one, message in zip(published, messages, strict=True):
                self._keep(one, message)
                self._last[one.row.stream] = one.row.step
            self._wake()

    def forget(self, stream: str, step: int) -> None:
        """Before that step is published: drop all earlier ones from memory, so that they are read from the history.

        For a relay that has missed steps between those in memory and this one.
        """
        with self._changed:
            self._recent[stream].clear()
            self._messages[stream].clear()
            self._first[stream] = step

    def on_publish(self, callback: Callable[[Sequence[Published]], object]) -> None:
        """Call back with all that is published, in the thread that publishes; the callback must be quick."""
        self._callbacks.append(callback)

    def close(self) -> None:
        """Wake all who wait, and end the event streams: nothing more is published."""
        with self._changed:
            self._is_closed = True
            self._wake()

    def num_missing(self, stream: str, start: int, end: int) -> int:
        """How many steps from `start` to before `end` have no release, of those after the first one in memory."""
        with self._changed:
            start = max(start, self._first[stream])
            first, last = (
                bisect_left(self._recent[stream], step, key=lambda one: one.row.step) for step in (start, end)
            )
            return max(0, end - start - (last - first))

    def recent(self, stream: str, start: int = 1) -> list[Published]:
        """The releases in memory from step `start` on, with estimates; older ones may be missing."""
        with self._changed:
            newest_first = itertools.takewhile(lambda one: one.row.step >= start, reversed(self._recent[stream]))
            return list(newest_first)[::-1]

    def recent_messages(self, stream: str, start: int = 1) -> list[tuple[Published, Message]]:
        """`recent`, each with its message."""
        with self._changed:
            newest_first = zip(reversed(self._recent[stream]), reversed(self._messages[stream]), strict=True)
            return list(itertools.takewhile(lambda pair: pair[0].row.step >= start, newest_first))[::-1]

    def messages(self, stream: str, start: int = 1, limit: int = _PAGE) -> list[Message]:
        """Up to `limit` published messages from step `start` on, in order; reads the history if `is_old`."""
        with self._changed:
            if not self.is_old(stream, start):
                newest_first = itertools.takewhile(lambda one: one.step >= start, reversed(self._messages[stream]))
                return list(newest_first)[::-1][:limit]
            last = self._last[stream]
        found = self._history(stream, start)
        page = [message for message in itertools.islice(found, limit) if message.step <= last]
        getattr(found, "close", lambda: None)()  # an open reader keeps the writer from truncating its log
        return page

    def is_old(self, stream: str, start: int) -> bool:
        """Whether messages from that step on have to be read from the history."""
        return start < self._first[stream] and start <= self._last[stream]

    def wait(self, number: int, timeout_s: float) -> None:
        """Block the thread until something is published after that `number`, or the hub is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self._is_closed, timeout_s)

    async def wait_async(self, number: int, timeout_s: float) -> None:
        """`wait` for an event loop."""
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

    def _keep(self, one: Published, message: Message) -> None:
        recent = self._recent[one.row.stream]
        if len(recent) == recent.maxlen:
            self._first[one.row.stream] = recent[0].row.step + 1
        recent.append(one)
        self._messages[one.row.stream].append(message)

    def _wake(self) -> None:
        self._number += 1
        self._changed.notify_all()
        waiting, self._waiting = self._waiting, {}
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for future, loop in waiting.items():
            loops.setdefault(loop, []).append(future)
        for loop, futures in loops.items():
            with suppress(RuntimeError):  # a closed loop has no waiting tasks
                loop.call_soon_threadsafe(_resolve, futures)


def num_in_memory(num_streams: int) -> int:
    """The number of releases of each stream that are kept in memory; public."""
    return min(_MAX_KEPT, max(_MIN_KEPT, _KEPT_TOTAL // num_streams))


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
