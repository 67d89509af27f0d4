"""From messages to the centre's inbox: whose they are, in parts, and out of the way of a release."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpfuse.public.hub import ReplayNotes
from dpfuse.wire.messages import parse_report, token_of
from dpfuse.wire.tokens import Tokens

if TYPE_CHECKING:
    from dpfuse.centre.centre import FusionCentre
    from dpfuse.centre.clock import Ticker

# About a millisecond of work.
_AT_ONCE = 200
# Before and after the moment of a release, but no more than this share of the interval.
_QUIET_S, _QUIET_SHARE = 0.003, 0.02


class Intake:
    """Takes batches of reports, while the event loop has other things to do.

    **Guarantees**
        - What comes back depends on the batch and the secret alone.
        - A release does not wait for reports, so when it leaves does not tell how many came: a batch is taken in small
          parts, and none of them just before or after the moment of a release, which is public.
    """

    def __init__(self, centre: FusionCentre, tokens: Tokens, ticker: Ticker, notes: ReplayNotes | None = None) -> None:
        self._centre, self._tokens, self._ticker, self._notes = centre, tokens, ticker, notes

    async def take(self, batch: Sequence[Any]) -> list[int]:
        """Hand a batch to the centre; the positions with a bad token."""
        refused: list[int] = []
        for first in range(0, len(batch), _AT_ONCE):
            await self.make_way()
            refused += [first + position for position in self._take_part(batch[first : first + _AT_ONCE])]
        return refused

    async def make_way(self) -> None:
        """Let others go first, and a release that is due in a moment above all."""
        clock = self._ticker.clock()
        due_in_s = (clock["closes_in_s"] + clock["delay_s"]) % clock["interval_s"]
        quiet_s = min(_QUIET_S, _QUIET_SHARE * clock["interval_s"])
        await asyncio.sleep(due_in_s + quiet_s if due_in_s < quiet_s else 0)

    def _take_part(self, batch: Sequence[Any]) -> list[int]:
        refused = []
        for position, message in enumerate(batch):
            sensor = self._tokens.sensor_of(token_of(message))
            if sensor is None:
                refused.append(position)
            elif (report := parse_report(message)) is not None:
                self._centre.receive(report.stream, sensor, report.step, report.values)
                if self._notes is not None and report.stream in self._centre.streams:
                    self._notes.count(report.stream, report.step)
        return refused
