"""Tokens: who may report as which sensor.

    token = "<id>." + hex(HMAC-SHA256(secret, "dpfuse sensor <id>"))

The centre keeps one secret and no list: a token is right if the secret made it. The accounts of the broker have
passwords from the same secret, "dpfuse account <name>".
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from dpfuse.errors import FileRefused

LARGEST_ID = 2**63 - 1
_TOKEN = re.compile(r"(0|[1-9][0-9]{0,18})\.[0-9a-f]{64}", re.ASCII)
_SECRET = re.compile(r"[0-9a-f]{64}", re.ASCII)
_REMEMBERED = 2**17


class Tokens:
    """Issues tokens and tells whose they are.

    **Guarantees**
        - Whoever lacks the secret has no token but those issued, and a token is good for its own id alone.
        - Whether a token is taken depends on the token and the secret, on nothing that the centre knows.
        - What is remembered, to be quick, is bounded, and only tokens that are right get in.

    Args:
        secret: 32 bytes that nobody else has.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise ValueError(f"secret must have 32 bytes, got {len(secret)}; `dpfuse token --new` makes one")
        self._secret = secret
        self._sensors: dict[str, int] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokens:
        """The tokens of the secret in a file that `new_secret` wrote."""
        target = Path(path)
        if not target.is_file():
            raise FileRefused(f"no secret at {target}; make one with `dpfuse token --new --secret {target}`")
        if stat.S_IMODE(target.stat().st_mode) & 0o077:
            raise FileRefused(f"{target} holds a secret and others may read it; chmod 600 it")
        text = target.read_text(encoding="ascii", errors="replace").strip()
        if not _SECRET.fullmatch(text):
            raise FileRefused(f"{target} must hold one line of 64 hex digits; make it with `dpfuse token --new`")
        return cls(bytes.fromhex(text))

    def issue(self, sensor: int) -> str:
        """The token of a sensor."""
        if isinstance(sensor, bool) or not isinstance(sensor, int) or not 0 <= sensor <= LARGEST_ID:
            raise ValueError(f"sensor must be a whole number from 0 to {LARGEST_ID}, got {sensor!r}")
        return f"{sensor}.{self._sign(f'dpfuse sensor {sensor}')}"

    def sensor_of(self, token: str) -> int | None:
        """Whose token it is; None for one that was not issued."""
        known = self._sensors.get(token)
        if known is not None:
            return known
        found = _TOKEN.fullmatch(token)
        if found is None or (sensor := int(found[1])) > LARGEST_ID:
            return None
        if not hmac.compare_digest(self.issue(sensor), token):
            return None
        if len(self._sensors) >= _REMEMBERED:
            self._sensors.clear()  # a new start: who is in it depends on who reports
        self._sensors[token] = sensor
        return sensor

    def password(self, account: str) -> str:
        """The password of one of the broker's own accounts."""
        return self._sign(f"dpfuse account {account}")

    def __repr__(self) -> str:
        return "Tokens(...)"

    def _sign(self, text: str) -> str:
        return hmac.digest(self._secret, text.encode(), "sha256").hex()


def new_secret(path: str | os.PathLike[str]) -> None:
    """Write a fresh secret to a new file that only its owner may read."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise FileRefused(f"{path} is there already; tokens made with it would be void, so it is left alone") from None
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
