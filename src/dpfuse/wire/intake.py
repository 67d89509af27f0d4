"""The way of a report from any transport to the centre."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpfuse.wire.messages import parse_report, token_of

if TYPE_CHECKING:
    from dpfuse.centre.centre import FusionCentre
    from dpfuse.centre.clock import Ticker
    from dpfuse.public.replay_notes import ReplayNotes
    from dpfuse.wire.tokens import Tokens

# About a millisecond of work.
_PART_SIZE = 200
# No part starts this long before the moment of a release, or this share of the interval if that is shorter. It waits
# until as long after that moment.
_QUIET_S, _QUIET_SHARE = 0.003, 0.02


class Intake:
    """Checks whose message it is, reads the report in it and hands the report to the centre.

    A transport decodes the JSON, calls `accept` and sends its own kind of answer. A transport on the event loop that
    also sends the releases calls `accept_batch`.

    **Guarantees**
        - Which messages are refused depends on the messages and the secret alone.
        - `accept_batch` never delays a release, so the time of a release does not show how many reports came. It takes
          a batch in small parts and starts no part just before the moment of a release, which is public.

    Args:
        notes: counts reports in a replay; None for a centre with real sensors.
    """

    def __init__(self, centre: FusionCentre, tokens: Tokens, notes: ReplayNotes | None = None) -> None:
        self._centre, self._tokens, self.notes = centre, tokens, notes

    def accept(self, messages: Sequence[Any], sender: tuple[str, int] | None = None) -> list[int]:
        """Hand every report with a valid token to the centre; returns the positions of the other messages.

        Args:
            messages: decoded JSON, of any shape.
            sender: the stream and the sensor that the transport itself names, for example by a topic. A report of
                another stream or sensor is refused.
        """
        refused = []
        for position, message in enumerate(messages):
            sensor = self._tokens.sensor_of(token_of(message))
            report = None if sensor is None else parse_report(message)
            if sensor is None or (sender and (report is None or sender != (report.stream, sensor))):
                refused.append(position)
            elif report is not None:
                self._centre.receive(report.stream, sensor, report.step, report.values)
                if self.notes is not None and report.stream in self._centre.streams:
                    self.notes.count_report(report.stream, report.step)
        return refused

    async def accept_batch(self, messages: Sequence[Any], ticker: Ticker) -> list[int]:
        """`accept` for an event loop that also sends the releases."""
        refused: list[int] = []
        for first in range(0, len(messages), _PART_SIZE):
            await wait_for_release(ticker)
            refused += [first + position for position in self.accept(messages[first : first + _PART_SIZE])]
        return refused


async def wait_for_release(ticker: Ticker) -> None:
    """Let other tasks run; if a release is due within a moment, wait until it has left."""
    clock = ticker.clock()
    due_in_s = (clock["closes_in_s"] + clock["delay_s"]) % clock["interval_s"]
    quiet_s = min(_QUIET_S, _QUIET_SHARE * clock["interval_s"])
    await asyncio.sleep(due_in_s + quiet_s if due_in_s < quiet_s else 0)
