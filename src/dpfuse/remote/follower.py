"""Following a centre's releases over HTTP: through restarts and gaps, none left out and none taken twice."""

from __future__ import annotations

import json
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse._extras import requires_extra
from dpfuse.errors import ReleaseRefused
from dpfuse.remote.estimator import Estimate, RemoteEstimator

if TYPE_CHECKING:
    import httpx

# A centre shows that it is alive every few seconds; one that does not for so long is asked again.
_SILENCE_S = 20.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_LONGEST_LINE, _LARGEST_FILE = 2**20, 2**24

Tell = Callable[[str], object]


def follow(
    url: str,
    stream: str,
    estimator: RemoteEstimator,
    start: int = 1,
    *,
    ca: Path | None = None,
    tell: Tell = lambda _: None,
) -> Iterator[Estimate]:
    """The estimate after every release from step `start` on, and after each new one as it is published.

    Goes on for ever, through lost connections and restarts of the centre, or until a design with an end has come to it.
    An estimator that has read some steps already goes on after them.

    Args:
        url: of the centre, such as http://127.0.0.1:8765.
        ca: certificates to trust, for a centre with one of its own making.
        tell: is handed a line when the connection is lost or back.

    Raises:
        ReleaseRefused: what came is no release of this design, or contradicts what came before.
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
                f"step {estimate.step} of stream {stream!r} does not follow from the one before it, and {url} has none "
                f"in between: the past was changed; compare with `dpfuse ledger show --rows`"
            )
        has_begun = True
        yield estimate


def releases(
    url: str, stream: str, start: int = 1, *, ca: Path | None = None, tell: Tell = lambda _: None
) -> Iterator[dict[str, Any]]:
    """Every release from step `start` on as it was received, then each new one; arguments as in `follow`."""
    following, pause_s = start, _FIRST_PAUSE_S
    with make_client(url, ca) as client:
        while True:
            try:
                for release in events(client, f"/v1/streams/{stream}/releases/events", following):
                    step = _step_of(release)
                    if pause_s > _FIRST_PAUSE_S:
                        tell(f"{url} is back")
                    pause_s = _FIRST_PAUSE_S
                    if step > following:
                        yield from _between(client, stream, following, step)
                    if step >= start:
                        yield release
                    following = max(following, step + 1)
                if _is_over(client):
                    return
                reason = "it closed the connection"
            except away() as error:
                reason = type(error).__name__
            if pause_s == _FIRST_PAUSE_S:
                tell(f"{url} is away ({reason}); trying again")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def fetch_estimator(url: str, *, ca: Path | None = None) -> RemoteEstimator:
    """The estimator that a centre hands out."""
    with make_client(url, ca) as client, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fetched.estimator"
        try:
            with client.stream("GET", "/v1/estimator") as response:
                _check_status(response)
                path.write_bytes(_content(response))
        except away() as error:
            raise ConnectionError(f"no centre answers at {url} ({type(error).__name__}); is it running?") from error
        return RemoteEstimator.load(path)


def make_client(url: str, ca: Path | None = None) -> httpx.Client:
    """A client of the centre at that address."""
    with requires_extra("live", "reading from a centre"):
        import httpx
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, got {url!r}")
    trusted = ssl.create_default_context(cafile=ca) if url.startswith("https://") else False
    return httpx.Client(base_url=url.rstrip("/"), verify=trusted, timeout=httpx.Timeout(5.0, read=_SILENCE_S))


class _TryAgain(Exception):
    """The centre is there and cannot answer at the moment."""


def away() -> tuple[type[Exception], ...]:
    """What is raised while a centre is away, to be caught and tried again."""
    import httpx

    return httpx.TransportError, _TryAgain


def events(client: httpx.Client, path: str, following: int) -> Iterator[dict[str, Any]]:
    """The server-sent events of one connection, from step `following` on, until it ends."""
    headers = {"accept": "text/event-stream", "last-event-id": str(following - 1)}
    with client.stream("GET", path, params={"start": following}, headers=headers) as response:
        _check_status(response)
        for line in _lines(response):
            if line.startswith(b"data:"):
                yield _parse(line[5:])


def _content(response: httpx.Response) -> bytes:
    content = b""
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > _LARGEST_FILE:
            raise ReleaseRefused(f"an estimator must have at most {_LARGEST_FILE} bytes; this is no centre")
    return content


def _lines(response: httpx.Response) -> Iterator[bytes]:
    rest = b""
    for chunk in response.iter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > _LONGEST_LINE:
            raise ReleaseRefused(f"a release must fit a line of {_LONGEST_LINE} bytes; this is no centre")


def _between(client: httpx.Client, stream: str, first: int, last: int) -> Iterator[dict[str, Any]]:
    """The releases from step `first` up to, not including, `last`; there are none where steps were skipped."""
    while first < last:
        response = client.get(f"/v1/streams/{stream}/releases", params={"start": first, "limit": 1000})
        _check_status(response)
        page = _parse(response.content).get("releases")
        found = [each for each in page if _step_of(each) < last] if isinstance(page, list) else []
        yield from found
        if not found or _step_of(found[-1]) < first:
            return
        first = _step_of(found[-1]) + 1


def _is_over(client: httpx.Client) -> bool:
    response = client.get("/v1/clock")
    _check_status(response)
    return _parse(response.content).get("is_over") is True


def _check_status(response: httpx.Response) -> None:
    if response.status_code == 200:
        return
    if response.status_code == 429 or response.status_code >= 500:
        raise _TryAgain(f"status {response.status_code}")
    raise ReleaseRefused(
        f"{response.request.url} answered with status {response.status_code}; is this the right address?"
    )


def _parse(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ReleaseRefused("what was received is no JSON object; this is no centre")
    return content


def _step_of(release: Any) -> int:
    step = release.get("step") if isinstance(release, dict) else None
    if type(step) is not int:
        raise ReleaseRefused("step must be a whole number; this is no release")
    return step
