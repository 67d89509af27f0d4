"""Old releases for the readers of a relay, fetched from the centre in blocks of steps and kept for a while."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dpfuse.public.hub import HistoryAway
from dpfuse.public.rows import Message

BLOCK = 500
"""Steps of a block."""
_MAX_BYTES = 64 * 2**20
_WAIT_S = 20.0

Fetch = Callable[[str, int, int], list[Message]]
"""The messages of a stream from the first to the last of these steps."""


class _Block(NamedTuple):
    """The messages of a block up to the step `last`."""

    last: int
    messages: list[Message]
    num_bytes: int


class BlockHistory:
    """A history for the hub of a relay. Past releases never change, so a block is fetched once and kept in memory.

    **Guarantees**
        - However many read, one block is fetched at a time, and a block that is in memory is not fetched.
        - The memory is bounded: the blocks that were not read for the longest time are dropped.

    Args:
        fetch: reads from the centre; raises `HistoryAway` if it cannot.
        last_step: the last published step of a stream.
    """

    def __init__(self, fetch: Fetch, last_step: Callable[[str], int]) -> None:
        self._fetch, self._last_step = fetch, last_step
        self._blocks: OrderedDict[tuple[str, int], _Block] = OrderedDict()
        self._num_bytes = 0
        self._fetching, self._lock = threading.Lock(), threading.Lock()

    def __call__(self, stream: str, start: int) -> Iterator[Message]:
        """The messages from a step on, up to the last published one."""
        while start <= self._last_step(stream):
            block = self._block(stream, start)
            yield from (message for message in block.messages if message.step >= start)
            start = block.last + 1

    def _block(self, stream: str, step: int) -> _Block:
        """The block with that step."""
        number = (step - 1) // BLOCK
        if (found := self._kept(stream, number, step)) is not None:
            return found
        if not self._fetching.acquire(timeout=_WAIT_S):
            raise HistoryAway
        try:
            if (found := self._kept(stream, number, step)) is not None:
                return found
            first, last = number * BLOCK + 1, min((number + 1) * BLOCK, self._last_step(stream))
            messages = self._fetch(stream, first, last)
            return self._keep(stream, number, _Block(last, messages, sum(len(each.content) for each in messages)))
        finally:
            self._fetching.release()

    def _kept(self, stream: str, number: int, step: int) -> _Block | None:
        with self._lock:
            found = self._blocks.get((stream, number))
            if found is None or found.last < step:
                return None
            self._blocks.move_to_end((stream, number))
            return found

    def _keep(self, stream: str, number: int, block: _Block) -> _Block:
        with self._lock:
            before = self._blocks.pop((stream, number), None)
            self._num_bytes += block.num_bytes - (0 if before is None else before.num_bytes)
            self._blocks[stream, number] = block
            while self._num_bytes > _MAX_BYTES and len(self._blocks) > 1:
                self._num_bytes -= self._blocks.popitem(last=False)[1].num_bytes
        return block
