"""The centre over MQTT 5: reports from `dpfuse/<stream>/reports/<key>`, releases to `dpfuse/<stream>/releases`."""

from __future__ import annotations

import hmac
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from dpfuse._extras import requires_extra
from dpfuse.errors import DpfuseError
from dpfuse.wire.broker import MAX_INFLIGHT, SESSION_S
from dpfuse.wire.intake import quiet_time_s

with requires_extra("live", "serving over MQTT"):
    from paho.mqtt import client as paho
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.subscribeoptions import SubscribeOptions

if TYPE_CHECKING:
    from dpfuse.centre.clock import Ticker
    from dpfuse.public.hub import Hub
    from dpfuse.wire.intake import Intake
    from dpfuse.wire.keys import BrokerAccount

_TOPIC = re.compile(r"dpfuse/([^/]+)/reports/([^/]+)")
_TOPICS_PER_REQUEST = 100
# Steps that are published again after a restart: the centre may have been killed after it committed them.
_REPEATED_STEPS = 10
_log = logging.getLogger(__name__)


class Bridge:
    """Carries reports from a broker to the intake, and releases from the hub to the broker.

    **Guarantees**
        - A report is acknowledged after the intake has taken it. The acknowledgement does not depend on its content.
        - As over HTTP, no report is handed to the intake just before the moment of a release. Reports wait in a queue
          of at most `MAX_INFLIGHT` of QoS 1: the broker sends no more of these until some are acknowledged.
        - A broker that is away, slow or killed delays neither the centre nor a client over HTTP. When it is back, the
          bridge publishes what it missed, the same bytes, and the last release of each stream is retained again.
        - After a restart the bridge publishes the last releases once more. A reader recognises them by their step.
        - No payload can stop the bridge, and the log holds nothing of a payload.
        - Without the centre's password nobody knows its client id, with which any user of the broker could close its
          connection.

    Args:
        accounts: returns the broker's users for the centre, one for each generation of keys; tried in turn.
        ca: a file with the certificates to trust, for a broker with TLS.
    """

    def __init__(
        self,
        intake: Intake,
        hub: Hub,
        ticker: Ticker,
        accounts: Callable[[], Sequence[BrokerAccount]],
        host: str,
        port: int,
        *,
        ca: str | None = None,
    ) -> None:
        self._intake, self._hub, self._ticker = intake, hub, ticker
        self._accounts, self._num_refused = accounts, 0
        self._next_step = {stream: max(hub.last_step(stream) - _REPEATED_STEPS + 1, 1) for stream in hub.streams}
        self._is_connected, self._is_stopped = threading.Event(), False
        self._hint = "; if it speaks TLS, give --mqtt-ca" if ca is None else ""
        self._logged: set[str] = set()
        self._lock, self._num_unanswered = threading.Lock(), 0
        self._client = self._make_client(ca)
        self._client.connect_async(host, port, keepalive=20, clean_start=False, properties=_properties())
        self._publisher = threading.Thread(target=self._publish_all, name="dpfuse-mqtt", daemon=True)
        # The client's own thread also sends releases, so it may not wait for them.
        self._arrived: SimpleQueue[paho.MQTTMessage | None] = SimpleQueue()
        self._taker = threading.Thread(target=self._take_all, name="dpfuse-mqtt-reports", daemon=True)

    @property
    def is_connected(self) -> bool:
        return self._is_connected.is_set()

    def start(self) -> None:
        """Connect as soon as the broker answers, and again whenever the connection is lost."""
        self._client.loop_start()
        self._publisher.start()
        self._taker.start()

    def stop(self) -> None:
        self._is_stopped = True
        self._is_connected.set()  # the publisher wakes up and sees that it is over
        self._publisher.join(5)
        self._arrived.put(None)
        self._taker.join(5)
        self._client.disconnect()
        self._client.loop_stop()

    def receive(self, topic: str, payload: bytes) -> None:
        """Hand one message to the intake, with the stream and the key that its topic names."""
        named = _TOPIC.fullmatch(topic)
        if named is not None:
            self._intake.accept([payload], sender=(named[1], named[2]))

    def _make_client(self, ca: str | None) -> paho.Client:
        user, password = self._accounts()[0]
        client_id = make_client_id(password, self._hub.streams)
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5, manual_ack=True)
        client.username_pw_set(user, password)
        if ca is not None:
            client.tls_set(ca)
        client.reconnect_delay_set(1, 4)
        client.max_inflight_messages_set(MAX_INFLIGHT)
        client.max_queued_messages_set(max(MAX_INFLIGHT, 4 * len(self._hub.streams)))
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_connect_fail = self._on_connect_fail
        client.on_message, client.on_subscribe = self._on_message, self._on_subscribe
        return client

    def _on_connect(self, client: paho.Client, _: Any, __: Any, reason: Any, ___: Any) -> None:
        if reason.is_failure:
            self._num_refused += 1
            accounts = self._accounts()
            if self._num_refused % len(accounts) == 0:
                self._warn_once("refused", f"the broker refuses the centre: {reason}; is it set up with the same keys?")
            client.username_pw_set(*accounts[self._num_refused % len(accounts)])
            return
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        topics = [(f"dpfuse/{stream}/reports/+", options) for stream in self._hub.streams]
        groups = [topics[first : first + _TOPICS_PER_REQUEST] for first in range(0, len(topics), _TOPICS_PER_REQUEST)]
        self._num_unanswered = len(groups)
        for group in groups:
            client.subscribe(group)
        with self._lock:  # a broker that was restarted has no retained release
            for stream in self._next_step:
                self._next_step[stream] = max(min(self._next_step[stream], self._hub.last_step(stream)), 1)

    def _on_subscribe(self, *_: Any) -> None:
        self._num_unanswered -= 1
        if self._num_unanswered == 0:
            if self._logged:
                _log.warning("the broker is connected")
            self._logged.clear()
            self._is_connected.set()

    def _on_connect_fail(self, *_: Any) -> None:
        error = sys.exception()  # paho calls this inside its `except`
        self._warn_once("away", f"the broker cannot be reached: {error}; the centre keeps trying")

    def _on_disconnect(self, *_: Any) -> None:
        if not self._is_stopped:
            hint = "" if self.is_connected else self._hint
            self._is_connected.clear()
            if "refused" not in self._logged:  # the warning of the refusal names the cause
                self._warn_once("lost", f"the broker closed the connection; the centre keeps trying{hint}")

    def _warn_once(self, kind: str, text: str) -> None:
        """Log the first warning of each kind since the last time the connection was up."""
        if kind not in self._logged and not self._is_stopped:
            _log.warning("%s", text)
            self._logged.add(kind)

    def _on_message(self, _: paho.Client, __: Any, message: paho.MQTTMessage) -> None:
        self._arrived.put(message)

    def _take_all(self) -> None:
        """Hand to the intake what has arrived, except around the moment of a release; until the bridge is stopped."""
        while (message := self._arrived.get()) is not None:
            if (wait_s := quiet_time_s(self._ticker)) > 0:
                time.sleep(wait_s)
            try:
                self.receive(message.topic, bytes(message.payload))
            except Exception as error:  # its text may hold a private value
                _log.error("%s while a report was taken", type(error).__name__)
            # If the connection was lost meanwhile, this leads to nothing: the broker sends the report again.
            self._client.ack(message.mid, message.qos)

    def _publish_all(self) -> None:
        """Publish what the hub has and the broker has not: until the bridge is stopped, and once after that."""
        is_last, problem = False, ""
        while not is_last:
            self._is_connected.wait()
            number, is_last = self._hub.number, self._is_stopped or self._hub.is_closed
            try:
                is_done = all([self._publish_stream(stream) for stream in self._hub.streams])
                problem = ""
            except Exception as error:  # the next round tries again; over HTTP the releases are there
                before, problem = problem, str(error) if isinstance(error, DpfuseError) else type(error).__name__
                if problem != before:
                    _log.error("releases could not be published: %s", problem)
                is_done = True
            if not is_last:
                self._hub.wait(number, 1.0 if is_done else 0.05)

    def _publish_stream(self, stream: str) -> bool:
        """Publish the stream's new releases; False if the client's queue was full or the connection lost."""
        while messages := self._hub.messages(stream, self._next_step[stream]):
            for step, content in messages:
                sent = self._client.publish(f"dpfuse/{stream}/releases", content, qos=1, retain=True)
                if sent.rc == paho.MQTT_ERR_QUEUE_SIZE or not self.is_connected:
                    return False
                with self._lock:
                    self._next_step[stream] = max(step + 1, self._next_step[stream])
        return True


def make_client_id(password: str, streams: Sequence[str]) -> str:
    """The centre's client id, as secret as its password.

    The same streams have the same one after a restart, so that the broker finds their session and the reports in it.
    """
    return hmac.digest(password.encode(), f"dpfuse 1 client id {'/'.join(streams)}".encode(), "sha256")[:16].hex()


def _properties() -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's own
    properties.SessionExpiryInterval = SESSION_S
    properties.ReceiveMaximum = MAX_INFLIGHT
    return properties
