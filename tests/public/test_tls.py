"""Certificates of a door: clients with and without one, files that change, and handshakes that are not finished."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import time
from contextlib import contextmanager

import pytest

from dpfuse.errors import FileRefused
from dpfuse.public import connections
from dpfuse.public.answers import answer, make_api, too_busy
from dpfuse.public.connections import ByAddress, ByIdentity, ConnectionLimits, limited_protocol
from dpfuse.public.tls import Certificates, at_hangup
from support.certificates import Authority
from support.wire import PATIENCE_S, serving, wait_for

LIMITS = ConnectionLimits(num_served=12, num_accepted=16)
BY_IDENTITY = ConnectionLimits(num_served=12, num_accepted=128)
NUM_STRANGERS = 4  # of one address


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def door(certificates, admission=None):
    """The host and port of a server with these certificates."""
    app = make_api("test", "test")
    app.get("/")(lambda: answer({}))
    protocol = limited_protocol(admission or ByAddress(LIMITS), too_busy, certificates)
    with serving(app, http=protocol) as address:
        host, port = address.removeprefix("http://").split(":")
        yield host, int(port)


def context_of(authority, client=None):
    context = ssl.create_default_context(cafile=authority.path)
    if client is not None:
        context.load_cert_chain(client)
    return context


def ask(secure):
    """The first line of the answer, which is read to its end."""
    secure.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    received = b""
    while not received.endswith(b"{}") and (chunk := secure.recv(65536)):
        received += chunk
    return received.split(b"\r\n")[0]


def visit(place, context, session=None):
    """The first line of an answer, the server's certificate and the session; raises if the server refuses."""
    with socket.create_connection(place, PATIENCE_S) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secure:
            status = ask(secure)
            if not status:
                raise ConnectionError("closed")
            return status, secure.getpeercert(binary_form=True), secure.session


def test_only_clients_with_a_certificate_that_is_signed_and_not_revoked_are_answered(authority, tmp_path):
    server, client, other = authority.issue("server"), authority.issue("client"), authority.issue("other")
    stranger = Authority(tmp_path, "stranger").issue("stranger")
    certificates = Certificates(server, server, authority.path)
    with door(certificates) as place:
        known = context_of(authority, client)
        status, _, session = visit(place, known)
        assert status == b"HTTP/1.1 200 OK"
        for wrong in (None, stranger):
            with pytest.raises(OSError):
                visit(place, context_of(authority, wrong))
        authority.revoke(client)
        certificates.reload()
        with pytest.raises(OSError):
            visit(place, known, session)  # a session that began before is of no use either
        with pytest.raises(OSError):
            visit(place, context_of(authority, client))
        assert visit(place, context_of(authority, other))[0] == b"HTTP/1.1 200 OK"


def test_without_an_authority_for_clients_everybody_is_answered_over_tls_alone(authority):
    server = authority.issue("open")
    with door(Certificates(server, server)) as place:
        assert visit(place, context_of(authority))[0] == b"HTTP/1.1 200 OK"
        with socket.create_connection(place, PATIENCE_S) as plain:
            assert not ask(plain).startswith(b"HTTP")


def test_a_new_certificate_serves_new_connections_and_a_damaged_one_changes_nothing(authority, tmp_path, caplog):
    used = tmp_path / "used.pem"
    shutil.copy(authority.issue("first"), used)
    certificates = Certificates(used, used)
    with door(certificates) as place, socket.create_connection(place, PATIENCE_S) as plain:
        context = context_of(authority)
        _, first, _ = visit(place, context)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as kept:
            assert ask(kept) == b"HTTP/1.1 200 OK"
            shutil.copy(authority.issue("second"), used)
            certificates.reload()
            _, second, _ = visit(place, context)
            assert second != first
            assert ask(kept) == b"HTTP/1.1 200 OK"  # the open connection goes on
        used.write_text("damaged")
        certificates.reload()
        assert visit(place, context)[1] == second
        assert "the certificates stay as they are" in caplog.text and "used.pem" in caplog.text


def test_files_that_are_no_certificates_are_refused_with_their_names(authority, tmp_path):
    server = authority.issue("good")
    (bad := tmp_path / "bad.pem").write_text("nothing")
    for files in ((bad, bad), (tmp_path / "missing", server), (server, server, bad), (server, server, tmp_path / "no")):
        with pytest.raises(FileRefused, match="PEM"):
            Certificates(*files)


@pytest.mark.parametrize("by_identity", [True, False])
def test_handshakes_that_are_begun_and_not_finished_are_limited(authority, by_identity):
    """Otherwise they would use up the open files, and who counts them would learn how many sensors are connected."""
    server = authority.issue("limited")
    admission = ByIdentity(BY_IDENTITY) if by_identity else ByAddress(LIMITS, per_address=NUM_STRANGERS)
    with door(Certificates(server, server), admission) as place:
        begun = [socket.create_connection(place, PATIENCE_S) for _ in range(3 * LIMITS.num_accepted)]
        try:
            for one in begun:
                one.sendall(b"\x16\x03\x01")  # the first bytes of a handshake
            limit = NUM_STRANGERS if by_identity else LIMITS.num_accepted
            wait_for(lambda: len([one for one in begun if is_open(one)]) == limit)
            if by_identity:
                assert visit(place, context_of(authority))[0] == b"HTTP/1.1 200 OK"
        finally:
            for one in begun:
                one.close()
        wait_for(lambda: visit_or_none(place, context_of(authority)) == b"HTTP/1.1 200 OK")  # all places are free


def visit_or_none(place, context):
    try:
        return visit(place, context)[0]
    except OSError:
        return None


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_a_handshake_has_to_end_in_time(authority, monkeypatch):
    monkeypatch.setattr(connections, "_REQUEST_S", 0.3)
    server = authority.issue("slow")
    with door(Certificates(server, server)) as place, socket.create_connection(place, PATIENCE_S) as begun:
        begun.sendall(b"\x16\x03\x01")
        began_at = time.monotonic()
        assert begun.recv(1) == b""
        assert time.monotonic() - began_at < 30


def test_a_hangup_runs_what_was_added_until_then_and_leaves_the_handler_as_it_was():
    before, seen, actions = signal.getsignal(signal.SIGHUP), [], []
    with at_hangup(actions):
        actions.append(lambda: seen.append("done"))
        os.kill(os.getpid(), signal.SIGHUP)
        wait_for(lambda: seen == ["done"])
    assert signal.getsignal(signal.SIGHUP) == before
