"""Transports of a replay: batches over HTTP, or MQTT with a connection for each sensor."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dpfuse._extras import requires_extra

if TYPE_CHECKING:
    import httpx

    from dpfuse.wire.keys import KeyName, SensorKey

# A sensor that has sent nothing for so long has left, and its connection is closed.
_GONE_AFTER_S = 5.0
# Reports that wait longer in the broker have missed their step.
_EXPIRES_AFTER_S = 2


class OutgoingMessage(NamedTuple):
    """A message of a sensor: the line of a report, or garbage."""

    key: SensorKey
    message: bytes


class Transport(Protocol):
    """Sends messages of sensors to a centre."""

    def send(self, messages: Sequence[OutgoingMessage]) -> None: ...


class OverHTTP:
    """Sends all messages in one request."""

    def __init__(self, client: httpx.Client, *, expects_refusals: bool) -> None:
        self._client, self._expects_refusals = client, expects_refusals

    def send(self, messages: Sequence[OutgoingMessage]) -> None:
        send_lines(self._client, "/v1/reports", [each.message for each in messages], self._expects_refusals)


def send_lines(client: httpx.Client, path: str, lines: Sequence[bytes], expects_refusals: bool = False) -> None:
    """Send messages in one request; raises if the centre refuses one."""
    answer = client.post(path, content=b"\n".join(lines), headers={"content-type": "application/x-ndjson"})
    if answer.status_code != 202 or (answer.json()["refused"] and not expects_refusals):
        raise PermissionError(f"{client.base_url} refuses these messages; is this its key file?")


class OverMQTT:
    """A connection for each sensor that reports. Its user name is the name of the sensor's key.

    Args:
        host, port: of the broker, which needs an account for each id (`dpfuse broker`).
        stream: the stream of the reports.
        ca: certificates to trust, for a broker with TLS.
    """

    def __init__(self, host: str, port: int, stream: str, *, ca: Path | None = None) -> None:
        with requires_extra("live", "sending reports over MQTT"):
            from paho.mqtt.packettypes import PacketTypes
            from paho.mqtt.properties import Properties
        self._expiry = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho's own
        self._expiry.MessageExpiryInterval = _EXPIRES_AFTER_S
        self._host, self._port, self._stream, self._ca = host, port, stream, ca
        self._clients: dict[KeyName, Any] = {}
        self._last_sent: dict[KeyName, float] = {}
        self._is_refused = threading.Event()

    def send(self, messages: Sequence[OutgoingMessage]) -> None:
        """Publish each message on the topic of its sensor."""
        now = time.monotonic()
        for key, message in messages:
            if key.name not in self._clients:
                self._clients[key.name] = self._connect(key)
            self._last_sent[key.name] = now
            topic = f"dpfuse/{self._stream}/reports/{key.name}"
            self._clients[key.name].publish(topic, message, qos=1, properties=self._expiry)
        if self._is_refused.is_set():
            raise PermissionError(
                f"the broker at {self._host}:{self._port} refuses a sensor; give its id and the same keys to "
                f"`dpfuse broker`, and see --ids-from"
            )
        for name in [each for each, last in self._last_sent.items() if last < now - _GONE_AFTER_S]:
            self._disconnect(name)

    def close(self) -> None:
        """Close all connections."""
        for name in list(self._clients):
            self._disconnect(name)

    def _connect(self, key: SensorKey) -> Any:
        from paho.mqtt import client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        # A sensor that knew the client id of another could close its connection.
        client = paho.Client(CallbackAPIVersion.VERSION2, secrets.token_hex(16), protocol=paho.MQTTv5)
        client.username_pw_set(str(key.name), key.password)
        if self._ca is not None:
            client.tls_set(str(self._ca))
        client.on_connect = lambda _, __, ___, reason, ____: self._is_refused.set() if reason.is_failure else None
        client.connect_async(self._host, self._port)
        client.loop_start()
        return client

    def _disconnect(self, name: KeyName) -> None:
        client = self._clients.pop(name)
        del self._last_sent[name]
        client.disconnect()
        client.loop_stop()
