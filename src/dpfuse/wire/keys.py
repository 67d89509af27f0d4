"""Keys: who may report as which sensor. A key is never sent; it signs reports.

    secret of a sensor = HKDF-SHA256(secret of the generation, "dpfuse 1 intake <sensor>.<generation>.<serial>")

A key file (`wire.key_file`) holds one secret for each generation, which makes all keys of that generation. A rotation
adds a generation, and the one before stays valid until it expires. Passwords of the broker's users come from the same
secret by another text, so that none of them helps to make another.

A sensor may seal a report in place of signing it. The key for that is made from the sensor's secret:

    sealing key = HMAC-SHA512(secret of the sensor, "dpfuse 1 seal")
    sealed      = AES-256-SIV (RFC 5297) of the values under that key, bound to key name, stream and step

SIV takes no nonce. So nothing can repeat after a restart, and a sensor that sends two different reports for one step
shows nothing of either. Equal reports are equal when sealed; they count once.
"""

from __future__ import annotations

import hmac
import logging
import math
import os
import re
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from dpfuse._extras import requires_extra
from dpfuse.errors import FileRefused
from dpfuse.wire.key_file import LARGEST_ID, Generation, KeyFile
from dpfuse.wire.messages import SensorReport, pad_values, signed_bytes, unpad_values

with requires_extra("live", "sealed reports"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

MAC_BYTES = 16
_NAME = re.compile(r"(0|[1-9][0-9]{0,18})\.([1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})", re.ASCII)
_CACHE_SIZE = 2**17
# How often the files are looked at while reports come in.
_LOOK_EVERY_S = 1.0
_log = logging.getLogger(__name__)


class KeyName(NamedTuple):
    """Names one key: `<sensor>.<generation>.<serial>`. The serial counts the keys of a sensor that were revoked."""

    sensor: int
    generation: int
    serial: int

    def __str__(self) -> str:
        return f"{self.sensor}.{self.generation}.{self.serial}"

    @classmethod
    def parse(cls, text: str) -> KeyName | None:
        """The name in a text; None for a text of another form."""
        found = _NAME.fullmatch(text)
        name = None if found is None else cls(*map(int, found.groups()))
        return name if name is not None and name.sensor <= LARGEST_ID else None


class SensorKey(NamedTuple):
    """What one sensor holds: it can sign reports as this sensor and connect to the broker as itself. Private."""

    name: KeyName
    secret: bytes
    password: str

    def sign(self, stream: str, step: int, values: Iterable[float | None]) -> dict[str, Any]:
        """A report with its MAC, ready for `write_report`; a value is None if the channel is missing."""
        sent = [None if value is None else float(value) for value in values]
        numbers = _as_numbers(sent)
        mac = hmac.digest(self.secret, signed_bytes(self.name, stream, step, numbers), "sha256")[:MAC_BYTES].hex()
        return {"key": str(self.name), "stream": stream, "step": step, "values": sent, "mac": mac}

    def seal(self, stream: str, step: int, values: Iterable[float | None]) -> dict[str, Any]:
        """The same report, with values that only the centre can read."""
        bound = signed_bytes(self.name, stream, step, [])
        sealed = _make_sealer(self.secret).encrypt(pad_values(_as_numbers(values)), [bound])
        return {"key": str(self.name), "stream": stream, "step": step, "sealed": sealed.hex()}

    def __repr__(self) -> str:
        return f"SensorKey({self.name})"


class PublisherKey(NamedTuple):
    """What a publisher of public inputs holds: it can sign inputs and nothing else. Private.

    It is made for another purpose than a sensor's key, and its name begins with "p", such as `p1.1.0`.
    """

    name: KeyName
    secret: bytes

    def sign(self, stream: str, step: int, values: Iterable[float | None]) -> dict[str, Any]:
        """Inputs of a step with their MAC, ready for `write_report`; a value is None for an input without news."""
        signed = SensorKey(self.name, self.secret, "").sign(stream, step, values)
        return signed | {"key": f"p{self.name}"}

    def __repr__(self) -> str:
        return f"PublisherKey(p{self.name})"


class CheckedReport(NamedTuple):
    """What a check of a report found. Private.

    Attributes:
        sensor: who signed or sealed it, for inputs the publisher; -1 if it is refused.
        refusal: why it is refused; empty if it is not.
        values: what it says; empty if it is refused.
    """

    sensor: int
    refusal: str
    values: list[float]


class BrokerAccount(NamedTuple):
    """A user of the broker and its password. Private."""

    user: str
    password: str


class Keys:
    """Issues keys and checks the reports that they signed.

    **Guarantees**
        - Without the key file nobody can make a key, and from a key nobody can make another: not of another sensor,
          generation or serial, not of a publisher, and not a password of the broker.
        - A publisher's key signs no report, and a sensor's no public inputs.
        - A MAC is valid for one key, stream, step and list of values, and so is what is sealed. A captured report is
          useless for all others. Of sealed values nobody without the key learns anything but whether two reports for
          one step are equal.
        - Whether a report is valid depends on the report, the key file, the list of revoked keys and the clock.
        - The cache of checked keys is bounded and holds keys only with which a report was signed or sealed. A refusal
          takes the same work whether or not its key is there.

    Args:
        file: generations and revoked keys.
    """

    def __init__(self, file: KeyFile) -> None:
        self._file, self._looked_at, self._lock = file, time.monotonic(), threading.Lock()
        self._state, self._complaint = _State(file), ""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Keys:
        """The keys of a key file. While they are used, changes of the file and of the list of revoked keys apply."""
        return cls(KeyFile.load(path))

    @classmethod
    def from_secret(cls, secret: bytes) -> Keys:
        """Keys of one generation that never expires, without a file."""
        return cls(KeyFile((Generation(1, secret),)))

    def issue(self, sensor: int) -> SensorKey:
        """The sensor's key in the newest generation."""
        return self._state.issue(sensor, self._state.file.newest)

    def issue_all(self, sensor: int) -> list[SensorKey]:
        """The sensor's keys in all generations that have not expired."""
        return [self._state.issue(sensor, generation) for generation in self._state.file.live()]

    def issue_publisher(self, publisher: int) -> PublisherKey:
        """The publisher's key in the newest generation."""
        newest = self._state.file.newest
        name = KeyName(publisher, newest.number, self._state.file.serial(publisher, newest.number, "p"))
        return PublisherKey(name, newest.derive(f"publisher {name}"))

    def accounts(self, role: str) -> list[BrokerAccount]:
        """The broker's users for a role, such as the centre, one for each generation, the newest first."""
        users = [(f"{role}.{one.number}", one) for one in reversed(self._state.file.live())]
        return [BrokerAccount(user, one.derive(f"broker {user}").hex()) for user, one in users]

    def check(self, report: SensorReport) -> CheckedReport:
        """Who signed or sealed the report and what it says, or why it is refused."""
        # A report that is refused takes the same path whether or not its key is remembered: by the time of a refusal
        # anybody could else find out which sensors have reported.
        state = self._state
        form: _Form = _SealingKey if report.sealed else _SigningKey
        checked = state.known[form].get(report.key, _NOBODY[form]).check(report)
        if not checked.refusal:
            return checked
        generation = self._generation_of(name := KeyName.parse(report.key))
        if name is None or generation is None:
            return refused_report("unknown key")
        found = form(name, generation)
        checked = found.check(report)
        if checked.refusal:
            return checked
        if report.key in self._state.file.revoked:  # asked last, so that a revoked key is not refused faster
            return refused_report("revoked")
        state.remember(form, report.key, found)  # not in a newer state, for which the key may be revoked
        return checked

    def check_inputs(self, message: SensorReport) -> CheckedReport:
        """Which publisher signed these public inputs and what they say, or why they are refused."""
        name = KeyName.parse(message.key[1:]) if message.key.startswith("p") else None
        generation = self._generation_of(name)
        if name is None or generation is None or message.sealed:
            return refused_report("unknown key")
        checked = _SigningKey(name, generation, "publisher").check(message)
        is_revoked = not checked.refusal and message.key in self._state.file.revoked
        return refused_report("revoked") if is_revoked else checked

    def look_for_changes(self, *, at_once: bool = False) -> None:
        """Read the files again if they have changed. Files that cannot be read are logged, and change nothing."""
        if not at_once and time.monotonic() < self._looked_at + _LOOK_EVERY_S:
            return
        with self._lock:
            self._looked_at = time.monotonic()
            try:
                changed = self._file.changed()
                self._complaint = ""
            except (FileRefused, OSError) as error:
                if str(error) != self._complaint:
                    _log.warning("the keys stay as they are: %s", error)
                self._complaint = str(error)
                return
            if changed is not None:
                self._file = changed
                self._state = _State(changed)

    def __repr__(self) -> str:
        return "Keys(...)"

    def _generation_of(self, name: KeyName | None) -> Generation | None:
        """The generation that a name names; None if there is none."""
        if name is None:
            return None
        if name.generation not in self._state.file.by_number:
            self.look_for_changes(at_once=True)  # a rotation that was not noticed yet
        return self._state.file.by_number.get(name.generation)


class _SigningKey:
    """Checks what a key signed. Its MAC is begun once, which halves the work of each report."""

    def __init__(self, name: KeyName, generation: Generation, purpose: str = "intake") -> None:
        self._name, self._generation = name, generation
        self._begun = hmac.new(generation.derive(f"{purpose} {name}"), digestmod="sha256")

    def check(self, report: SensorReport) -> CheckedReport:
        """What the report says, if this key signed it."""
        signer = self._begun.copy()
        signer.update(signed_bytes(self._name, report.stream, report.step, report.values))
        if not hmac.compare_digest(signer.digest()[:MAC_BYTES].hex(), report.mac):
            return refused_report("wrong MAC")
        return _unless_expired(self._name, self._generation, report.values)


class _SealingKey:
    """Opens what a key sealed."""

    def __init__(self, name: KeyName, generation: Generation) -> None:
        self._name, self._generation = name, generation
        self._sealer = _make_sealer(generation.derive(f"intake {name}"))

    def check(self, report: SensorReport) -> CheckedReport:
        """What the report says, if this key sealed it."""
        bound = signed_bytes(self._name, report.stream, report.step, [])
        try:
            values = unpad_values(self._sealer.decrypt(report.sealed, [bound]))
        except (InvalidTag, ValueError):  # the second for a text that is too short
            return refused_report("wrong MAC")
        return (
            refused_report("not a report") if values is None else _unless_expired(self._name, self._generation, values)
        )


_Form = type[_SigningKey] | type[_SealingKey]


def _unless_expired(name: KeyName, generation: Generation, values: list[float]) -> CheckedReport:
    is_expired = generation.expires_at <= time.time()
    return refused_report("expired") if is_expired else CheckedReport(name.sensor, "", values)


def _as_numbers(values: Iterable[float | None]) -> list[float]:
    """The values, NaN for a channel that is missing."""
    return [math.nan if value is None else value for value in values]


def _make_sealer(secret: bytes) -> AESSIV:
    return AESSIV(hmac.digest(secret, b"dpfuse 1 seal", "sha512"))


def refused_report(reason: str) -> CheckedReport:
    """What a check found, if it is this reason to refuse the report."""
    return CheckedReport(-1, reason, [])


_NOBODY = {form: form(KeyName(0, 1, 0), Generation(1, os.urandom(32))) for form in (_SigningKey, _SealingKey)}
"""Stands in for a key that is not remembered. No report is signed or sealed with it."""


class _State:
    """A key file, and the keys with which a report was signed or sealed since it was read.

    A key is remembered for the form of report that it made, signed or sealed, and is complete from then on. If a forged
    report made a part of a remembered key, it would take longer for a sensor that has reported.
    """

    def __init__(self, file: KeyFile) -> None:
        self.file = file
        self.known: dict[_Form, dict[str, _SigningKey | _SealingKey]] = {_SigningKey: {}, _SealingKey: {}}

    def remember(self, form: _Form, text: str, found: _SigningKey | _SealingKey) -> None:
        known = self.known[form]
        if len(known) >= _CACHE_SIZE:
            known.clear()  # the cache only saves time
        known[text] = found

    def issue(self, sensor: int, generation: Generation) -> SensorKey:
        name = KeyName(sensor, generation.number, self.file.serial(sensor, generation.number))
        return SensorKey(name, generation.derive(f"intake {name}"), generation.derive(f"broker {name}").hex())
