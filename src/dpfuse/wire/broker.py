"""The configuration of a mosquitto that sensors, centre and estimators may share: who may say and hear what."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import secrets
from collections.abc import Iterable
from pathlib import Path

from dpfuse.wire.messages import MAX_REPORT
from dpfuse.wire.tokens import Tokens

CENTRE, ESTIMATOR = "centre", "estimator"
"""The broker's accounts apart from those of the sensors, whose name is their id."""

_CONFIGURATION = """\
# Written by `dpfuse broker`. Start it with: mosquitto -c {folder}/mosquitto.conf

# Started by root, mosquitto becomes this user: the one who may read the files beside this one, and nobody else.
user {user}

# Only programs on this machine. For others, name an address that they reach, and uncomment the lines on TLS: without
# them everybody on the way reads reports and tokens.
listener {port} {host}
# certfile {folder}/server.crt
# keyfile {folder}/server.key

# Who may connect, and what each may publish and read. Nothing that is not allowed there is.
allow_anonymous false
password_file {folder}/passwords
acl_file {folder}/acl

# Reports wait here while the centre is away, and none is dropped because others sent many: a limit would let one
# sensor decide whether another is heard. Reports expire, and the centre's session ends {session_s} s after it left.
max_queued_messages 0
max_queued_bytes 0
# Reports on their way to the centre that it has not acknowledged yet.
max_inflight_messages {inflight}
# Bytes of one message with its topic; a report has some 150.
max_packet_size {size}
max_keepalive 120
persistent_client_expiration 1d

# Reports are worth nothing a step later, and releases are in the centre's ledger: nothing is kept on disk.
persistence false
set_tcp_nodelay true

# Who is connected and how much is sent is private: nothing about it under $SYS, and none of it in the log.
sys_interval 0
connection_messages false
log_dest stderr
log_timestamp true
log_type error
log_type warning
"""

_ACCESS = f"""\
# Written by `dpfuse broker`. Whatever is not listed is forbidden: $SYS too.

# The centre reads all reports and publishes all releases.
user {CENTRE}
topic read dpfuse/+/reports/+
topic write dpfuse/+/releases

# Estimators read releases, and nothing else.
user {ESTIMATOR}
topic read dpfuse/+/releases

# A sensor, whose name is its id, publishes its own reports. Like everybody it reads releases, to know which step it is;
# mosquitto warns that the second pattern names nobody, which is meant.
pattern write dpfuse/+/reports/%u
pattern read dpfuse/+/releases
"""

INFLIGHT = 2000
SESSION_S = 60


def write_broker(
    folder: str | os.PathLike[str],
    tokens: Tokens,
    sensors: Iterable[int],
    *,
    host: str = "127.0.0.1",
    port: int = 1883,
) -> Path:
    """Write mosquitto.conf, acl and passwords into the folder, for these sensors, a centre and an estimator.

    Run it again for other sensors, then send mosquitto a SIGHUP: it reads its passwords anew and cuts nobody off.

    Returns:
        The path of mosquitto.conf.
    """
    place = Path(folder).resolve()
    place.mkdir(parents=True, exist_ok=True)
    accounts = {name: tokens.password(name) for name in (CENTRE, ESTIMATOR)}
    accounts |= {str(sensor): tokens.issue(sensor) for sensor in sensors}
    passwords = "".join(f"{name}:{_hash(password)}\n" for name, password in accounts.items())
    user = pwd.getpwuid(os.getuid()).pw_name
    configuration = _CONFIGURATION.format(
        folder=place, user=user, host=host, port=port, inflight=INFLIGHT, size=MAX_REPORT + 512, session_s=SESSION_S
    )
    _write(place / "passwords", passwords)
    _write(place / "acl", _ACCESS)
    _write(place / "mosquitto.conf", configuration)
    return place / "mosquitto.conf"


def _write(path: Path, text: str) -> None:
    """Put the text in place at once, readable for its owner alone: who has an account is private."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


def _hash(password: str) -> str:
    """As mosquitto_passwd writes it: PBKDF2 with SHA-512. Passwords here are random, so few rounds will do."""
    salt, rounds = secrets.token_bytes(12), 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    return f"$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
