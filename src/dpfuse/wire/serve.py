"""A whole centre: ledger, ticker, hub and intake in this process, its relay in another, and if asked an MQTT bridge."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse._logs import fields, log_options
from dpfuse.centre.centre import FusionCentre
from dpfuse.centre.clock import Ticker
from dpfuse.centre.computed_inputs import ComputedInputs
from dpfuse.errors import DpfuseError, LedgerMismatch
from dpfuse.ledger import Ledger, public_rows
from dpfuse.ledger.reader import check_tip, design_fingerprints
from dpfuse.public.connections import ByIdentity, LogSeldom, limited_protocol, raise_limits
from dpfuse.public.feed import Feed
from dpfuse.public.hub import Hub
from dpfuse.public.listening import address_of, bind, make_server, parse_address, quiet_signals
from dpfuse.public.parts import CentreParts
from dpfuse.public.replay_notes import ReplayNotes
from dpfuse.public.rows import Message
from dpfuse.public.settings import PublicSettings
from dpfuse.public.signatures import Signatory, Signer, make_key
from dpfuse.public.tls import Certificates, at_hangup
from dpfuse.wire.background_check import BackgroundCheck, is_checked_at_start
from dpfuse.wire.feed_door import FeedDoor, make_feed_app
from dpfuse.wire.intake import Intake
from dpfuse.wire.kept_estimators import keep_estimators
from dpfuse.wire.keys import Keys
from dpfuse.wire.messages import check_stream_name
from dpfuse.wire.operations import Operations, PartsWatch
from dpfuse.wire.operator_port import OperatorPort
from dpfuse.wire.relay_process import RelayProcess
from dpfuse.wire.witness import witnessed

if TYPE_CHECKING:
    from dpfuse.attributes import SensorAttributes
    from dpfuse.ledger.bank.client import BankClient
    from dpfuse.policy.design import Design
    from dpfuse.wire.mqtt import Bridge

_log = logging.getLogger(__name__)
# The longest time for which a thread keeps the interpreter while others wait: a release must leave in time.
_SWITCH_S = 0.0005
_FREED_WITHIN_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """The addresses of a centre.

    Attributes:
        host, port: where sensors report over HTTP; port 0 is any free port.
        reading_host, reading_port: where the relay serves readers; None for the same host.
        has_relay: whether a relay is started.
        per_address: connections of one address that the relay serves; 0 for any number.
        strangers_per_address: connections of sensors from one address without a valid report, see `ByIdentity`.
        feed: the path of the socket for relays on this machine; None for one that only the centre's own relay knows.
        tls_cert, tls_key: certificate and key for HTTPS, of both.
        tls_client_ca: the certificates that sign those of sensors; None if a sensor needs none. Readers need none.
        mqtt: the broker, as "host:port"; None for no broker.
        mqtt_ca: the certificates to trust, for a broker with TLS.
        operator_host, operator_port: where the operator asks, see `OperatorPort`; no such port by default.
        operator_token: what the operator's metrics need; None to close them.
    """

    host: str = "127.0.0.1"
    port: int = 8764
    reading_host: str | None = None
    reading_port: int = 8765
    has_relay: bool = True
    per_address: int | None = None
    strangers_per_address: int | None = None
    feed: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    mqtt: str | None = None
    mqtt_ca: Path | None = None
    operator_host: str = "127.0.0.1"
    operator_port: int | None = None
    operator_token: str | None = None

    @property
    def certificates(self) -> Certificates | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        return Certificates(self.tls_cert, self.tls_key, self.tls_client_ca)


@dataclass(frozen=True, kw_only=True)
class CentreOptions:
    """Settings of a running centre; all of them are public.

    Attributes:
        streams: the names of the streams; None for those of the ledger, or "main" in a new one.
        is_new: True makes the ledger, and is refused if there is one. False is refused if there is none.
        interval_s, delay_s: see `Ticker`.
        is_replay: the data is simulated or public, so the page may show truth, latency and number of reports.
        labels: the page's name for each coordinate of the state.
        attributes: fixed public numbers of each sensor, for a design that reads them.
        inputs: constants, and inputs that follow from the clock, see `ComputedInputs`.
        utc_offset_s: what local time, which such inputs are made of, is ahead of UTC.
        signing_key: the file of the key that signs the releases; by default the ledger's name with `.signing-key`.
        tip: a public tip that the ledger must hold; None for no such check.
        witness: a file that gets every release message before any reader does; None for none.
        keep_rows_s: rows that are older, in seconds of steps, are packed (`Ledger.pack_rows_after`); None for none.
        bank: the address of the bank that lends the accounts of the sensors; None for accounts in the ledger alone.
        centre: the name of this centre at the bank.
    """

    streams: Sequence[str] | None = None
    is_new: bool = False
    interval_s: float | None = None
    delay_s: float | None = None
    is_replay: bool = False
    labels: Sequence[str] = ()
    attributes: SensorAttributes | None = None
    inputs: Mapping[str, str | float] = field(default_factory=dict)
    utc_offset_s: float = 0.0
    signing_key: Path | None = None
    tip: bytes | None = None
    witness: Path | None = None
    keep_rows_s: float | None = None
    bank: str | None = None
    centre: str | None = None

    def __post_init__(self) -> None:
        if (self.bank is None) != (self.centre is None):
            raise ValueError("bank and centre must be given together: a bank knows each centre by its name")


def run_centre(
    design: Design,
    ledger: str,
    keys: Keys,
    endpoints: Endpoints,
    options: CentreOptions,
    announce: Callable[[str], object] = print,
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread of a process; `announce` gets each address on a line.

    SIGHUP reads keys and certificates again.

    Raises:
        LedgerRefused: the ledger could not be opened, or it failed later. Nothing was released after the failure.
    """
    computed = ComputedInputs(design, options.inputs, options.utc_offset_s)
    sys.setswitchinterval(_SWITCH_S)
    logging.getLogger("asyncio").addFilter(LogSeldom())
    connections = ByIdentity(raise_limits(), per_address=endpoints.strangers_per_address)
    broker = None if endpoints.mqtt is None else parse_address("mqtt", endpoints.mqtt)
    certificates = endpoints.certificates
    reloads: list[Callable[[], object]] = [partial(keys.look_for_changes, at_once=True)]
    if certificates is not None:
        reloads.append(certificates.reload)
    with at_hangup(reloads), ExitStack() as stack:
        operations = Operations()
        if endpoints.operator_port is not None:
            asked = OperatorPort(operations, endpoints.operator_host, endpoints.operator_port, endpoints.operator_token)
            stack.callback(asked.start().stop)
            announce(f"operator {asked.address}")
        listener = stack.enter_context(bind(endpoints.host, endpoints.port))
        reading = stack.enter_context(_bind_reading(endpoints)) if endpoints.has_relay else None
        is_checked = is_checked_at_start(Path(ledger))
        book, client = _open_accounts(stack, design, ledger, options)
        centre = FusionCentre(design, book, bank=client, attributes=options.attributes)
        signer = _signer(options.signing_key or Path(f"{ledger}.signing-key"), book)
        book.sign_with(signer)
        prepare = stack.enter_context(witnessed(options.witness, book, signer))
        hub = make_hub(book, centre, signer)
        errors: list[BaseException] = []
        ticker = Ticker(
            centre,
            hub.publish,
            options.interval_s,
            options.delay_s,
            errors.append,
            lambda published: prepare(hub.prepare(published)),
            operations,
        )
        centre.compute_inputs(lambda step: computed.at(ticker.begins_at(step)))
        if options.keep_rows_s is not None:
            book.pack_rows_after(max(1, math.ceil(options.keep_rows_s / ticker.interval_s)))
        intake = Intake(centre, keys, ReplayNotes() if options.is_replay else None)
        if not is_checked:
            stack.callback(BackgroundCheck(book.path, errors.append).stop)
        parts = PartsWatch(client, errors)
        feed = make_feed(centre, ticker, hub, intake, signer.signatory, options.labels, parts)
        operations.watch(ticker, feed, book.path, intake.counts.copy)
        server = _intake_server(certificates, connections, ticker, hub, intake, feed, lambda: bool(errors))
        kept = keep_estimators(Path(f"{ledger}.estimators"), design, signer)
        estimator = kept[book.terms.design_id]
        door = FeedDoor(make_feed_app(feed, estimator, ticker.clock, kept), endpoints.feed)
        stack.callback(door.start().stop)
        relay = None if reading is None else _start_relay(stack, endpoints, reading, door)
        if broker is not None:
            parts.bridge = _start_bridge(stack, endpoints, broker, intake, hub, ticker, keys)
        stack.callback(hub.close)
        ticker.start()
        stack.callback(ticker.stop)
        announce(f"sensors {_address(endpoints, listener)}")
        if relay is not None and reading is not None:
            relay.wait_until_ready()
            reloads.append(relay.hang_up)
            host = endpoints.reading_host or endpoints.host
            announce(f"readers {address_of(host, reading, endpoints.tls_cert is not None)}")
        _log_what_counts(design, computed)
        operations.is_started = True
        _log.info("the centre has started", extra=fields(streams=len(hub.streams), step=centre.now, ledger=ledger))
        with quiet_signals():
            server.run(sockets=[listener])
    if errors:
        error = errors[0]
        if isinstance(error, DpfuseError):
            raise error
        raise DpfuseError(f"the centre stopped: {type(error).__name__} in a step; nothing was released after it")


def _log_what_counts(design: Design, computed: ComputedInputs) -> None:
    if not design.structure.partial_reports:
        _log.info("a report that lacks a channel counts as absent: the design was trained on complete reports")
    for sentence in computed.warnings():
        _log.warning(sentence)


def _open_accounts(
    stack: ExitStack, design: Design, path: str, options: CentreOptions
) -> tuple[Ledger, BankClient | None]:
    """The ledger and, if there is a bank, the centre's side of it."""
    if options.bank is None or options.centre is None:
        return stack.enter_context(_open_ledger(design, path, options)), None
    from dpfuse.ledger.bank.bank import Bank
    from dpfuse.ledger.bank.client import BankClient

    bank = stack.enter_context(Bank.open(options.bank))
    bank.terms.check_guarantee(design.guarantee, bank.address)
    book = stack.enter_context(_open_ledger(design, path, options, bank.terms.bank_id))
    return book, stack.enter_context(BankClient(bank, options.bank, options.centre, book))


def _open_ledger(design: Design, path: str, options: CentreOptions, bank_id: str | None = None) -> Ledger:
    names = None if options.streams is None else [check_stream_name(name) for name in options.streams]
    if options.is_new:
        book = Ledger.create(path, design, names or ("main",), bank_id)
    else:
        book = Ledger.open(path, design, is_full_check=is_checked_at_start(Path(path)))
    try:
        if options.tip is not None:
            check_tip(book.path, options.tip)
        for name in book.streams:
            check_stream_name(name)
        if names is not None and set(names) != set(book.streams):
            raise LedgerMismatch(
                f"{path} has the streams {', '.join(book.streams)}, and one writer for all of them; name these, or "
                f"create another ledger"
            )
    except BaseException:
        book.close()
        raise
    return book


def _bind_reading(endpoints: Endpoints) -> socket.socket:
    """The listening socket for readers; the relay of a centre that was just killed may have it for another moment."""
    end = time.monotonic() + _FREED_WITHIN_S
    while True:
        try:
            return bind(endpoints.reading_host or endpoints.host, endpoints.reading_port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise
        time.sleep(0.05)


def _start_relay(stack: ExitStack, endpoints: Endpoints, reading: socket.socket, door: FeedDoor) -> RelayProcess:
    """Start the relay for readers; at the end it is stopped before the door that it reads from."""
    options = ["--host", endpoints.reading_host or endpoints.host, *log_options()]
    if endpoints.tls_cert is not None:
        options += ["--tls-cert", str(endpoints.tls_cert), "--tls-key", str(endpoints.tls_key)]
    if endpoints.per_address is not None:
        options += ["--per-address", str(endpoints.per_address)]
    relay = RelayProcess(door.path, reading, options)
    stack.callback(relay.stop)
    return relay


def _start_bridge(
    stack: ExitStack,
    endpoints: Endpoints,
    broker: tuple[str, int],
    intake: Intake,
    hub: Hub,
    ticker: Ticker,
    keys: Keys,
) -> Bridge:
    from dpfuse.wire.broker import CENTRE
    from dpfuse.wire.mqtt import Bridge

    ca = None if endpoints.mqtt_ca is None else str(endpoints.mqtt_ca)
    bridge = Bridge(intake, hub, ticker, partial(keys.accounts, CENTRE), *broker, ca=ca)
    bridge.start()
    stack.callback(bridge.stop)
    return bridge


def make_feed(
    centre: FusionCentre,
    ticker: Ticker,
    hub: Hub,
    intake: Intake,
    signatory: Signatory,
    labels: Sequence[str] = (),
    parts: Callable[[], CentreParts] = CentreParts,
) -> Feed:
    """What a centre publishes, as page, metrics and relays read it."""
    settings = PublicSettings.of_design(
        centre.design,
        streams=hub.streams,
        streams_in_ledger=centre.streams_in_ledger,
        signed_by=signatory,
        labels=labels,
        interval_s=ticker.interval_s,
        delay_s=ticker.delay_s,
        first_step=centre.now,
        is_replay=intake.notes is not None,
        has_bank=centre.has_bank,
        attributes=None if centre.attributes is None else centre.attributes.fingerprint,
    )
    return Feed(hub, settings, status=lambda: ticker.status, notes=intake.notes, parts=parts)


def make_hub(ledger: Ledger, centre: FusionCentre, signer: Signer) -> Hub:
    """The releases of a ledger, signed: those of the past, and those that its centre will publish."""

    def history(stream: str, start: int) -> Iterator[Message]:
        # A generator: closing it closes the reader.
        for row in public_rows(ledger.path, stream, start):
            yield signer.to_message(row)

    last_steps = {name: ledger.last_step(name) for name in ledger.streams}
    return Hub(last_steps, history, centre.past, signer.to_message)


def _signer(path: Path, ledger: Ledger) -> Signer:
    """Signs with the key in that file, which is made if it is missing."""
    if not path.exists():
        make_key(path)
        if any(ledger.last_step(name) for name in ledger.streams):
            _log.warning("made a new signing key, %s: readers have to fetch the estimator's file again", path)
    return Signer(path, ledger.terms.ledger_id, ledger.terms.fingerprint, design_fingerprints(ledger.path))


def _intake_server(
    certificates: Certificates | None,
    connections: ByIdentity,
    ticker: Ticker,
    hub: Hub,
    intake: Intake,
    feed: Feed,
    has_failed: Callable[[], bool],
) -> Any:
    from dpfuse.public.answers import too_busy
    from dpfuse.wire.http import make_intake_app

    async def before_shutdown() -> None:
        await asyncio.to_thread(ticker.stop)  # the last release is published before any connection ends
        hub.close()  # ends the feed of relays, and so the event streams of their readers

    return make_server(
        make_intake_app(ticker, intake, feed, connections),
        limited_protocol(connections, too_busy, certificates),
        is_over=has_failed,
        before_shutdown=before_shutdown,
    )


def _address(endpoints: Endpoints, listener: socket.socket) -> str:
    """The URL for sensors; logs a warning if others on the network could read reports."""
    has_tls = endpoints.tls_cert is not None
    if not has_tls and endpoints.host not in ("127.0.0.1", "::1", "localhost"):
        _log.warning("reports cross the network unencrypted; give --tls-cert and --tls-key, or use a proxy")
    return address_of(endpoints.host, listener, has_tls)
