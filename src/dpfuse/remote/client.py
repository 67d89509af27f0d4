"""An HTTP client of a centre: requests, server-sent events and checked answers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dpfuse._extras import requires_extra
from dpfuse.errors import ReleaseRefused

if TYPE_CHECKING:
    import httpx

# A centre sends something every few seconds. A connection that is silent for so long is opened again.
_SILENCE_S = 20.0
UNIX = "unix:"
# An answer of empty lists takes 25 times its size once it is parsed.
_MAX_LINE, _MAX_FILE, _MAX_JSON = 2**20, 2**24, 2**23
_MAX_ROWS = 1000
# Bytes of a number in JSON, and of all else in a row with its signature; more than they take.
_NUMBER_SIZE, _ROW_SIZE = 32, 2000


class TryAgain(Exception):
    """The centre answers, and cannot serve the request at the moment."""


def make_client(url: str, ca: Path | None = None, cert: Path | None = None) -> httpx.Client:
    """A client of the centre at that address; `unix:PATH` is a socket on this machine.

    Args:
        ca: holds certificates to trust in place of the system's.
        cert: holds the client's own certificate and its key, for a centre that asks for one.
    """
    with requires_extra("live", "reading from a centre"):
        import httpx
    # No compression: an answer of a few bytes could unpack to gigabytes.
    options: dict[str, Any] = {
        "timeout": httpx.Timeout(5.0, read=_SILENCE_S),
        "headers": {"accept-encoding": "identity"},
    }
    if url.startswith(UNIX):
        transport = httpx.HTTPTransport(uds=url.removeprefix(UNIX))
        return httpx.Client(base_url="http://centre", transport=transport, **options)
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must begin with http:// or https://, got {url!r}")
    if urlsplit(url).username is not None:
        raise ValueError(
            "url must hold no user and no password, since others can read command lines; releases need none"
        )
    if not url.startswith("https://"):
        return httpx.Client(base_url=url.rstrip("/"), verify=False, **options)
    context = ssl.create_default_context(cafile=ca)
    if cert is not None:
        context.load_cert_chain(cert)
    return httpx.Client(base_url=url.rstrip("/"), verify=context, **options)


def connection_errors() -> tuple[type[Exception], ...]:
    """The errors that are raised while a centre cannot be reached; to catch before another attempt."""
    import httpx

    return httpx.TransportError, httpx.DecodingError, TryAgain


def reason_of(error: BaseException) -> str:
    """Why a centre cannot be reached, in words; a certificate that is not trusted comes with its remedy."""
    import httpx

    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted: {found.verify_message}; give the file of the certificate that signed "
                f"it as --ca, and the name that it is made out to as the address"
            )
        if isinstance(found, ssl.SSLError):
            return "it does not answer with TLS; without a certificate its address begins with http://"
        found = found.__cause__ or found.__context__
    if isinstance(error, httpx.RemoteProtocolError):
        return "it does not answer with HTTP; with a certificate its address begins with https://"
    return type(error).__name__


def read_events(client: httpx.Client, path: str, start: int) -> Iterator[dict[str, Any]]:
    """The server-sent events of one connection, from step `start` on, until it ends."""
    headers = {"accept": "text/event-stream", "last-event-id": str(start - 1)}
    with client.stream("GET", path, params={"start": start}, headers=headers) as response:
        _check(response)
        for line in _lines(response):
            if line.startswith(b"data:"):
                yield _parse(line[5:])


def get_json(client: httpx.Client, path: str, **params: int) -> dict[str, Any]:
    """The JSON object that the centre answers, up to a limit."""
    return _parse(_get(client, path, _MAX_JSON, params))


def get_file(client: httpx.Client, path: str) -> bytes:
    """The content of a file that the centre answers, up to a limit."""
    return _get(client, path, _MAX_FILE, {})


def rows_at_once(num_values: int) -> int:
    """How many rows with so many values to ask for, so that the answer is within the limit of `get_json`."""
    return max(1, min(_MAX_ROWS, _MAX_JSON // (_ROW_SIZE + _NUMBER_SIZE * num_values)))


def _get(client: httpx.Client, path: str, limit: int, params: dict[str, int]) -> bytes:
    content = bytearray()
    with client.stream("GET", path, params=params) as response:
        _check(response)
        for chunk in response.iter_raw():
            content += chunk
            if len(content) > limit:
                raise ReleaseRefused(f"an answer must have at most {limit} bytes; is {client.base_url} a centre?")
    return bytes(content)


def _lines(response: httpx.Response) -> Iterator[bytes]:
    rest = b""
    for chunk in response.iter_raw():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > _MAX_LINE:
            raise ReleaseRefused(f"a release must fit a line of {_MAX_LINE} bytes; is the sender a centre?")


def _check(response: httpx.Response) -> None:
    """Refuse an answer before its content is read: by its status, or because it is compressed."""
    if response.status_code == 200:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ReleaseRefused(
                f"{response.request.url} answered with a content-encoding; answers must be sent as they are, without "
                f"compression"
            )
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
