"""A relay: follows the public feed of a centre or of another relay, and hands it out to everybody.

It has the public rows and nothing else. However many read from it, and however slowly, the centre has one more reader.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from dpfuse.errors import DpfuseError, FileRefused, ReleaseRefused
from dpfuse.public.feed import Feed
from dpfuse.public.hub import HistoryAway, Hub
from dpfuse.public.parts import CentreParts
from dpfuse.public.replay_notes import ReplayNotes, is_number
from dpfuse.public.rows import (
    DESIGN_ID_LENGTH,
    Message,
    Published,
    Row,
    is_design_id,
    read_any_row,
    read_row,
    release_message,
)
from dpfuse.public.settings import PublicSettings
from dpfuse.public.signatures import Signatory
from dpfuse.public.signed_estimator import read_signatory
from dpfuse.public.status import STATUSES
from dpfuse.remote.block_history import BLOCK, BlockHistory
from dpfuse.remote.client import (
    UNIX,
    connection_errors,
    get_file,
    get_json,
    make_client,
    read_events,
    reason_of,
    rows_at_once,
)

if TYPE_CHECKING:
    import httpx

_SETTINGS, _EVENTS = "/v1/relay/settings", "/v1/relay/events"
_ESTIMATOR, _ESTIMATORS = "/v1/estimator", "/v1/estimators"
# Bytes of all estimators of earlier designs.
_MAX_ESTIMATORS = 2**26
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MAX_TOLD = 10
# Of an interval or another time that a clock shows.
_SHORTEST_S, _LONGEST_S = 1e-6, 1e9


class RelayedClock:
    """The centre's clock, carried on from when it was last received."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] | None = None
        self._at = 0.0

    def set(self, answer: Any) -> None:
        """Take what the centre's clock showed just now."""
        try:
            answer = {
                "step": int(answer["step"]),
                "closes_in_s": float(answer["closes_in_s"]),
                "interval_s": float(answer["interval_s"]),
                "delay_s": float(answer["delay_s"]),
                "is_over": bool(answer["is_over"]),
            }
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ReleaseRefused(
                "clock must hold step, closes_in_s, interval_s and delay_s; is this a centre?"
            ) from None
        is_right = abs(answer["closes_in_s"]) < _LONGEST_S and abs(answer["delay_s"]) < _LONGEST_S  # not so for NaN
        if not (is_right and _is_count(answer["step"]) and _SHORTEST_S <= answer["interval_s"] < _LONGEST_S):
            raise ReleaseRefused("clock must hold a step and times that can be; is this a centre?")
        self._answer, self._at = answer, time.monotonic()

    def __call__(self) -> dict[str, Any]:
        """The clock now; as it was received if a finite design is over."""
        assert self._answer is not None, "asked before the centre answered"
        answer = self._answer
        if answer["is_over"]:
            return answer
        passed_s = answer["interval_s"] - answer["closes_in_s"] + time.monotonic() - self._at
        num_ended, into_s = divmod(passed_s, answer["interval_s"])
        return {**answer, "step": answer["step"] + int(num_ended), "closes_in_s": answer["interval_s"] - into_s}


class Relay:
    """Keeps a hub and a feed that are filled from upstream, a centre or another relay.

    **Guarantees**
        - A release without the signature of the centre is left out, and the genuine one is taken after it. Only the
          socket of a centre on this machine (`unix:`) is believed without a signature.
        - An old release of an earlier design is passed on with the same signature for that design, if upstream hands
          out the estimator of the design; over `unix:` always.
        - The estimator's file is handed out if the same key has signed it, for the same ledger and design; so are those
          of earlier designs, for the same ledger.
        - A signed release that contradicts the one before it stops the relay.
        - Steps that were missed are read from upstream when somebody asks for them, one block at a time.
        - Estimates, status and clock are those of upstream; they are not signed. `dpfuse estimate` makes the
          estimates from the releases by itself.

    Args:
        url: of the centre's reading address or of another relay; `unix:PATH` for the socket of a centre.
        ca: certificates to trust in place of the system's.
        public_key: the centre's, if it is known from elsewhere; by default the one that upstream names.
        tell: gets a line of text when upstream is away or back, and which key is gone by if none was given.

    Raises:
        ReleaseRefused: upstream is no centre, or not the one with that key.
        ConnectionError: nothing answers there.
    """

    def __init__(
        self,
        url: str,
        *,
        ca: Path | None = None,
        public_key: str | None = None,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._url, self._tell, self._is_local = url, tell, url.startswith(UNIX)
        # Readers' threads fetch history while the follower's thread waits for events.
        self._client, self._history_client = make_client(url, ca), make_client(url, ca)
        try:
            self._settings = self._meet(public_key)
            self._signatories: dict[str, Signatory] = {}  # by the ids of designs in rows
            self.estimator, signatory = self._read_estimator(_ESTIMATOR)
            if signatory != self._settings.signed_by:
                raise ReleaseRefused(f"{url} hands out an estimator of another key, ledger or design than it names")
            self.by_design = dict(self._read_earlier())
        except BaseException as error:
            self.close()
            if isinstance(error, connection_errors()):
                raise ConnectionError(f"no centre answers at {url} ({reason_of(error)}); is it running?") from error
            raise
        settings = self._settings
        self._status, self._num_forged, self._parts = "stopped", 0, CentreParts()
        self._last: dict[str, Row] = {}
        self.clock = RelayedClock()
        self.hub = Hub(
            dict.fromkeys(settings.streams, 0), BlockHistory(self._fetch, lambda stream: self.hub.last_step(stream))
        )
        self.notes = ReplayNotes() if settings.is_replay else None
        self.feed = Feed(self.hub, settings, status=lambda: self._status, notes=self.notes, parts=lambda: self._parts)
        self.is_ready = threading.Event()
        self.is_stopping = threading.Event()

    def follow(self) -> None:
        """Read from upstream until `is_stopping`; reconnects whenever the connection is lost."""
        pause_s, is_first = _FIRST_PAUSE_S, True
        while True:
            try:
                if not is_first:
                    self._check_unchanged()
                start = min(self.hub.last_step(stream) for stream in self.hub.streams) + 1
                for event in read_events(self._client, _EVENTS, start):
                    self._take(event)
                    if pause_s > _FIRST_PAUSE_S:
                        self._tell(f"{self._url} is back")
                    pause_s = _FIRST_PAUSE_S
                    self.is_ready.set()
                reason = "it closed the connection"
            except connection_errors() as error:
                reason = reason_of(error)
            is_first = False
            if self.is_stopping.wait(pause_s):
                return
            if pause_s == _FIRST_PAUSE_S:
                self._tell(f"{self._url} is away ({reason}); trying again")
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def close(self) -> None:
        """Close the connections to upstream, after `follow` has returned."""
        self._client.close()
        self._history_client.close()

    def _meet(self, public_key: str | None) -> PublicSettings:
        """The settings of upstream, if they name the right signatory."""
        settings = self._read_settings()
        if settings.signed_by is None:
            raise ReleaseRefused(f"{self._url} does not name who signs its releases; a relay takes signed ones only")
        if public_key is not None and settings.signed_by.public_key != public_key.strip().lower():
            raise ReleaseRefused(f"{self._url} has another public key than the given one; is it the right centre?")
        if public_key is None and not self._is_local:
            self._tell(settings.signed_by.named_by(self._url))
        return settings

    def _read_estimator(self, place: str) -> tuple[bytes, Signatory | None]:
        """The content of an estimator's file, and who has signed it."""
        content = get_file(self._client, place)
        with tempfile.TemporaryDirectory() as folder:
            (path := Path(folder, "fetched.estimator")).write_bytes(content)
            try:
                return content, read_signatory(path)
            except FileRefused as error:
                raise ReleaseRefused(f"the estimator at {self._url} is refused: {error}") from error

    def _read_earlier(self) -> Iterator[tuple[str, bytes]]:
        """The estimator of each design that the ledger has had, if the same key has signed it; up to a size."""
        designs, size = get_json(self._client, _ESTIMATORS).get("designs"), 0
        for design in filter(is_design_id, designs if isinstance(designs, list) else []):
            content, signatory = self._read_estimator(f"{_ESTIMATORS}/{design}")
            expected = self._settings.signed_by
            if signatory is None or expected is None or signatory != expected._replace(design=signatory.design):
                raise ReleaseRefused(f"{self._url} hands out an estimator of another key or ledger than it names")
            if (size := size + len(content)) > _MAX_ESTIMATORS:
                return
            if signatory.design[:DESIGN_ID_LENGTH] == design:
                self._signatories[design] = signatory
                yield design, content

    def _read_settings(self) -> PublicSettings:
        try:
            return PublicSettings.from_dict(get_json(self._client, _SETTINGS))
        except ValueError as error:
            raise ReleaseRefused(f"{self._url}: {error}") from error

    def _check_unchanged(self) -> None:
        settings = self._read_settings()
        if replace(settings, first_step=self._settings.first_step) != self._settings:
            raise DpfuseError(f"the settings at {self._url} have changed; start the relay again")

    def _take(self, event: Mapping[str, Any]) -> None:
        """Publish what an event holds."""
        facts, points = event.get("facts"), event.get("points")
        if not isinstance(facts, Mapping) or not isinstance(points, list):
            raise ReleaseRefused(f"{self._url} sent no event of a relay's feed; is it a centre?")
        self.clock.set(facts.get("clock"))
        if facts.get("status") in STATUSES:
            self._status = facts["status"]
        self._parts = CentreParts.from_dict(facts.get("parts"))
        if _is_count(facts.get("first_step")):
            self.feed.first_step = facts["first_step"]
        published, messages = [], []
        for point in points:
            if (taken := self._take_point(point)) is not None:
                published.append(taken[0])
                messages.append(taken[1])
        if published:
            self.hub.publish(published, messages)
        for point in points:  # after `publish`, which counts them itself
            self._take_count(point)

    def _take_point(self, point: Any) -> tuple[Published, Message] | None:
        """One published row and its message; None for one that is known or not signed."""
        release = point.get("release") if isinstance(point, Mapping) else None
        row = self._read_row(release) if isinstance(release, Mapping) else None
        if row is None or release is None or row.stream not in self.hub.streams:
            raise ReleaseRefused(f"{self._url} sent no release; is it a centre?")
        last = self._last.get(row.stream)
        if last is not None and row.step <= last.step:
            return None
        message = self._message_of(row, release)
        if message is None:
            return None
        self._follow_chain(row, last)
        if is_number(at_s := point.get("at")) and 0 <= at_s < _LONGEST_S * 1e3:
            self.feed.set_time(row.step, float(at_s))
        if self.notes is not None and isinstance(point.get("notes"), Mapping):
            self.notes.set_step(row.stream, row.step, point["notes"])
        mean, std = (_numbers(point.get(name), self._settings.num_states) for name in ("mean", "std"))
        return Published(row, mean, std), message

    def _read_row(self, release: Mapping[str, Any]) -> Row:
        settings = self._settings
        return read_row(release, settings.dimension, settings.horizon, len(settings.inputs))

    def _message_of(self, row: Row, release: Mapping[str, Any]) -> Message | None:
        """The signed message; None if the signature is not the centre's."""
        signature = release.get("signature")
        signatory = self._signatories.get(row.design, self._settings.signed_by)
        assert signatory is not None  # checked at the first contact
        if not self._is_local and not signatory.has_signed(row, signature):
            self._num_forged += 1
            if self._num_forged <= _MAX_TOLD:
                self._tell(f"{self._url} sent step {row.step} without the centre's signature; it is left out")
            return None
        try:
            return release_message(row, bytes.fromhex(str(signature)))
        except ValueError:
            raise ReleaseRefused("signature must be hexadecimal digits") from None

    def _follow_chain(self, row: Row, last: Row | None) -> None:
        if last is None or row != Row.after(last.hash, *row[:-1]):
            if last is not None and row.step == last.step + 1:
                raise ReleaseRefused(
                    f"step {row.step} of stream {row.stream!r} does not follow from the step before it"
                )
            self.hub.forget(row.stream, row.step)  # there are steps before it that this relay has not seen
        self._last[row.stream] = row

    def _take_count(self, point: Mapping[str, Any]) -> None:
        num_released = point.get("released")
        if _is_count(num_released):
            self.feed.set_released(point["release"]["stream"], num_released)

    def _fetch(self, stream: str, first: int, last: int) -> list[Message]:
        """The genuine messages of these steps, from upstream."""
        try:
            return list(self._read_pages(self._history_client, stream, first, last))
        except ReleaseRefused:
            raise HistoryAway from None
        except connection_errors():
            raise HistoryAway from None

    def _read_pages(self, client: httpx.Client, stream: str, first: int, last: int) -> Iterator[Message]:
        limit = min(BLOCK, rows_at_once(self._settings.values_in_row))
        while first <= last:
            page = get_json(client, f"/v1/streams/{stream}/releases", start=first, limit=limit).get("releases")
            if not isinstance(page, list) or not page:
                return
            for release in page:
                row = read_any_row(release)  # of an earlier design, maybe
                if row.stream != stream or row.step < first:
                    raise ReleaseRefused(f"{self._url} sent other releases than it was asked for")
                if row.step > last:
                    return
                first = row.step + 1
                message = self._message_of(row, release)
                if message is not None:
                    yield message


def _numbers(values: Any, count: int) -> tuple[float, ...]:
    """Estimates as numbers; NaN for what is none, as JSON has no infinity."""
    values = values if isinstance(values, list) and len(values) == count else [None] * count
    return tuple(float(value) if is_number(value) else float("nan") for value in values)


def _is_count(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number of 63 bits: larger ones cannot be sent on."""
    return type(value) is int and 0 <= value < 2**63
