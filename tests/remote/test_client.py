"""What comes from a sender that is no centre is refused before it takes memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import httpx
import numpy as np
import pytest

from dpfuse.errors import ReleaseRefused
from dpfuse.public.rows import Row, release_message
from dpfuse.remote import client as client_module
from dpfuse.remote.client import get_file, get_json, make_client, read_events, rows_at_once

READERS = [
    lambda client: get_json(client, "/v1/clock"),
    lambda client: get_file(client, "/v1/estimator"),
    lambda client: list(read_events(client, "/v1/streams/main/releases/events", 1)),
]


class Counted(httpx.SyncByteStream):
    """A content that counts how often it is read."""

    def __init__(self, content):
        self.content, self.num_read = content, 0

    def __iter__(self):
        self.num_read += 1
        yield self.content


def answering(content, **headers):
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=content))
    return httpx.Client(transport=transport, base_url="http://centre")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "deflate", "x-unknown"])
def test_a_compressed_answer_is_refused_before_it_is_read(read, encoding):
    content = Counted(gzip.compress(gzip.compress(b'data: {"step": 1}\n')))
    with answering(content, **{"content-encoding": encoding}) as client:
        with pytest.raises(ReleaseRefused, match="/v1/.* answered with a content-encoding; answers must be sent as"):
            read(client)
    assert content.num_read == 0


@pytest.mark.parametrize("read", READERS)
def test_an_answer_as_it_is_is_read(read):
    content = Counted(b'data: {"step": 1}\n' if read is READERS[2] else b'{"step": 1}')
    with answering(content, **{"content-encoding": "identity"}) as client:
        assert read(client) in ({"step": 1}, [{"step": 1}], b'{"step": 1}')


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:1", "unix:/nowhere"])
def test_every_request_asks_for_no_compression(url):
    with make_client(url) as client:
        assert client.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("dimension", [1, 100, 1000, 20_000])
def test_a_page_of_the_longest_rows_is_within_the_limit(dimension, monkeypatch):
    largest = np.full(dimension, -(2**63), "<i8").tobytes()
    row = Row("x" * 64, 2**63 - 1, largest, 2**63 - 1, 2**63 - 1, 2**63 - 1, "0" * 16, 2**63 - 1, None, bytes(32))
    message = release_message(row, bytes(64)).content
    num_rows = rows_at_once(dimension)
    assert num_rows == 1000 or num_rows * len(message) > client_module._MAX_JSON / 2  # no smaller than it has to be
    page = b'{"releases":[%s]}' % b",".join([message] * num_rows)
    with answering(Counted(page)) as client:
        assert len(get_json(client, "/v1/streams/main/releases")["releases"]) == num_rows


def test_the_worst_answer_within_the_limit_takes_less_than_a_third_of_a_gigabyte():
    code = (
        "import httpx, resource\n"
        "from dpfuse.remote import client\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20\n"
        "content = httpx.ByteStream(b'[' + b'{},' * (client._MAX_JSON // 3 - 1) + b'0]')\n"
        "transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=content))\n"
        "before = peak()\n"
        "with httpx.Client(transport=transport, base_url='http://centre') as reader:\n"
        "    try:\n"
        "        client.get_json(reader, '/')\n"
        "    except client.ReleaseRefused as error:\n"
        "        print(peak() - before, error)\n"
    )
    # By way of a shell: Linux counts the peak of a parent's memory as that of the program that it starts.
    shell = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, code]
    found = subprocess.run(shell, capture_output=True, text=True, check=True, timeout=300).stdout
    taken_gib, _, refusal = found.partition(" ")
    assert "must be a JSON object" in refusal and json.loads(taken_gib) < 1 / 3
