"""Follows a centre's releases over HTTP, through restarts and gaps: each release once and in order."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse.errors import ReleaseRefused
from dpfuse.remote.client import connection_errors, get_file, get_json, make_client, read_events
from dpfuse.remote.estimator import RemoteEstimate, RemoteEstimator

if TYPE_CHECKING:
    import httpx

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


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
    estimator that has read some steps continues after them.

    Args:
        url: of the centre, such as http://127.0.0.1:8765.
        ca: certificates to trust in place of the system's.
        tell: gets a line of text when the connection is lost or back.

    Raises:
        ReleaseRefused: what came is not a release of this design, or contradicts the releases before it.
    """
    has_begun = False
    for release in releases(url, stream, max(start, estimator.last_step(stream) + 1), ca=ca, tell=tell):
        if release.get("stream") != stream:
            raise ReleaseRefused(f"{url} sent a release of another stream than {stream!r}")
        estimate = estimator.update(release)
        if estimate is None:
            continue
        if has_begun and not estimate.is_chained:
            raise ReleaseRefused(
                f"step {estimate.step} of stream {stream!r} does not follow from the release before it, and {url} has "
                f"none in between: the past was changed; compare with `dpfuse ledger show --rows`"
            )
        has_begun = True
        yield estimate


def releases(
    url: str,
    stream: str,
    start: int = 1,
    *,
    ca: Path | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Every release message from step `start` on, then each new one; arguments as in `follow`."""
    next_step, pause_s = start, _FIRST_PAUSE_S
    with make_client(url, ca) as client:
        while True:
            try:
                for release in read_events(client, f"/v1/streams/{stream}/releases/events", next_step):
                    step = _step_of(release)
                    if pause_s > _FIRST_PAUSE_S:
                        tell(f"{url} is back")
                    pause_s = _FIRST_PAUSE_S
                    if step > next_step:
                        yield from _between(client, stream, next_step, step)
                    if step >= start:
                        yield release
                    next_step = max(next_step, step + 1)
                if get_json(client, "/v1/clock").get("is_over") is True:
                    return
                reason = "it closed the connection"
            except connection_errors() as error:
                reason = type(error).__name__
            if pause_s == _FIRST_PAUSE_S:
                tell(f"{url} is away ({reason}); trying again")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def fetch_estimator(url: str, *, ca: Path | None = None) -> RemoteEstimator:
    """The estimator that a centre offers for download."""
    with make_client(url, ca) as client, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fetched.estimator"
        try:
            path.write_bytes(get_file(client, "/v1/estimator"))
        except connection_errors() as error:
            raise ConnectionError(f"no centre answers at {url} ({type(error).__name__}); is it running?") from error
        return RemoteEstimator.load(path)


def _between(client: httpx.Client, stream: str, first: int, last: int) -> Iterator[dict[str, Any]]:
    """The releases from step `first` up to, not including, `last`; there are none where steps were skipped."""
    while first < last:
        page = get_json(client, f"/v1/streams/{stream}/releases", start=first, limit=1000).get("releases")
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
