"""The key file of a centre: a secret for each generation of keys, and beside it the list of revoked keys.

    centre.keys          {"version": 1, "generations": [{"number": 1, "secret": "<64 hex digits>", "expires": <time>}]}
    centre.keys.revoked  one key a line: 17.1.0, or p1.1.0 of a publisher

Both are replaced in one step, so that a running centre reads the old file or the new one. A process that changes one of
them holds a lock meanwhile (`centre.keys.lock`, an empty file), so that of two changes at the same time none is lost.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpfuse.errors import FileRefused
from dpfuse.ledger.folder import make_private_folder
from dpfuse.ledger.store import sync_folder

LARGEST_ID = 2**63 - 1
_VERSION = 1
_DAY_S = 86400.0
_SECRET = re.compile(r"[0-9a-f]{64}", re.ASCII)
_REVOKED = re.compile(r"p?[0-9]{1,19}\.[0-9]{1,9}\.[0-9]{1,9}", re.ASCII)
Stamp = tuple[int, ...]
Role = Literal["", "p"]
"""What the name of a key begins with: nothing for a sensor's, "p" for that of a publisher of public inputs."""


class Generation(NamedTuple):
    """The keys that one secret makes.

    Attributes:
        number: from 1.
        secret: 32 bytes, known to the centre only.
        expires_at: seconds since 1970; infinity for never.
    """

    number: int
    secret: bytes
    expires_at: float = math.inf

    def derive(self, purpose: str) -> bytes:
        """The secret of a purpose: HKDF-SHA256 with no salt, 32 bytes."""
        extracted = hmac.digest(bytes(32), self.secret, "sha256")
        return hmac.digest(extracted, f"dpfuse 1 {purpose}".encode() + b"\x01", "sha256")

    def __repr__(self) -> str:
        return f"Generation({self.number})"


@dataclass(frozen=True)
class KeyFile:
    """The content of a key file and of its list of revoked keys.

    Attributes:
        generations: in order of their numbers.
        revoked: names of keys.
        path: where it was read; None for keys without a file.
        stamp: identifies the content on disk.
    """

    generations: tuple[Generation, ...]
    revoked: frozenset[str] = frozenset()
    path: Path | None = None
    stamp: Stamp = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for generation in self.generations:
            if len(generation.secret) != 32:
                raise ValueError(
                    f"secret must have 32 bytes, got {len(generation.secret)}; `dpfuse keys new` makes one"
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KeyFile:
        target = Path(path)
        if not target.is_file():
            raise FileRefused(f"no key file at {target}; make one with `dpfuse keys new --keys {target}`")
        stamp = _stamp(target)  # before the content: what changes in between is read again
        try:
            content = json.loads(read_private(target))
            generations = tuple(_parse_generation(one) for one in content["generations"])
            numbers = [one.number for one in generations]
            is_good = content["version"] == _VERSION and numbers and numbers == sorted(set(numbers))
        except (ValueError, KeyError, TypeError):
            is_good, generations = False, ()
        if not is_good:
            raise FileRefused(f"{target} must be a key file of version {_VERSION}; make it with `dpfuse keys new`")
        return cls(generations, _read_revoked(target), target, stamp)

    @classmethod
    def create(cls, path: str | os.PathLike[str], days: float = 365) -> KeyFile:
        """Write a new key file with one generation; refused if there is one. A new folder is for its owner alone."""
        generation = _new_generation(1, days)
        make_private_folder(Path(path).resolve().parent)
        with _change(Path(path)):
            if Path(path).exists():
                raise FileRefused(f"{path} is there already; with a new one all keys of sensors would be invalid")
            return cls((generation,), path=Path(path))._write()

    def rotate(self, days: float = 365, overlap_days: float = 7) -> KeyFile:
        """Add a generation. The one before expires after the overlap or at its own time; expired ones are removed."""
        assert self.path is not None, "keys without a file cannot be rotated"
        with _change(self.path):
            now = KeyFile.load(self.path)
            if len(now.live()) > 1:
                raise FileRefused(
                    f"{self.path} has two valid generations; rotate again after {format_time(now.next_expiry)}"
                )
            ends_at = time.time() + overlap_days * _DAY_S
            kept = [one._replace(expires_at=min(one.expires_at, ends_at)) for one in now.live()]
            new = _new_generation(now.newest.number + 1, days)
            return KeyFile((*kept, new), now.revoked, self.path)._write()

    def revoke(self, sensors: Iterable[int], role: Role = "") -> KeyFile:
        """Revoke the keys of sensors, or publishers, in all generations. The next one issued has another serial."""
        assert self.path is not None, "keys without a file cannot be revoked"
        with _change(self.path):
            now = KeyFile.load(self.path)
            each = [(sensor, one.number) for sensor in sensors for one in now.generations]
            found = {f"{role}{sensor}.{number}.{now.serial(sensor, number, role)}" for sensor, number in each}
            write_private(_revoked_path(self.path), "".join(f"{name}\n" for name in sorted(now.revoked | found)))
            return KeyFile.load(self.path)

    @cached_property
    def by_number(self) -> dict[int, Generation]:
        return {one.number: one for one in self.generations}

    @property
    def newest(self) -> Generation:
        return self.generations[-1]

    @property
    def next_expiry(self) -> float:
        return min(one.expires_at for one in self.live())

    def live(self) -> list[Generation]:
        """The generations that have not expired."""
        return [one for one in self.generations if one.expires_at > time.time()]

    def serial(self, sensor: int, generation: int, role: Role = "") -> int:
        """The serial of the key of a sensor, or of a publisher: the first that was not revoked."""
        if isinstance(sensor, bool) or not isinstance(sensor, int) or not 0 <= sensor <= LARGEST_ID:
            kind = "publisher" if role else "sensor"
            raise ValueError(f"{kind} must be a whole number from 0 to {LARGEST_ID}, got {sensor!r}")
        serial = 0
        while f"{role}{sensor}.{generation}.{serial}" in self.revoked:
            serial += 1
        return serial

    def changed(self) -> KeyFile | None:
        """What is on disk now; None if it is the same."""
        if self.path is None or _stamp(self.path) == self.stamp:
            return None
        if self.revoked and not _revoked_path(self.path).exists():
            raise FileRefused(f"{_revoked_path(self.path)} is missing; without it revoked keys would be valid again")
        return KeyFile.load(self.path)

    def _write(self) -> KeyFile:
        assert self.path is not None, "keys without a file cannot be written"
        generations = [
            {"number": one.number, "secret": one.secret.hex(), "expires": format_time(one.expires_at)}
            for one in self.generations
        ]
        write_private(self.path, json.dumps({"version": _VERSION, "generations": generations}, indent=1) + "\n")
        return KeyFile.load(self.path)


def format_time(seconds: float) -> str | None:
    """The time in UTC; None for never."""
    return None if math.isinf(seconds) else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def read_private(path: Path) -> str:
    """The text of a file that only its owner may read; another one is refused."""
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise FileRefused(f"only its owner may read {path}; run `chmod 600 {path}`")
    return path.read_text(encoding="ascii", errors="replace")


def write_private(path: Path, text: str) -> None:
    """Replace the file in one step; only its owner may read it."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)  # else a power cut could bring revoked keys back


def _new_generation(number: int, days: float) -> Generation:
    if not 0 < days:
        raise ValueError(f"days must be > 0, got {days:g}")
    return Generation(number, secrets.token_bytes(32), time.time() + days * _DAY_S)


def _parse_generation(content: Any) -> Generation:
    number, secret, expires = content["number"], content["secret"], content["expires"]
    if type(number) is not int or not 0 < number < 10**9 or not _SECRET.fullmatch(secret):
        raise ValueError("not a generation")
    expires_at = math.inf if expires is None else datetime.fromisoformat(expires).timestamp()
    return Generation(number, bytes.fromhex(secret), expires_at)


@contextmanager
def _change(path: Path) -> Iterator[None]:
    """Wait until no other process changes these files, and keep others waiting."""
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _revoked_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.revoked")


def _read_revoked(path: Path) -> frozenset[str]:
    where = _revoked_path(path)
    if not where.exists():
        return frozenset()
    names = read_private(where).split()
    if not all(map(_REVOKED.fullmatch, names)):
        raise FileRefused(f"{where} must hold one key a line, such as 17.1.0; `dpfuse keys revoke` writes it")
    return frozenset(names)


def _stamp(path: Path) -> Stamp:
    """Changes with every replacement of the key file or its list of revoked keys."""
    found: list[int] = []
    for one in (path, _revoked_path(path)):
        try:
            status = one.stat()
            found += [status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode]
        except FileNotFoundError:
            found.append(0)
    return tuple(found)
