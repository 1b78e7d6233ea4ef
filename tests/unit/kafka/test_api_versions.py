"""ApiVersions: the first request of every client, and the one that decides whether it can go on."""

from __future__ import annotations

import pytest
from tests.kit.broker import broker

from headrace.kafka import apis
from headrace.kafka.error_codes import INVALID_REQUEST, NONE, REBOOTSTRAP_REQUIRED

SOFTWARE = {"client_software_name": "apache-kafka-java", "client_software_version": "3.7.1"}


@pytest.mark.parametrize("version", range(3, apis.APIS[apis.API_VERSIONS].version_max + 1))
async def test_features_from_level_0_are_listed_only_for_clients_that_read_them(version):
    """KAFKA-17011: Java clients 3.3 to 3.7 ask with v3 and fail if a feature's minimum is 0."""

    async with broker() as rig:
        answer = await rig.client().ask(apis.API_VERSIONS, version, SOFTWARE)
        supported = {one.name: one.min_version for one in answer.supported_features}
        finalized = {one.name for one in answer.finalized_features}
        assert all(level >= (version < 4) for level in supported.values())
        assert finalized == {"share.version", "streams.version", "transaction.version"}
        assert set(supported) == (finalized if version >= 4 else set())


@pytest.mark.parametrize(
    ("cluster", "node", "code"),
    [
        (True, True, NONE),
        (None, None, NONE),
        (False, True, REBOOTSTRAP_REQUIRED),
        (True, False, REBOOTSTRAP_REQUIRED),
        (None, True, INVALID_REQUEST),
        (True, None, INVALID_REQUEST),
    ],
)
async def test_a_client_that_expects_another_broker_gets_an_error(cluster, node, code):
    """KIP-1242; the codes are those of Kafka 4.4. True: this broker's, False: another's."""

    async with broker() as rig:
        wanted = {
            "cluster_id": {True: rig.node.cluster_id, False: "other", None: None}[cluster],
            "node_id": {True: rig.node.config.broker_id, False: 99, None: -1}[node],
        }
        answer = await rig.client().ask(apis.API_VERSIONS, 5, {**SOFTWARE, **wanted})
        assert int(answer.error_code) == code
        assert bool(answer.api_keys) == (code == NONE)
