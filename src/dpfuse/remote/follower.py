"""Follows a centre's releases over HTTP, through restarts and gaps: each release once and in order."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse.errors import FileRefused, ReleaseRefused
from dpfuse.public.rows import DESIGN_ID_LENGTH, is_design_id, read_any_row
from dpfuse.public.signatures import Signatory
from dpfuse.public.signed_estimator import read_signatory
from dpfuse.remote.client import (
    connection_errors,
    get_file,
    get_json,
    make_client,
    read_events,
    reason_of,
    rows_at_once,
)
from dpfuse.remote.estimator import RemoteEstimate, RemoteEstimator

if TYPE_CHECKING:
    import httpx

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MAX_TOLD = 10
# Whoever sends releases of other designs makes a reader fetch the estimator no more often.
_ASK_EVERY_S = 5.0
_UNSIGNED = "without the centre's signature"
_UNKNOWN = "of another design, for which it hands out no estimator with the same key"


def follow(
    url: str,
    stream: str,
    estimator: RemoteEstimator,
    start: int = 1,
    *,
    ca: Path | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[RemoteEstimate]:
    """The estimate after every release from step `start` on, then after each new one when it is published.

    It reconnects after lost connections and restarts of the centre, and ends when a finite design has ended. An
    estimator that has read some steps continues after them. Releases that an earlier design of the ledger made, before
    the first one of the estimator's design, are left out.

    A release that names another design is believed if the centre hands out an estimator of that design which is signed
    with the same key for the same ledger, and the release is signed for that design. Otherwise it is left out. An
    estimator without a signatory cannot be compared, and such a release is believed.

    Args:
        url: of the centre, such as http://127.0.0.1:8765.
        ca: certificates to trust in place of the system's.
        tell: gets a line of text when the connection is lost or back, and when a release is left out.

    Raises:
        DesignChanged: the ledger was upgraded to another design after the estimator began; fetch the new estimator.
        ReleaseRefused: what came is not a release of this design, or contradicts the releases before it. A release
            that lacks the signature which the estimator asks for is left out, and the next one is read.
    """
    first = max(start, estimator.last_step(stream) + 1)
    others = None if estimator.signatory is None else _OtherDesigns(url, ca, estimator.signatory)

    def find_fault(release: dict[str, Any]) -> str | None:
        if estimator.is_of_design(release):
            return None if estimator.is_genuine(release) else _UNSIGNED
        return None if others is None or others.is_genuine(release) else _UNKNOWN

    has_left_out = False
    for release in releases(url, stream, first, ca=ca, tell=tell, find_fault=find_fault):
        if not estimator.is_of_design(release):
            if _step_of(release) <= estimator.last_step(stream):
                continue
            if not estimator.last_step(stream):
                if not has_left_out:
                    tell(f"{url} has releases of an earlier design; they are left out")
                has_left_out = True
                continue
        estimate = estimator.update(release)
        if estimate is not None:
            yield estimate


def releases(
    url: str,
    stream: str,
    start: int = 1,
    *,
    ca: Path | None = None,
    tell: Callable[[str], object] = lambda _: None,
    find_fault: Callable[[dict[str, Any]], str | None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Every release message from step `start` on, then each new one; arguments as in `follow`.

    Args:
        find_fault: why a release cannot be taken for the centre's, or None. One with a fault is told and left out.
    """
    next_step, pause_s, num_forged = start, _FIRST_PAUSE_S, 0
    with make_client(url, ca) as client:
        while True:
            try:
                for release in read_events(client, f"/v1/streams/{stream}/releases/events", next_step):
                    step = _step_of(release)
                    if release.get("stream") != stream:
                        raise ReleaseRefused(f"{url} sent a release of another stream than {stream!r}")
                    if (fault := find_fault(release)) is not None:
                        num_forged += 1
                        if num_forged <= _MAX_TOLD:
                            tell(f"{url} sent step {step} {fault}; it is left out")
                        continue
                    if pause_s > _FIRST_PAUSE_S:
                        tell(f"{url} is back")
                    pause_s = _FIRST_PAUSE_S
                    if step > next_step:
                        between = _between(client, stream, next_step, release)
                        yield from (each for each in between if find_fault(each) is None)
                    if step >= start:
                        yield release
                    next_step = max(next_step, step + 1)
                if get_json(client, "/v1/clock").get("is_over") is True:
                    return
                reason = "it closed the connection"
            except connection_errors() as error:
                reason = reason_of(error)
            if pause_s == _FIRST_PAUSE_S:
                tell(f"{url} is away ({reason}); trying again")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def fetch_estimator(
    url: str,
    stream: str | None = None,
    start: int = 1,
    *,
    ca: Path | None = None,
    public_key: str | None = None,
    tell: Callable[[str], object] | None = None,
) -> RemoteEstimator:
    """An estimator that a centre offers for download; `public_key` as in `RemoteEstimator.load`.

    Args:
        stream, start: take that of the design which made the first release of this stream from this step on, if the
            centre has it. By default, or where there is no such release, that of the centre's design; so too where the
            file is signed and cannot be read here, as one of an older version of dpfuse.
        tell: if given, a centre that does not answer is waited for, and this gets a line that says so, or that the
            estimator of a design cannot be read.

    Raises:
        FileRefused: the file is not signed as it should be, or that of the centre's design cannot be read.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            design = None if stream is None else _design_of(url, ca, stream, start)
            with _fetched(url, ca, design) as path:
                read_signatory(path, public_key)  # a file of another key is refused, whatever else is wrong with it
                try:
                    return RemoteEstimator.load(path, public_key=public_key)
                except FileRefused as error:
                    if design is None:
                        raise
                    if tell is not None:
                        tell(
                            f"the estimator of design {design} cannot be read ({error}); taking that of the newest one"
                        )
            stream = None
            continue
        except connection_errors() as error:
            if tell is None:
                raise ConnectionError(f"no centre answers at {url} ({reason_of(error)}); is it running?") from error
            if pause_s == _FIRST_PAUSE_S:
                tell(f"no centre answers at {url} ({reason_of(error)}); waiting for it")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@contextmanager
def _fetched(url: str, ca: Path | None, design: str | None) -> Iterator[Path]:
    """The file of the estimator of a design, or of the centre's design; it is there until the context is left."""
    place = "/v1/estimator" if design is None else f"/v1/estimators/{design}"
    with make_client(url, ca) as client, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fetched.estimator"
        path.write_bytes(get_file(client, place))
        yield path


def _design_of(url: str, ca: Path | None, stream: str, start: int) -> str | None:
    """The design of the first release from that step on, if the centre has its estimator. Nothing of it is checked."""
    with make_client(url, ca) as client:
        page = get_json(client, f"/v1/streams/{stream}/releases", start=start, limit=1).get("releases")
        first = page[0] if isinstance(page, list) and page else None
        named = first.get("design") if isinstance(first, dict) else None
        offered = get_json(client, "/v1/estimators").get("designs") if is_design_id(named) else None
    return named if isinstance(offered, list) and named in offered else None


class _OtherDesigns:
    """Tells whether a release of another design than the reader's is the centre's.

    Args:
        known: who signs for the reader's design.
    """

    def __init__(self, url: str, ca: Path | None, known: Signatory) -> None:
        self._url, self._ca, self._known = url, ca, known
        self._found: dict[str, Signatory] = {}
        self._ask_at = 0.0

    def is_genuine(self, release: dict[str, Any]) -> bool:
        """Whether the centre has an estimator of the release's design, and both are signed with the same key."""
        if not is_design_id(design := release.get("design")):
            return False
        if design not in self._found and time.monotonic() >= self._ask_at:
            signatory = self._ask(design)
            if signatory is not None and signatory.design[:DESIGN_ID_LENGTH] == design:
                self._found[design] = signatory
            self._ask_at = time.monotonic() + _ASK_EVERY_S
        if design not in self._found:
            return False
        return self._found[design].has_signed(read_any_row(release), release.get("signature"))

    def _ask(self, design: str) -> Signatory | None:
        try:
            with _fetched(self._url, self._ca, design) as path:
                found = read_signatory(path, self._known.public_key)
        except (FileRefused, ReleaseRefused):
            return None
        except connection_errors():
            return None
        return found if found is not None and found.ledger == self._known.ledger else None


def _between(client: httpx.Client, stream: str, first: int, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The releases from step `first` up to the one of the release `before`; none where steps were skipped."""
    last = _step_of(before)
    limit = rows_at_once(sum(len(values) for values in before.values() if isinstance(values, list)))
    while first < last:
        page = get_json(client, f"/v1/streams/{stream}/releases", start=first, limit=limit).get("releases")
        found = [each for each in page if _step_of(each) < last] if isinstance(page, list) else []
        yield from found
        if not found or _step_of(found[-1]) < first:
            return
        first = _step_of(found[-1]) + 1


def _step_of(release: Any) -> int:
    step = release.get("step") if isinstance(release, dict) else None
    if type(step) is not int:
        raise ReleaseRefused("step must be a whole number; this is not a release")
    return step
