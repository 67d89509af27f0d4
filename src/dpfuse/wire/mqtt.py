"""The centre over MQTT 5: reports from `dpfuse/<stream>/reports/<id>`, releases to `dpfuse/<stream>/releases`."""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

from dpfuse._extras import requires_extra
from dpfuse.errors import DpfuseError
from dpfuse.public.hub import Hub, ReplayNotes
from dpfuse.public.rows import release_message
from dpfuse.wire.broker import CENTRE, INFLIGHT, SESSION_S
from dpfuse.wire.messages import MAX_REPORT, parse_report, read_json, token_of
from dpfuse.wire.tokens import Tokens

with requires_extra("live", "serving over MQTT"):
    from paho.mqtt import client as paho
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.subscribeoptions import SubscribeOptions

if TYPE_CHECKING:
    from dpfuse.centre.centre import FusionCentre

_TOPICS_AT_ONCE = 100
# Steps that are published again after a restart: the last ones may not have left the centre that was there before.
_AGAIN = 10
_log = logging.getLogger(__name__)


class Bridge:
    """Carries reports from a broker to the centre, and releases from the hub to the broker.

    **Guarantees**
        - A report is acknowledged when the centre has it in its inbox; what becomes of it there tells nobody.
        - A broker that is away, slow or killed holds up neither the centre nor anybody over HTTP. When it is back,
          what it missed is published, the same bytes, and the last release of each stream is retained again.
        - A centre that starts anew publishes its last releases once more: who has them knows them by their step.
        - No payload can stop it, and nothing of one is logged.

    Args:
        ca: a file with the certificates to trust, for a broker that speaks TLS.
        notes: in a replay, where reports are counted.
    """

    def __init__(
        self,
        centre: FusionCentre,
        hub: Hub,
        tokens: Tokens,
        host: str,
        port: int,
        *,
        ca: str | None = None,
        notes: ReplayNotes | None = None,
    ) -> None:
        self._centre, self._hub, self._tokens, self._notes = centre, hub, tokens, notes
        self._next = {stream: max(hub.last_step(stream) - _AGAIN + 1, 1) for stream in hub.streams}
        self._is_connected, self._is_stopped = threading.Event(), False
        self._hint = "; if it speaks TLS, give --mqtt-ca" if ca is None else ""
        self._told: set[str] = set()
        self._lock, self._num_unheard = threading.Lock(), 0
        self._client = self._make_client(ca)
        self._client.connect_async(host, port, keepalive=20, clean_start=False, properties=_properties())
        self._publisher = threading.Thread(target=self._publish_all, name="dpfuse-mqtt", daemon=True)

    @property
    def is_connected(self) -> bool:
        return self._is_connected.is_set()

    def start(self) -> None:
        """Connect, now or whenever the broker is there, and stay so."""
        self._client.loop_start()
        self._publisher.start()

    def stop(self) -> None:
        self._is_stopped = True
        self._is_connected.set()  # whoever waits for it sees that it is over
        self._publisher.join(5)
        self._client.disconnect()
        self._client.loop_stop()

    def take(self, topic: str, payload: bytes) -> None:
        """Hand one message to the centre, if the sensor whose token is in it wrote it to its own topic."""
        if len(payload) > MAX_REPORT:
            return
        message = read_json(payload)
        sensor, report = self._tokens.sensor_of(token_of(message)), parse_report(message)
        if sensor is None or report is None or topic != f"dpfuse/{report.stream}/reports/{sensor}":
            return
        self._centre.receive(report.stream, sensor, report.step, report.values)
        if self._notes is not None and report.stream in self._centre.streams:
            self._notes.count(report.stream, report.step)

    def _make_client(self, ca: str | None) -> paho.Client:
        # One session for these streams: what comes while the centre restarts waits for it.
        name = hashlib.sha256("/".join(self._hub.streams).encode()).hexdigest()[:16]
        client = paho.Client(CallbackAPIVersion.VERSION2, f"dpfuse-{name}", protocol=paho.MQTTv5, manual_ack=True)
        client.username_pw_set(CENTRE, self._tokens.password(CENTRE))
        if ca is not None:
            client.tls_set(ca)
        client.reconnect_delay_set(1, 4)
        client.max_inflight_messages_set(INFLIGHT)
        client.max_queued_messages_set(max(INFLIGHT, 4 * len(self._hub.streams)))
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_connect_fail = self._on_connect_fail
        client.on_message, client.on_subscribe = self._on_message, self._on_subscribe
        return client

    def _on_connect(self, client: paho.Client, _: Any, __: Any, reason: Any, ___: Any) -> None:
        if reason.is_failure:
            self._tell("refused", f"the broker refuses the centre: {reason}; is it set up with the same secret?")
            return
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        topics = [(f"dpfuse/{stream}/reports/+", options) for stream in self._hub.streams]
        groups = [topics[first : first + _TOPICS_AT_ONCE] for first in range(0, len(topics), _TOPICS_AT_ONCE)]
        self._num_unheard = len(groups)
        for group in groups:
            client.subscribe(group)
        with self._lock:  # a broker that was started anew has no retained release
            for stream in self._next:
                self._next[stream] = max(min(self._next[stream], self._hub.last_step(stream)), 1)

    def _on_subscribe(self, *_: Any) -> None:
        self._num_unheard -= 1
        if self._num_unheard == 0:
            self._told.clear()
            self._is_connected.set()

    def _on_connect_fail(self, *_: Any) -> None:
        error = sys.exception()  # paho calls this where it catches it
        self._tell("away", f"the broker cannot be reached: {error}; it is tried again and again")

    def _on_disconnect(self, *_: Any) -> None:
        if not self._is_stopped:
            hint = "" if self.is_connected else self._hint
            self._is_connected.clear()
            if "refused" not in self._told:  # which says more
                self._tell("gone", f"the broker hung up, and is tried again{hint}")

    def _tell(self, kind: str, trouble: str) -> None:
        """Say it, once for each kind since all was well."""
        if kind not in self._told and not self._is_stopped:
            _log.warning("%s", trouble)
            self._told.add(kind)

    def _on_message(self, client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        try:
            self.take(message.topic, bytes(message.payload))
        except Exception as error:  # its text may hold a value
            _log.error("%s while a report was taken", type(error).__name__)
        client.ack(message.mid, message.qos)

    def _publish_all(self) -> None:
        """Until it is stopped, and once after that: whatever the hub has and the broker has not."""
        is_last, trouble = False, ""
        while not is_last:
            self._is_connected.wait()
            number, is_last = self._hub.number, self._is_stopped or self._hub.is_closed
            try:
                is_done = all([self._publish_stream(stream) for stream in self._hub.streams])
                trouble = ""
            except Exception as error:  # they are still to come, and over HTTP they are there
                before, trouble = trouble, str(error) if isinstance(error, DpfuseError) else type(error).__name__
                if trouble != before:
                    _log.error("releases could not be published: %s", trouble)
                is_done = True
            if not is_last:
                self._hub.wait(number, 1.0 if is_done else 0.05)

    def _publish_stream(self, stream: str) -> bool:
        """Whether all that was there is on its way; else the client's queue is full."""
        while rows := self._hub.rows(stream, self._next[stream]):
            for row in rows:
                sent = self._client.publish(f"dpfuse/{stream}/releases", release_message(row), qos=1, retain=True)
                if sent.rc == paho.MQTT_ERR_QUEUE_SIZE or not self.is_connected:
                    return False
                with self._lock:
                    self._next[stream] = max(row.step + 1, self._next[stream])
        return True


def _properties() -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's own
    properties.SessionExpiryInterval = SESSION_S
    properties.ReceiveMaximum = INFLIGHT
    return properties
