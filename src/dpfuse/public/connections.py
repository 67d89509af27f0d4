"""Limits on connections: their number within the limit of open files, by class of client, and the time of a request."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from dpfuse._extras import requires_extra

if TYPE_CHECKING:
    from dpfuse.public.tls import Certificates

# Some systems allow a thousand million open files, far more than one process needs.
_MAX_FILES = 65536
BACKLOG = 256
"""Connections that may wait to be accepted: asyncio accepts so many at once, before any can be refused."""
# Open files for everything else: ledger, its readers, broker.
_OTHER_FILES = 256
_REQUEST_S = 30.0
# A connection is held for so long after a valid report.
_HELD_S = 30.0
_LOG_EVERY_S = 60.0

Verdict = Literal["serve", "refuse", "cut"]
"""Served; answered 503; or closed at once."""


class ConnectionLimits(NamedTuple):
    """Numbers of connections that fit into the process's limit of open files.

    Attributes:
        num_served: connections that are served.
        num_accepted: connections that are accepted. Those above `num_served` are answered 503, the rest are cut off.
    """

    num_served: int
    num_accepted: int

    @property
    def max_subscribers(self) -> int:
        """The most subscribers of either kind, releases and feed: a third is left for all other connections."""
        return self.num_served // 3


def raise_limits() -> ConnectionLimits:
    """Raise the limit of open files as far as the system allows; returns the connections that fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if wanted > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_files = min(soft, _MAX_FILES) if soft != resource.RLIM_INFINITY else _MAX_FILES
    num_accepted = max(num_files - BACKLOG - _OTHER_FILES, num_files // 4)
    return ConnectionLimits(7 * num_accepted // 8, num_accepted)


class Admission(Protocol):
    """Decides which connections of a listener are served. All calls come from one event loop."""

    def enter(self, connection: Any) -> Verdict:
        """A connection was made."""

    def leave(self, connection: Any) -> None:
        """A connection that entered has ended."""

    def answered(self, connection: Any) -> None:
        """A request on the connection was answered."""


class ByAddress:
    """Readers: a limit for all connections, and one for those of each address; an IPv6 network of 64 bits is one.

    Args:
        per_address: the most connections of one address that are served; 0 for any number, as behind a proxy.
    """

    def __init__(self, limits: ConnectionLimits, per_address: int = 0) -> None:
        self._limits, self._per_address = limits, per_address
        self._addresses: dict[Any, str] = {}
        self._counts: Counter[str] = Counter()

    def enter(self, connection: Any) -> Verdict:
        address = network_of(connection.client)
        self._addresses[connection] = address
        self._counts[address] += 1
        if len(self._addresses) > self._limits.num_accepted:
            return "cut"
        is_greedy = 0 < self._per_address < self._counts[address]
        return "refuse" if is_greedy or len(self._addresses) > self._limits.num_served else "serve"

    def leave(self, connection: Any) -> None:
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def answered(self, connection: Any) -> None:
        pass


class ByIdentity:
    """Sensors: a connection on which a valid report came is held for that sensor, up to a number for each sensor.

    **Guarantees**
        - Connections that are not held are strangers, with places of their own. If an address has too many, its oldest
          one is closed; a new one is always served. So what a stranger can count depends on the connections of its own
          address alone. Only if strangers have taken all places, by default those of eight addresses or more, the
          oldest one of an address that has the most is closed.
        - No limit by address touches a held connection: sensors behind one gateway do not affect each other.
        - A sensor that has used up its number holds no more connections. The next valid report of another sensor on
          the same connection holds it for that one.
        - A hold ends with the first request that comes half a minute or more after its sensor's last valid report; a
          valid report of another sensor in this request holds the connection for that one. Every connection has a
          request within half a minute, so a hold outlives a key or a period by a minute at most.

    Args:
        per_address: the most strangers of one address; None for an eighth of their places, 0 for all of these, as
            behind a proxy or gateway with many sensors.
    """

    def __init__(self, limits: ConnectionLimits, per_sensor: int = 16, per_address: int | None = None) -> None:
        self._num_strangers, self._per_sensor = max(1, limits.num_accepted // 4), per_sensor
        self._num_held = limits.num_accepted - self._num_strangers
        own = max(1, self._num_strangers // 8) if per_address is None else per_address
        self._per_address = own or self._num_strangers
        self._strangers = _Strangers()
        self._holds: dict[Any, _Hold] = {}
        self._counts: Counter[int] = Counter()

    def enter(self, connection: Any) -> Verdict:
        address = network_of(connection.client)
        num_own = self._strangers.add(connection, address)
        if num_own > self._per_address:
            self._strangers.close_oldest(address)
        elif len(self._strangers) > self._num_strangers:
            self._strangers.close_oldest(self._strangers.largest())
        return "serve"

    def leave(self, connection: Any) -> None:
        self._strangers.remove(connection)
        hold = self._holds.pop(connection, None)
        if hold is not None:
            self._uncount(hold.sensor)

    def answered(self, connection: Any) -> None:
        hold = self._holds.get(connection)
        if hold is not None and time.monotonic() >= hold.ends_at:
            self.leave(connection)
            self.enter(connection)

    def hold(self, connection: Any, sensor: int) -> bool:
        """A valid report of that sensor came on the connection; whether it is held now."""
        now = time.monotonic()
        held = self._holds.get(connection)
        if held is not None and held.sensor != sensor and now < held.ends_at:
            return True
        if held is None or held.sensor != sensor:
            if self._counts[sensor] >= self._per_sensor:
                return False
            if held is not None:
                self._uncount(held.sensor)
            elif len(self._holds) >= self._num_held or not self._strangers.remove(connection):
                return False  # no place, or it was closed
            self._counts[sensor] += 1
        self._holds[connection] = _Hold(sensor, now + _HELD_S)
        return True

    def _uncount(self, sensor: int) -> None:
        self._counts[sensor] -= 1
        if not self._counts[sensor]:
            del self._counts[sensor]


class _Hold(NamedTuple):
    sensor: int
    ends_at: float


class _Strangers:
    """Connections by address, in the order in which they came."""

    def __init__(self) -> None:
        self._addresses: dict[Any, str] = {}
        self._of_address: dict[str, dict[Any, None]] = {}
        self._by_number: dict[int, dict[str, None]] = {}  # the addresses that have so many

    def __len__(self) -> int:
        return len(self._addresses)

    def add(self, connection: Any, address: str) -> int:
        """Returns how many the address has now."""
        self._addresses[connection] = address
        self._of_address.setdefault(address, {})[connection] = None
        number = len(self._of_address[address])
        self._recount(address, number - 1, number)
        return number

    def remove(self, connection: Any) -> bool:
        """Whether it was there."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return False
        del self._of_address[address][connection]
        number = len(self._of_address[address])
        self._recount(address, number + 1, number)
        return True

    def largest(self) -> str:
        """An address that has the most; of several the one that has had them for longest."""
        return next(iter(self._by_number[max(self._by_number)]))  # n connections have at most sqrt(2 n) numbers

    def close_oldest(self, address: str) -> None:
        oldest = next(iter(self._of_address[address]))
        self.remove(oldest)
        oldest.transport.abort()

    def _recount(self, address: str, before: int, now: int) -> None:
        if before:
            del self._by_number[before][address]
            if not self._by_number[before]:
                del self._by_number[before]
        if now:
            self._by_number.setdefault(now, {})[address] = None
        else:
            del self._of_address[address]


def network_of(client: tuple[str, int] | None) -> str:
    """The address that a limit by address counts; an IPv6 network of 64 bits is one."""
    if client is None:
        return ""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return client[0]
    if address.version == 6 and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)


def limited_protocol(admission: Admission, refuse: Any, certificates: Certificates | None = None) -> Any:
    """Uvicorn's protocol for HTTP, for the connections that are admitted.

    Every request has to arrive whole within half a minute of the end of the one before, or of the connection's start.
    The application finds its connection as `connection` in the scope's state.

    Args:
        refuse: the application for connections that are refused.
        certificates: for HTTPS. A connection is admitted before its handshake, so that those who begin one and do not
            end it are limited like all others.
    """
    with requires_extra("live", "serving over HTTP"):
        import h11
        from uvicorn.protocols.http.h11_impl import H11Protocol
        from uvicorn.protocols.utils import get_remote_addr

    class LimitedConnection(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _handshake: asyncio.Task[None] | None = None
        _early = b""  # what came with the last message of the handshake
        send_400_response = _answer_broken_request

        def connection_made(self, transport: Any) -> None:
            self.transport, self.client = transport, get_remote_addr(transport)
            self.app_state = {**self.app_state, "connection": self}
            self.wait_for_request()
            verdict = admission.enter(self)
            if verdict == "refuse":
                self.app = refuse
            if certificates is None:
                super().connection_made(transport)
            elif verdict != "cut":
                transport.pause_reading()
                self._handshake = self.loop.create_task(self.begin_tls(transport, certificates))
            if verdict == "cut":
                transport.abort()

        async def begin_tls(self, transport: Any, certificates: Certificates) -> None:
            """Shake hands and then serve; the deadline of the first request holds for both."""
            secure = None
            try:
                secure = await self.loop.start_tls(transport, self, certificates.context, server_side=True)
            except (OSError, asyncio.CancelledError):  # an error of the handshake, or the server stops
                transport.abort()
            if secure is None or secure.is_closing():
                admission.leave(self)
                self.stop_waiting()
                return
            super().connection_made(secure)
            if self._early:
                self.data_received(self._early)

        def connection_lost(self, exc: Exception | None) -> None:
            admission.leave(self)
            self.stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.flow is None:
                self._early += data
                return
            super().data_received(data)
            self.check_request()

        def on_response_complete(self) -> None:
            admission.answered(self)
            super().on_response_complete()
            self.check_request()

        def check_request(self) -> None:
            if self.conn.their_state in (h11.DONE, h11.MUST_CLOSE):
                self.stop_waiting()
            elif self._deadline is None:
                self.wait_for_request()

        def wait_for_request(self) -> None:
            self._deadline = self.loop.call_later(_REQUEST_S, self.end_unless_whole)

        def stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def end_unless_whole(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # the client does not read its last answer
            else:
                self.transport.close()

    return LimitedConnection


def _answer_broken_request(connection: Any, msg: str) -> None:
    """Answer 400 and close. The answer to a HEAD request has no body, and so no room for the message."""
    from h11 import LocalProtocolError
    from uvicorn.protocols.http.h11_impl import H11Protocol

    with suppress(LocalProtocolError):
        H11Protocol.send_400_response(connection, msg)
    connection.transport.close()


class LogSeldom(logging.Filter):
    """Logs at most one line a minute when no file can be opened; asyncio logs each failure with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if "out of system resource" not in message and "_start_serving" not in message:  # the second is its retry
            return True
        record.msg, record.args, record.exc_info = "the limit of open files is reached: new connections wait", (), None
        is_time = time.monotonic() >= self._next_s
        if is_time:
            self._next_s = time.monotonic() + _LOG_EVERY_S
        return is_time
