"""A witness: keeps the newest release of each stream, and notices a centre that has rewritten its past.

The hash of a row covers all rows of its stream before it, and the centre signs it. So one signed row stands for the
whole past. A witness belongs on a machine that the centre's operator cannot write to.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dpfuse.errors import FileRefused, PastChanged, ReleaseRefused
from dpfuse.public.rows import DESIGN_ID_LENGTH, Message, Row, read_any_row, release_message
from dpfuse.public.settings import PublicSettings
from dpfuse.public.signatures import Signatory
from dpfuse.public.witness_file import WitnessFile
from dpfuse.remote.client import get_json, make_client, rows_at_once

if TYPE_CHECKING:
    import httpx

# Rows that are asked for at once, and pages of a stream that one look reads.
_PAGE, _MAX_PAGES = 1000, 1000
# Of what came another way: how often one look asks for more, and releases of a stream that wait until the address shows
# them. The first steps stay: the address shows them first, so steps that never come displace none of them.
_MAX_BATCHES, _MAX_WAITING = 100, 1000


class Witness:
    """Compares what a centre shows now with what it showed before, and keeps the newest signed release of each stream.

    **Guarantees**
        - `look` raises for a centre whose stream lacks a kept release, has another one of that step, or goes on
          in a way that does not follow from it; also after a restart of the witness.
        - A release is kept only with the centre's signature, and the centre's key never changes.
        - `look` raises also for a centre that does not show a release which came another way with its signature, but
          shows that step or a later one. It keeps this release.
        - A release that came another way and is left out is told: one without the centre's signature, and one of a
          stream of which too many wait until the address shows them.
        - A look ends whatever is sent: it reads up to 1,000 pages of a stream. Every page has to end with a signed row,
          except for rows of a design that was replaced before this witness began: a later row stands for these.

    Args:
        url: of a reading address: a centre's or a relay's.
        path: of the file that keeps the releases, one message a line; made if it is missing.
        ca: certificates to trust in place of the system's.
        public_key: the centre's, if it is known from elsewhere; by default the one that it names at first.
        tell: gets a line of text about a stream that is no longer there, or that the next look goes on with.
        elsewhere: returns the next release messages that came another way, none if all were taken, such as
            `ReleaseTopics.take`. Those that the centre has not signed are left out.
    """

    def __init__(
        self,
        url: str,
        path: Path,
        *,
        ca: Path | None = None,
        public_key: str | None = None,
        tell: Callable[[str], object] = lambda _: None,
        elsewhere: Callable[[], Iterable[bytes]] = list,
    ) -> None:
        self._url, self._path, self._tell = url, path, tell
        self._file = WitnessFile(path)
        try:
            self._kept = dict(_read_kept(path))
            self._client = make_client(url, ca)
        except BaseException:
            self._file.close()
            raise
        self._public_key = None if public_key is None else public_key.strip().lower()
        self._gone: set[str] = set()
        self._signatories: dict[str, Signatory] = {}  # of all looks, by the ids of designs in rows
        self._elsewhere = elsewhere
        self._heard: dict[Row, Message] = {}  # from elsewhere, and not compared yet
        self._full: set[str] = set()  # streams of which releases were left out
        self._num_refused = 0

    def look(self) -> int:
        """Compare, and keep the newest releases; returns the number of streams with a new one.

        Raises:
            PastChanged: the centre has rewritten or lost what it had released.
            ReleaseRefused: what came is not a release of this centre.
        """
        settings = self._settings()
        signatory = self._signatory(settings)
        newest = []
        for stream in sorted({*settings.streams, *self._kept}):
            if stream not in settings.streams:
                if stream not in self._gone:
                    self._tell(f"{self._url} no longer has the stream {stream!r}")
                self._gone.add(stream)
                continue
            message = self._follow(stream, min(_PAGE, rows_at_once(settings.values_in_row)), signatory)
            if message is not None:
                newest.append(message)
        self._compare(settings, signatory)
        if newest:
            self._file.append(newest)
        return len(newest)

    def close(self) -> None:
        """Close the file and the connection."""
        self._file.close()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settings(self) -> PublicSettings:
        try:
            return PublicSettings.from_dict(get_json(self._client, "/v1/relay/settings"))
        except ValueError as error:
            raise ReleaseRefused(f"{self._url}: {error}") from error

    def _signatory(self, settings: PublicSettings) -> Signatory:
        """Who signs; the key must be the one that was known before."""
        signatory = settings.signed_by
        if signatory is None:
            raise ReleaseRefused(f"{self._url} does not name who signs its releases; a witness keeps signed ones only")
        if self._public_key is None:
            self._public_key = signatory.public_key
        if signatory.public_key != self._public_key:
            raise PastChanged(f"{self._url} signs with another key than before; is it the same centre?")
        self._signatories[signatory.design[:DESIGN_ID_LENGTH]] = signatory
        return signatory

    def _follow(self, stream: str, limit: int, signatory: Signatory) -> Message | None:
        """Compare a stream with its kept row, and keep the newest one; its message, or None if it is the kept one."""
        newest, unsigned = None, None
        for row, signature in self._new_rows(stream, limit):
            is_signed = self._signatories.get(row.design, signatory).has_signed(row, signature)
            unsigned = None if is_signed else row
            if is_signed:
                newest = release_message(row, bytes.fromhex(signature))
                self._kept[stream] = row
            elif row.design in self._signatories:
                break
        if unsigned is not None:
            raise ReleaseRefused(f"{self._url}: step {unsigned.step} of stream {stream!r} lacks the centre's signature")
        return newest

    def _new_rows(self, stream: str, limit: int) -> Iterator[tuple[Row, Any]]:
        """The last row of each page after the kept row, with its signature; all rows of the page follow from it."""
        last = self._kept.get(stream)
        start = self._first_step() if last is None else last.step
        for number in range(_MAX_PAGES):
            new = page = _read_page(self._client, stream, start, limit)
            if number == 0 and last is not None:
                if not page:
                    raise PastChanged(
                        f"{self._url} has lost step {last.step} of stream {stream!r}, which {self._path} holds: its "
                        f"ledger was rolled back or replaced"
                    )
                self._check(page[0][0] == last, page[0][0])
                new = page[1:]
            for row, _ in new:  # nothing is known of the rows before the first one that is kept
                self._check(last is None or row == Row.after(last.hash, *row[:-1]), row)
                last = row
            if new:
                yield new[-1]
            if len(page) < limit:
                return
            start = page[-1][0].step + 1
        self._tell(f"{self._url} has many new releases of stream {stream!r}; the next look goes on with them")

    def _compare(self, settings: PublicSettings, signatory: Signatory) -> None:
        """Compare releases that came another way with what the centre shows; those that it does not show yet wait."""
        ends: dict[str, int] = {}
        try:
            for _ in range(_MAX_BATCHES):
                messages = list(self._elsewhere())
                self._heard.update(self._signed(messages, signatory))
                try:
                    self._compare_heard(settings, ends)
                finally:
                    self._limit_heard()
                if not messages:
                    return
        finally:
            if self._num_refused:
                self._tell(
                    f"{self._num_refused} messages from elsewhere lack the signature of {self._url} and are left out"
                )
            self._num_refused = 0

    def _compare_heard(self, settings: PublicSettings, ends: dict[str, int]) -> None:
        """Compare those that the address shows; `ends` gets the step from which on it shows nothing, by stream."""
        limit, shown = min(_PAGE, rows_at_once(settings.values_in_row)), dict[tuple[str, int], Row]()
        for row in sorted(self._heard, key=lambda each: each[:2]):
            place = row.stream, row.step
            if row.step >= ends.get(row.stream, row.step + 1):
                continue
            if row.stream in settings.streams and place not in shown:
                shown = {(row.stream, each.step): each for each, _ in _read_page(self._client, *place, limit)}
                if not shown:  # the address is behind, such as a relay
                    ends[row.stream] = row.step
                    continue
            if row.stream in settings.streams and shown.get(place) != row:
                self._file.append([self._heard[row]])  # so that it is noticed also after a restart
                raise PastChanged(
                    f"{self._url} does not show the release of step {row.step} of stream {row.stream!r} that the "
                    f"centre has signed and published elsewhere, such as over MQTT; its ledger was rewritten"
                )
            del self._heard[row]

    def _limit_heard(self) -> None:
        """Leave out what is too much of a stream; says so once, until none of its releases waits any more."""
        num_waiting = Counter[str]()
        for row in sorted(self._heard, key=lambda each: each[:2]):
            num_waiting[row.stream] += 1
            if num_waiting[row.stream] > _MAX_WAITING:
                del self._heard[row]
        full = {stream for stream, number in num_waiting.items() if number > _MAX_WAITING}
        for stream in sorted(full - self._full):
            self._tell(
                f"{self._url} does not show yet more than {_MAX_WAITING} releases of stream {stream!r} that came from "
                f"elsewhere; later ones are left out and not compared"
            )
        self._full = full | {stream for stream in self._full if num_waiting[stream]}

    def _signed(self, messages: Iterable[bytes], signatory: Signatory) -> Iterator[tuple[Row, Message]]:
        """Releases with the centre's signature; the others are left out and counted."""
        for message in messages:
            try:
                row = read_any_row(release := json.loads(message))
            except (ValueError, RecursionError, ReleaseRefused):
                self._num_refused += 1
                continue
            if self._signatories.get(row.design, signatory).has_signed(row, signature := release.get("signature")):
                yield row, release_message(row, bytes.fromhex(signature))
            else:
                self._num_refused += 1

    def _first_step(self) -> int:
        """Where to begin with a stream of which nothing is kept."""
        step = get_json(self._client, "/v1/clock").get("step")
        if type(step) is not int or not 0 < step < 2**63:
            raise ReleaseRefused(f"{self._url}: the clock must hold a step; is this a centre?")
        return max(1, step - _PAGE)

    def _check(self, is_right: bool, row: Row) -> None:
        if not is_right:
            raise PastChanged(
                f"{self._url} shows another past: step {row.step} of stream {row.stream!r} does not follow from what "
                f"{self._path} holds; its ledger was rewritten, or restored without a witness"
            )


def _read_page(client: httpx.Client, stream: str, start: int, limit: int) -> list[tuple[Row, Any]]:
    """Rows of a stream from a step on, in order, with their signatures; fewer than `limit` if there are no more."""
    page = get_json(client, f"/v1/streams/{stream}/releases", start=start, limit=limit).get("releases")
    rows: list[tuple[Row, Any]] = []
    for release in page if isinstance(page, list) else []:
        row = read_any_row(release)
        if row.stream != stream or row.step < start or len(rows) == limit:
            raise ReleaseRefused(f"{client.base_url} sent other releases than it was asked for")
        rows.append((row, release.get("signature")))
        start = row.step + 1
    return rows


def _read_kept(path: Path) -> Iterator[tuple[str, Row]]:
    """The kept rows by stream, the newest one last."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = read_any_row(json.loads(line))
            except (ValueError, RecursionError, ReleaseRefused):
                raise FileRefused(f"{path}, line {number}: this is not a release; name another file") from None
            yield row.stream, row
