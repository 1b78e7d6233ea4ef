"""Requests that brokers ask each other, as the abuse of the wire writes them."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.kafka.apis import OWN_APIS
from headrace.kafka.wire.schema import read_request
from headrace_verify.rng import seeded
from headrace_verify.wire.grammar import TEXT, Served, lies, write
from headrace_verify.wire.own_requests import VERSIONS

TOPIC = UUID(int=7)


def test_every_api_is_written():
    assert {api for api, _version in VERSIONS} == set(OWN_APIS)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_request_is_whole_and_has_something_in_every_part(api, version):
    written = write(Served(api, version, TOPIC))
    request = read_request(api, version, written.data, written.body_at)
    assert (request.group_id if hasattr(request, "group_id") else TEXT) == TEXT
    assert request.topic_id == TOPIC
    said = repr(request)
    assert "[]" not in said
    assert "()" not in said
    assert len(list(lies(written))) > 5


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_drawn_requests_can_be_read(api, version):
    drawn = set()
    for seed in range(100):
        written = write(Served(api, version, TOPIC), seeded(seed))
        read_request(api, version, written.data, written.body_at)
        drawn.add(written.data)
    assert len(drawn) > 20
