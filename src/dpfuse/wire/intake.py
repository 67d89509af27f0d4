"""The way of reports and public inputs from any transport to the centre."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfuse.wire.keys import refused_report
from dpfuse.wire.messages import MAX_REPORT, parse_report
from dpfuse.wire.refusals import RefusalLog

if TYPE_CHECKING:
    from dpfuse.centre.centre import FusionCentre
    from dpfuse.centre.clock import Ticker
    from dpfuse.public.connections import ByIdentity
    from dpfuse.public.replay_notes import ReplayNotes
    from dpfuse.wire.keys import CheckedReport, Keys
    from dpfuse.wire.messages import SensorReport

MAX_REFUSED = 100
"""The most positions of refused lines in an answer."""
# Lines and bytes of one part: a millisecond or two of work, also for lines that are refused. A line of 4 KB with a
# wrong MAC takes about twenty times as long as the report of a sensor.
_PART_SIZE, _PART_BYTES = 100, 2**15
# No part starts this long before the moment of a release, or this share of the interval if that is shorter. It waits
# until as long after that moment.
_QUIET_S, _QUIET_SHARE = 0.003, 0.02


class Answer(NamedTuple):
    """What became of the lines of a batch; it depends on the lines and the keys alone.

    Attributes:
        received: number of reports that were handed to the centre.
        refused: positions of the first refused lines, from 0; at most `MAX_REFUSED` of them.
    """

    received: int
    refused: list[int]


class Holder(NamedTuple):
    """Holds a connection for the first sensor whose valid report came on it in time and that has room for one more."""

    connections: ByIdentity
    connection: Any
    ticker: Ticker

    def note(self, sensor: int, step: int) -> bool:
        """A valid report of that sensor came; whether the connection is held now.

        A report for a step that is not open, by the public clock, holds nothing: somebody may have repeated it.
        """
        is_in_time = 0 <= step - self.ticker.clock()["step"] <= 1
        return is_in_time and self.connections.hold(self.connection, sensor)


class Intake:
    """Reads reports, checks whose they are and hands them to the centre, each by itself.

    A transport hands over lines and sends its own kind of answer. A transport with a thread of its own waits for
    `quiet_time_s` and calls `accept`. One on an event loop calls `accept_stream`.

    **Guarantees**
        - What becomes of a line depends on that line and the keys alone: no other line, and no number of lines, changes
          it.
        - Releases leave in other threads, which the work on reports could hold up. So transports hand over lines in
          small parts and start no part just before the moment of a release, which is public: the time of a release
          does not show how many reports came.

    Args:
        notes: counts reports in a replay; None for a centre with real sensors.
    """

    def __init__(self, centre: FusionCentre, keys: Keys, notes: ReplayNotes | None = None) -> None:
        self._centre, self._keys, self.notes = centre, keys, notes
        self._refusals = RefusalLog()
        self.counts: Counter[str] = Counter(taken=0, bytes=0)
        """Numbers of reports by what became of them, and their bytes. Private: for the operator's port alone."""

    def accept(
        self, lines: Sequence[bytes], sender: tuple[str, str] | None = None, holder: Holder | None = None
    ) -> list[int]:
        """Hand every report with a valid MAC to the centre; returns the positions of the other lines.

        Args:
            lines: one message each.
            sender: the stream and the key that the transport itself names, for example by a topic. A report for another
                stream or by another key is refused.
            holder: is told whose valid reports came, until it holds the connection.
        """
        return self._take_each(lines, sender, holder, "not a report", self._keys.check, self._take_report)

    def accept_inputs(self, lines: Sequence[bytes], holder: Holder | None = None) -> list[int]:
        """Hand public inputs with a publisher's valid MAC to the centre; returns the positions of the other lines."""
        return self._take_each(lines, None, holder, "not inputs", self._keys.check_inputs, self._take_inputs)

    def _take_each(
        self,
        lines: Sequence[bytes],
        sender: tuple[str, str] | None,
        holder: Holder | None,
        reason_if_unread: str,
        check: Callable[[SensorReport], CheckedReport],
        take: Callable[[SensorReport, CheckedReport], int],
    ) -> list[int]:
        """Check and take line by line; `take` returns the number of the sender."""
        self._keys.look_for_changes()
        refused = []
        self.counts["bytes"] += sum(map(len, lines))
        for position, line in enumerate(lines):
            message = parse_report(line)
            if message is None:
                checked = refused_report(reason_if_unread)
            elif sender and sender != (message.stream, message.key):
                checked = refused_report("wrong topic")
            else:
                checked = check(message)
            if message is None or checked.refusal:
                self._refusals.note(checked.refusal, "" if message is None else message.key)
                refused.append(position)
                self.counts[checked.refusal] += 1
                continue
            who = take(message, checked)
            if holder is not None and holder.note(who, message.step):
                holder = None
        return refused

    def _take_report(self, report: SensorReport, checked: CheckedReport) -> int:
        self.counts["taken"] += 1
        self._centre.receive(report.stream, checked.sensor, report.step, checked.values)
        if self.notes is not None and report.stream in self._centre.streams:
            self.notes.count_report(report.stream, report.step)
        return checked.sensor

    def _take_inputs(self, message: SensorReport, checked: CheckedReport) -> int:
        self.counts["inputs"] += 1
        self._centre.receive_inputs(message.stream, message.step, checked.values)
        return -1 - checked.sensor  # no sensor has such a number

    async def accept_stream(
        self,
        chunks: AsyncIterator[bytes],
        ticker: Ticker,
        holder: Holder | None = None,
        *,
        are_inputs: bool = False,
    ) -> Answer:
        """`accept`, or `accept_inputs`, for a body of lines as it arrives, on an event loop."""
        accept = self.accept_inputs if are_inputs else self.accept
        num_lines, num_refused = 0, 0
        positions: list[int] = []
        async for lines in _split_lines(chunks):
            for part in split_parts(lines):
                await wait_for_release(ticker)
                refused = accept(part, holder=holder)
                positions += [num_lines + position for position in refused][: MAX_REFUSED - len(positions)]
                num_lines, num_refused = num_lines + len(part), num_refused + len(refused)
        return Answer(num_lines - num_refused, positions)


async def _split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """The lines of a body; of a line that is too long only so much is kept that it is still too long."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[: MAX_REPORT + 1]
        yield lines
    if rest:
        yield [rest]


def split_parts(lines: list[bytes]) -> Iterator[list[bytes]]:
    """The lines in parts, each of a bounded number of lines and, but for its last line, of bytes."""
    first, size = 0, 0
    for end, line in enumerate(lines, 1):
        size += len(line)
        if end - first == _PART_SIZE or size >= _PART_BYTES:
            yield lines[first:end]
            first, size = end, 0
    if first < len(lines):
        yield lines[first:]


async def wait_for_release(ticker: Ticker) -> None:
    """Let other tasks run; if a release is due within a moment, wait until it has left."""
    await asyncio.sleep(quiet_time_s(ticker))


def quiet_time_s(ticker: Ticker) -> float:
    """How long work on reports has to wait for a release that is due within a moment; 0 if none is."""
    clock = ticker.clock()
    due_in_s = (clock["closes_in_s"] + clock["delay_s"]) % clock["interval_s"]
    quiet_s = min(_QUIET_S, _QUIET_SHARE * clock["interval_s"])
    return due_in_s + quiet_s if due_in_s < quiet_s else 0.0
