"""From messages to the centre's inbox: whose they are, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpfuse.runtime.hub import ReplayNotes
from dpfuse.runtime.messages import as_report, token_of
from dpfuse.runtime.tokens import Tokens

if TYPE_CHECKING:
    from dpfuse.runtime.centre import FusionCentre

# Less than a millisecond of work: a release that is due in between need not wait for a whole batch.
_AT_ONCE = 200


async def take_reports(
    centre: FusionCentre, tokens: Tokens, batch: Sequence[Any], notes: ReplayNotes | None = None
) -> list[int]:
    """Hand a batch to the centre; the positions with a bad token, a function of batch and secret alone."""
    refused: list[int] = []
    for first in range(0, len(batch), _AT_ONCE):
        part = batch[first : first + _AT_ONCE]
        refused += [first + position for position in take_part(centre, tokens, part, notes)]
        await asyncio.sleep(0)
    return refused


def take_part(
    centre: FusionCentre, tokens: Tokens, batch: Sequence[Any], notes: ReplayNotes | None = None
) -> list[int]:
    """The same at once."""
    refused = []
    for position, message in enumerate(batch):
        sensor = tokens.sensor_of(token_of(message))
        if sensor is None:
            refused.append(position)
        elif (report := as_report(message)) is not None:
            centre.receive(report.stream, sensor, report.step, report.values)
            if notes is not None and report.stream in centre.streams:
                notes.count(report.stream, report.step)
    return refused
