"""Requests whose arrays claim more than they hold are refused before memory is taken for them."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from headrace.kafka.apis import APIS
from headrace.kafka.client.exchange import request_header
from headrace.kafka.wire.codecs import build_reader
from headrace.kafka.wire.definitions import REQUEST
from headrace.kafka.wire.primitives import FrameInvalid, elements
from headrace.kafka.wire.schema import read_request
from headrace_verify.kafka_wire import is_in_kio
from headrace_verify.wire.grammar import Served, write

SERVED = [
    Served(api.key, version)
    for api in APIS.values()
    for version in range(api.version_min, api.version_max + 1)
    if is_in_kio(api.key, version)
]


@pytest.mark.parametrize("served", SERVED, ids=str)
def test_reading_ends_where_the_request_ends(served):
    written = write(served)
    read = build_reader(served.api, served.version, REQUEST)
    elements.begin()  # as `read_request` does: another test may have used them up
    _message, end = read(written.data, written.body_at, len(written.data))
    assert end == len(written.data)


def test_a_count_of_2_31_in_any_place_of_any_request_is_refused_or_read():
    """In a process of its own: a reader that allocates what is claimed would end it."""
    script = (
        "from headrace.kafka.apis import APIS\n"
        "from headrace.kafka.wire.primitives import FrameInvalid\n"
        "from headrace.kafka.wire.schema import read_request\n"
        "from headrace_verify.kafka_wire import is_in_kio\n"
        "from headrace_verify.wire.grammar import Served, lies, write\n"
        "refused = 0\n"
        "for api in APIS.values():\n"
        "    for version in range(api.version_min, api.version_max + 1):\n"
        "        if api.key in (0, 1) or not is_in_kio(api.key, version): continue\n"
        "        written = write(Served(api.key, version))\n"
        "        for lie in lies(written):\n"
        "            try:\n"
        "                read_request(api.key, version, lie[4:], written.body_at)\n"
        "            except FrameInvalid:\n"
        "                refused += 1\n"
        "print(refused)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 1000


def test_more_topics_than_bytes_are_refused():
    header = request_header(b"", 37, 1, 1, is_flexible=False)
    with pytest.raises(FrameInvalid, match="does not fit"):
        read_request(37, 1, header + struct.pack(">i", 2**31 - 1) + bytes(20), len(header))


def test_null_in_place_of_an_array_that_must_be_there_is_refused():
    header = request_header(b"", 37, 1, 1, is_flexible=False)
    with pytest.raises(FrameInvalid, match="null"):
        read_request(37, 1, header + struct.pack(">i", -1) + bytes(5), len(header))


def test_more_unknown_tagged_fields_than_any_client_sends_are_refused():
    written = write(Served(18, 3))
    tags = b"\x80\x80\x40" + b"\x7f\x00" * (1 << 20)
    with pytest.raises(FrameInvalid, match="tagged"):
        read_request(18, 3, written.data[:-1] + tags, written.body_at)
