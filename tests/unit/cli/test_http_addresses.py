"""Which of a broker's HTTP addresses a command uses."""

from __future__ import annotations

import socket
from threading import Thread

import pytest
from tests.kit.json_server import answering

from headrace.cli.failures import CommandFailed
from headrace.cli.health import _probes
from headrace.cli.session import CliSession
from headrace.cli.web import Web, nearest
from headrace.metadata.endpoints import HTTP, KAFKA, Endpoint, http_text
from headrace.records.cluster_ids import tenants_cluster_id
from headrace.records.tenant_names import DEFAULT

NETWORK = "https://10.0.0.5:9443"
CLUSTERS = "r5yYkI4bTp2mB7s0Qm9XzA", "h7UtQ5nGT1e1Gq1pYv4bUg"


def test_a_broker_prints_all_its_http_addresses_further_ones_with_their_scheme():
    endpoints = [
        Endpoint(KAFKA, "PLAINTEXT", "127.0.0.1", 9092),
        Endpoint(HTTP, "HTTP", "127.0.0.1", 9180),
        Endpoint(HTTP, "HTTP_2", "10.0.0.5", 9443, "SASL_SSL"),
        Endpoint(HTTP, "HTTP_3", "::1", 9181),
    ]
    assert http_text(endpoints) == f"127.0.0.1:9180,{NETWORK},http://[::1]:9181"
    assert http_text(endpoints[:2]) == "127.0.0.1:9180"
    assert http_text(endpoints[:1]) == ""


@pytest.mark.parametrize(
    ("addresses", "is_local", "expected"),
    [
        (["127.0.0.1:9180", NETWORK], True, "127.0.0.1:9180"),
        (["127.0.0.1:9180", NETWORK], False, NETWORK),
        ([NETWORK, "http://127.0.0.1:9180"], True, "http://127.0.0.1:9180"),
        (["127.0.0.1:9180"], False, "127.0.0.1:9180"),
        ([NETWORK], True, NETWORK),
    ],
)
def test_loopback_is_for_brokers_of_this_machine(addresses, is_local, expected):
    assert nearest(addresses, is_local=is_local) == expected


@pytest.mark.parametrize(
    ("given", "step"), [(None, "register an address that others"), ("127.0.0.1:1", "Check that")]
)
def test_a_registered_loopback_address_that_does_not_respond_is_explained(given, step):
    session = CliSession("127.0.0.1:9092", given_http=given)
    with pytest.raises(CommandFailed) as failed:
        Web(session, "127.0.0.1:1").probe("/readyz")
    assert step in failed.value.next_step
    assert failed.value.next_step.startswith("Check that a broker is running there")


def test_an_address_that_hangs_up_on_plain_http_may_speak_tls():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        with pytest.raises(CommandFailed) as failed:
            Web(CliSession("127.0.0.1:9092", given_http=address), address).probe("/readyz")
    assert f"https://{address}" in failed.value.next_step


def test_the_health_of_a_cluster_is_asked_of_each_broker_and_not_of_one_again_and_again():
    def cluster(loopback: str, _path: str) -> dict[str, object]:
        brokers = [
            {
                "id": number,
                "endpoints": [
                    {"face": "kafka", "address": "h:9092", "security": "PLAINTEXT"},
                    {"face": "http", "address": loopback, "security": "PLAINTEXT"},
                    {"face": "http", "address": f"b{number}:9443", "security": "SASL_SSL"},
                ],
            }
            for number in (1, 2, 3)
        ]
        return {"broker": 2, "brokers": brokers}

    with answering(cluster) as asked:
        session = CliSession("127.0.0.1:9092", given_http=asked, same_cluster={asked})
        found = [(one.broker, one.address) for one in _probes(session, is_cluster=True)]
    assert found == [(1, "https://b1:9443"), (2, asked), (3, "https://b3:9443")]


@pytest.mark.parametrize("over_http", [(0, DEFAULT), (0, "acme"), (0, "beta"), (1, DEFAULT)])
@pytest.mark.parametrize("over_kafka", [(0, DEFAULT), (0, "acme")])
def test_a_command_knows_a_cluster_by_the_id_that_its_user_sees_there(over_http, over_kafka):
    """Over HTTP its user may be another one than over Kafka: an operator, or nobody."""
    there, here = (tenants_cluster_id(CLUSTERS[at], of) for at, of in (over_http, over_kafka))
    with answering(lambda _address, _path: {"cluster_id": there}) as address:
        web = Web(CliSession("127.0.0.1:9092", cluster_id=here, given_http=address), address)
        tenants = {over_http[1], over_kafka[1]}
        if over_http[0] == over_kafka[0] and (DEFAULT in tenants or len(tenants) == 1):
            assert web.ask("GET", "/v1/topics") == {"cluster_id": there}
        else:
            with pytest.raises(CommandFailed, match=f"belongs to cluster {there}"):
                web.ask("GET", "/v1/topics")
