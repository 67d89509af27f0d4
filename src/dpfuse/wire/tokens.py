"""Tokens: the holder of a token may send reports as one sensor.

    token = "<id>." + hex(HMAC-SHA256(secret, "dpfuse sensor <id>"))

The centre keeps one secret and no list: a token is valid if the secret made it. The passwords of the broker's users
come from the same secret and the text "dpfuse account <user>".
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
_CACHE_SIZE = 2**17


class Tokens:
    """Issues tokens and finds the sensor of a token.

    **Guarantees**
        - Without the secret nobody can make a token. A token is valid for its own id only.
        - Whether a token is valid depends on the token and the secret alone.
        - The cache of checked tokens is bounded and holds valid tokens only.

    Args:
        secret: 32 bytes, known to the centre only.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise ValueError(f"secret must have 32 bytes, got {len(secret)}; `dpfuse token --new` makes one")
        self._secret = secret
        self._sensors: dict[str, int] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokens:
        """Tokens made with the secret in a file that `new_secret` wrote."""
        target = Path(path)
        if not target.is_file():
            raise FileRefused(f"no secret at {target}; make one with `dpfuse token --new --secret {target}`")
        if stat.S_IMODE(target.stat().st_mode) & 0o077:
            raise FileRefused(f"only its owner may read the secret in {target}; run `chmod 600 {target}`")
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
        """The sensor that the token belongs to; None for an invalid token."""
        known = self._sensors.get(token)
        if known is not None:
            return known
        found = _TOKEN.fullmatch(token)
        if found is None or (sensor := int(found[1])) > LARGEST_ID:
            return None
        if not hmac.compare_digest(self.issue(sensor), token):
            return None
        if len(self._sensors) >= _CACHE_SIZE:
            self._sensors.clear()  # the cache only saves time
        self._sensors[token] = sensor
        return sensor

    def password(self, user: str) -> str:
        """The password of a user of the broker."""
        return self._sign(f"dpfuse account {user}")

    def __repr__(self) -> str:
        return "Tokens(...)"

    def _sign(self, text: str) -> str:
        return hmac.digest(self._secret, text.encode(), "sha256").hex()


def new_secret(path: str | os.PathLike[str]) -> None:
    """Write a new secret to a new file that only its owner may read."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise FileRefused(f"{path} is there already; with a new secret its tokens would be invalid") from None
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
