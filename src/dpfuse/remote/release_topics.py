"""The topics on which a centre publishes its releases over MQTT, as a witness reads them."""

from __future__ import annotations

import stat
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from dpfuse._extras import requires_extra
from dpfuse.errors import FileRefused

# More messages, and longer ones, are left out: a broker may send anything.
_MAX_MESSAGES, _MAX_LENGTH = 100_000, 2**16
_AT_ONCE = 10_000
_TOPICS = "dpfuse/+/releases"


class ReleaseTopics:
    """Holds the messages of all streams from a broker until they are taken; connects again by itself.

    Args:
        host, port: of the broker.
        account: user and password, as `dpfuse broker` prints them for estimators.
        ca: certificates to trust, for a broker with TLS.
        tell: gets a line of text when the broker is away, refuses the account, or is back, and when messages were left
            out.
    """

    def __init__(
        self, host: str, port: int, account: tuple[str, str], *, ca: Path | None, tell: Callable[[str], object]
    ) -> None:
        with requires_extra("live", "reading releases over MQTT"):
            from paho.mqtt import client as paho
            from paho.mqtt.enums import CallbackAPIVersion
        self._tell, self._said, self._name = tell, "", f"the broker at {host}:{port}"
        self._heard: deque[bytes] = deque(maxlen=_MAX_MESSAGES)
        self._num_left_out = self._num_told = 0
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)  # the broker draws an id
        self._client.username_pw_set(*account)
        if ca is not None:
            self._client.tls_set(str(ca))
        self._client.on_connect, self._client.on_connect_fail = self._on_connect, self._on_connect_fail
        self._client.on_disconnect, self._client.on_message = self._on_disconnect, self._on_message
        self._client.connect_async(host, port, keepalive=20)
        self._client.loop_start()

    def take(self) -> list[bytes]:
        """The next messages, up to 10,000, in the order in which they came; none if all were taken."""
        if (number := self._num_left_out) > self._num_told:
            self._tell(
                f"{number - self._num_told} messages of {self._name} are left out and not compared: at most "
                f"{_MAX_MESSAGES} wait for a look, each of at most {_MAX_LENGTH} bytes; look more often"
            )
            self._num_told = number
        return [self._heard.popleft() for _ in range(min(len(self._heard), _AT_ONCE))]

    def close(self) -> None:
        """Close the connection."""
        self._client.on_disconnect = None
        self._client.disconnect()
        self._client.loop_stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_connect(self, client: Any, _: Any, __: Any, reason: Any, ___: Any) -> None:
        if reason.is_failure:
            self._say(f"refuses the account of the witness: {reason}")
            return
        client.subscribe(_TOPICS, qos=1)
        if self._said:
            self._say("is back")
            self._said = ""

    def _on_connect_fail(self, *_: Any) -> None:
        self._say(f"is away ({sys.exception()}); trying again")  # paho calls this inside its `except`

    def _on_disconnect(self, *_: Any) -> None:
        if not self._said:
            self._say("closed the connection; trying again")

    def _on_message(self, _: Any, __: Any, message: Any) -> None:
        is_short = len(message.payload) <= _MAX_LENGTH
        if not is_short or len(self._heard) == _MAX_MESSAGES:
            self._num_left_out += 1
        if is_short:
            self._heard.append(bytes(message.payload))  # at the limit the oldest one goes

    def _say(self, text: str) -> None:
        """Say it, unless it was said last."""
        if text != self._said:
            self._said = text
            self._tell(f"{self._name} {text}")


def read_account(path: Path) -> tuple[str, str]:
    """User and password in a file of one line that only its owner may read."""
    if not path.is_file():
        raise FileRefused(f"no account at {path}; `dpfuse broker ... > {path}` writes one")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise FileRefused(f"only its owner may read the account in {path}; run `chmod 600 {path}`")
    user, _, password = path.read_text(encoding="utf-8", errors="replace").strip().partition(" ")
    if not user or not password or len(password.split()) != 1:
        raise FileRefused(f"{path} must hold one line with user and password, as `dpfuse broker` prints it")
    return user, password
