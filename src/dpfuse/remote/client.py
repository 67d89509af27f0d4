"""An HTTP client of a centre: requests, server-sent events and checked answers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse._extras import requires_extra
from dpfuse.errors import ReleaseRefused

if TYPE_CHECKING:
    import httpx

# A centre sends something every few seconds. A connection that is silent for so long is opened again.
_SILENCE_S = 20.0
_MAX_LINE, _MAX_FILE = 2**20, 2**24


class TryAgain(Exception):
    """The centre answers, and cannot serve the request at the moment."""


def make_client(url: str, ca: Path | None = None) -> httpx.Client:
    """A client of the centre at that address; `ca` holds certificates to trust in place of the system's."""
    with requires_extra("live", "reading from a centre"):
        import httpx
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, got {url!r}")
    trusted = ssl.create_default_context(cafile=ca) if url.startswith("https://") else False
    return httpx.Client(base_url=url.rstrip("/"), verify=trusted, timeout=httpx.Timeout(5.0, read=_SILENCE_S))


def connection_errors() -> tuple[type[Exception], ...]:
    """The errors that are raised while a centre cannot be reached; to catch before another attempt."""
    import httpx

    return httpx.TransportError, TryAgain


def read_events(client: httpx.Client, path: str, start: int) -> Iterator[dict[str, Any]]:
    """The server-sent events of one connection, from step `start` on, until it ends."""
    headers = {"accept": "text/event-stream", "last-event-id": str(start - 1)}
    with client.stream("GET", path, params={"start": start}, headers=headers) as response:
        _check_status(response)
        for line in _lines(response):
            if line.startswith(b"data:"):
                yield _parse(line[5:])


def get_json(client: httpx.Client, path: str, **params: int) -> dict[str, Any]:
    """The JSON object that the centre answers."""
    response = client.get(path, params=params)
    _check_status(response)
    return _parse(response.content)


def get_file(client: httpx.Client, path: str) -> bytes:
    """The content of a file that the centre answers, up to a limit."""
    content = b""
    with client.stream("GET", path) as response:
        _check_status(response)
        for chunk in response.iter_bytes():
            content += chunk
            if len(content) > _MAX_FILE:
                raise ReleaseRefused(f"a file must have at most {_MAX_FILE} bytes; is {client.base_url} a centre?")
    return content


def _lines(response: httpx.Response) -> Iterator[bytes]:
    rest = b""
    for chunk in response.iter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > _MAX_LINE:
            raise ReleaseRefused(f"a release must fit a line of {_MAX_LINE} bytes; is the sender a centre?")


def _check_status(response: httpx.Response) -> None:
    if response.status_code == 200:
        return
    if response.status_code == 429 or response.status_code >= 500:
        raise TryAgain(f"status {response.status_code}")
    raise ReleaseRefused(
        f"{response.request.url} answered with status {response.status_code}; is this the right address?"
    )


def _parse(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ReleaseRefused("an answer must be a JSON object; is the sender a centre?")
    return content
