"""Configuration files for a mosquitto broker: its users and what each of them may publish and read."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import secrets
from collections.abc import Iterable
from pathlib import Path

from dpfuse.errors import FileRefused
from dpfuse.ledger.folder import is_private, make_private_folder
from dpfuse.wire.key_file import write_private
from dpfuse.wire.keys import Keys
from dpfuse.wire.messages import MAX_REPORT

CENTRE, ESTIMATOR = "centre", "estimator"
"""Roles at the broker. A role has a user for each generation of keys, such as `centre.1`. Each key of a sensor is a
user, too, with the key's name."""

_CONFIGURATION = """\
# Written by `dpfuse broker`. Start it with: mosquitto -c {folder}/mosquitto.conf

# If root starts mosquitto, it switches to this user, the only one who may read the files in this folder.
user {user}

# The default address is reachable from this machine only. For another address, remove the # before the lines on TLS:
# without TLS, anybody on the network path can read reports and passwords.
listener {port} {host}
# certfile {folder}/server.crt
# keyfile {folder}/server.key

# The users, and what each may publish and read. What these files do not allow is forbidden.
allow_anonymous false
password_file {folder}/passwords
acl_file {folder}/acl

# Reports wait here while the centre is away. The queue has no limit: with one, many reports of one sensor could push
# out the reports of another. Reports expire, and the centre's session ends {session_s} s after it disconnected.
max_queued_messages 0
max_queued_bytes 0
# Reports that were sent to the centre and are not acknowledged yet.
max_inflight_messages {inflight}
# Bytes of one message with its topic; a report has 216 and 26 for each value.
max_packet_size {size}
max_keepalive 120
persistent_client_expiration 1d

# Nothing is stored on disk: reports are useless a step later, and the centre's ledger holds the releases.
persistence false
set_tcp_nodelay true

# The connected clients and the number of messages are private: $SYS and the log do not show them.
sys_interval 0
connection_messages false
log_dest stderr
log_timestamp true
log_type error
log_type warning
"""

_CENTRE_ACCESS = """\
# The centre reads all reports and publishes all releases.
user {user}
topic read dpfuse/+/reports/+
topic write dpfuse/+/releases

"""
_ESTIMATOR_ACCESS = """\
# Estimators read releases only.
user {user}
topic read dpfuse/+/releases

"""
_SENSOR_ACCESS = """\
# The user name of a sensor is the name of its key. A sensor publishes its own reports and reads releases, which tell it
# the step.
# mosquitto warns that the second pattern names no user; that is intended.
pattern write dpfuse/+/reports/%u
pattern read dpfuse/+/releases
"""

MAX_INFLIGHT = 2000
SESSION_S = 60


def write_broker(
    folder: str | os.PathLike[str],
    keys: Keys,
    sensors: Iterable[int],
    *,
    host: str = "127.0.0.1",
    port: int = 1883,
) -> Path:
    """Write mosquitto.conf, acl and passwords for these sensors, a centre and an estimator.

    A new folder is for its owner alone; one that others may search is refused.

    Every key that has neither expired nor been revoked has a user of its own, so that both generations can connect
    during a rotation. To change the sensors, run it again and send mosquitto a SIGHUP: it reads the passwords again and
    keeps the connections of all who may still connect.

    Returns:
        The path of mosquitto.conf.
    """
    target = Path(folder).resolve()
    make_private_folder(target)
    if not is_private(target):
        raise FileRefused(
            f"{target} may be searched by others, who could read from the sizes of its files how many sensors there "
            f"are; run `chmod 700 {target}`, or name a new folder"
        )
    centres, estimators = keys.accounts(CENTRE), keys.accounts(ESTIMATOR)
    users = {account.user: account.password for account in (*centres, *estimators)}
    users |= {str(key.name): key.password for sensor in sensors for key in keys.issue_all(sensor)}
    passwords = "".join(f"{name}:{_hash(password)}\n" for name, password in users.items())
    access = "# Written by `dpfuse broker`. What is not listed is forbidden, $SYS included.\n\n"
    access += "".join(_CENTRE_ACCESS.format(user=account.user) for account in centres)
    access += "".join(_ESTIMATOR_ACCESS.format(user=account.user) for account in estimators) + _SENSOR_ACCESS
    user = pwd.getpwuid(os.getuid()).pw_name
    limits = {"inflight": MAX_INFLIGHT, "size": MAX_REPORT + 512, "session_s": SESSION_S}
    configuration = _CONFIGURATION.format(folder=target, user=user, host=host, port=port, **limits)
    write_private(target / "passwords", passwords)
    write_private(target / "acl", access)
    write_private(target / "mosquitto.conf", configuration)
    return target / "mosquitto.conf"


def _hash(password: str) -> str:
    """The password as mosquitto_passwd writes it: PBKDF2 with SHA-512; few rounds suffice for random passwords."""
    salt, rounds = secrets.token_bytes(12), 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    return f"$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
