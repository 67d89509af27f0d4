"""Certificates of a door, which can be replaced while it is open."""

from __future__ import annotations

import logging
import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpfuse.errors import FileRefused

_REVOCATIONS = b"-----BEGIN X509 CRL-----"
_log = logging.getLogger(__name__)


class Certificates:
    """The certificate of a door and, if its clients need certificates too, who signs those.

    Args:
        cert, key: the files of the certificate, with what links it to its root, and of its private key.
        client_ca: a file with the certificates that sign those of clients; a client without one gets no answer. Lists
            of revoked certificates in the same file apply. None for a door that is open to all.

    Raises:
        FileRefused: a file is missing or not what it should be.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self.context = self._load()

    def reload(self) -> None:
        """Read the files again, for all later connections. Files that are refused are logged, and change nothing."""
        try:
            self.context = self._load()
        except FileRefused as error:
            _log.warning("the certificates stay as they are: %s", error)

    def _load(self) -> ssl.SSLContext:
        # A new context for each load: what the old one trusted, and the sessions that it began, end with it.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (OSError, ValueError) as error:
            raise FileRefused(
                f"{self._cert} and {self._key} must be a certificate and its private key in PEM, without a password: "
                f"{_reason(error)}"
            ) from None
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
                has_revocations = _REVOCATIONS in self._client_ca.read_bytes()
            except OSError as error:
                raise FileRefused(f"{self._client_ca} must hold certificates in PEM: {_reason(error)}") from None
            context.verify_mode = ssl.CERT_REQUIRED
            if has_revocations:
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context


def _no_password() -> str:
    raise ValueError("the key has a password")  # without this OpenSSL would ask for it at the terminal


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


@contextmanager
def at_hangup(actions: Sequence[Callable[[], Any]]) -> Iterator[None]:
    """Run the actions at each SIGHUP, in a thread of their own; for the main thread of a process.

    What is added to `actions` later is run too.
    """

    def act() -> None:
        for action in tuple(actions):
            action()

    def start(*_: Any) -> None:
        # Not in the handler, which may have interrupted code that holds a lock that an action needs.
        threading.Thread(target=act, name="dpfuse-hangup", daemon=True).start()

    before = signal.signal(signal.SIGHUP, start)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
