"""What `/metrics` shows, of a broker in memory and real requests."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse
from tests.kit.broker import BrokerHarness, broker, metrics_of
from tests.kit.records import batch
from tests.prometheus import tool

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.services import group_figures, storage_figures
from headrace.http.metric_table import HISTOGRAM, ROWS
from headrace.http.metrics import OPEN_METRICS, TEXT, Metrics, encoding_for
from headrace.http.request_figures import HttpFigures
from headrace.kafka import apis, face_figures
from headrace.runtime.loop_lag import LoopLag


def _metrics(rig: BrokerHarness) -> Metrics:
    return metrics_of(rig, HttpFigures().figures, LoopLag(rig.clock).figures)


async def _samples(rig: BrokerHarness) -> dict[tuple[str, str], float]:
    """(name, values of the labels joined by commas) -> value."""
    text, _type = _metrics(rig).render()
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for found in parse(text.decode())
        for sample in found.samples
    }


async def _produce(client: Any, topic: str, data: bytes, acks: int = -1) -> Any:
    part = {"index": 0, "records": data}
    body = {"acks": acks, "timeout_ms": 1000}
    body["topic_data"] = [{"name": topic, "partition_data": [part]}]
    return await client.ask(apis.PRODUCE, 9, body)


async def _fetch(client: Any, topic: str, offset: int) -> Any:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    body = {"max_bytes": 1 << 20, "topics": [{"topic": topic, "partitions": [part]}]}
    return await client.ask(apis.FETCH, 11, body)


async def _commit(client: Any, group: str, topic: str, offset: int) -> None:
    part = {"partition_index": 0, "committed_offset": offset}
    member = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    body = {**member, "topics": [{"name": topic, "partitions": [part]}]}
    await client.ask(apis.OFFSET_COMMIT, 7, body)


async def test_every_request_is_measured_and_every_error_is_counted_by_its_name() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t")
        client = rig.client()
        for _ in range(5):
            await _produce(client, "t", batch(b"value"))
        await _produce(client, "nowhere", batch(b"value"))
        for _ in range(3):
            await _fetch(client, "t", 0)
        await _fetch(client, "t", 99)
        await client.ask(apis.METADATA, 9, {"topics": [{"name": "no/name"}]})
        found = await _samples(rig)
        for api, count in (("Produce", 6), ("Fetch", 4), ("Metadata", 1)):
            assert found["headrace_requests_total", api] == count
            assert found["headrace_request_duration_seconds_count", api] == count
            assert 0 < found["headrace_request_duration_seconds_sum", api] < 60 * count
        errors = "headrace_request_errors_total"
        assert found[errors, "Produce,UNKNOWN_TOPIC_OR_PARTITION"] == 1
        assert found[errors, "Fetch,OFFSET_OUT_OF_RANGE"] == 1
        assert found[errors, "Metadata,INVALID_TOPIC_EXCEPTION"] == 1
        assert ("headrace_request_duration_seconds_count", "JoinGroup") not in found


async def test_records_and_bytes_of_a_topic_count_in_both_directions() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t")
        client, data = rig.client(), batch(b"a", b"b", b"c")
        await _produce(client, "t", data)
        await _produce(client, "t", data)
        await _fetch(client, "t", 0)
        await _fetch(client, "t", 3)
        found = await _samples(rig)
        assert found["headrace_topic_in_records_total", "t"] == 6
        assert found["headrace_topic_in_bytes_total", "t"] == 2 * len(data)
        assert found["headrace_topic_out_records_total", "t"] == 9
        assert found["headrace_topic_out_bytes_total", "t"] == 3 * len(data)
        await rig.node.services.topics.delete("t")
        assert ("headrace_topic_in_records_total", "t") not in await _samples(rig)


async def test_topics_beyond_the_bound_are_counted_without_series(monkeypatch) -> None:
    monkeypatch.setattr(storage_figures, "TOPICS_MAX", 2)

    async with broker() as rig:
        for name in "abcde":
            await rig.node.topics.create(name)
        found = await _samples(rig)
        shown = [labels for name, labels in found if name == "headrace_topic_in_bytes_total"]
        assert shown == ["a", "b"]
        assert found["headrace_topics_without_series", ""] == 3


async def test_partitions_have_series_of_their_own_only_on_demand() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t", 3)
        client = rig.client()
        await _produce(client, "t", batch(b"v"))
        found = await _samples(rig)
        loaded = found["headrace_partitions_without_series", ""]
        assert loaded >= 1
        assert not [name for name, _ in found if name.startswith("headrace_log_")]
        assert found["headrace_topic_size_bytes", "t"] > 0
        rig.node.config.metrics_partitions_max = 1
        found = await _samples(rig)
        assert found["headrace_log_end_offset", "0,t"] == 1
        assert len([name for name, _ in found if name == "headrace_log_size_bytes"]) == 1
        assert found["headrace_partitions_without_series", ""] == loaded - 1


async def test_lag_is_shown_in_records_and_in_seconds() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t")
        client, now_ms = rig.client(), rig.clock.now_ms()
        for age_s in (600, 60, 6):
            await _produce(client, "t", batch(b"v", timestamp_ms=now_ms - age_s * 1000))
        for group, offset in (("slow", 0), ("fast", 2), ("done", 3)):
            await _commit(client, group, "t", offset)
        found = await _samples(rig)
        for group, records, age_s in (("slow", 3, 600), ("fast", 1, 6), ("done", 0, 0)):
            assert found["headrace_group_lag_records", f"{group},0,t"] == records
            assert age_s <= found["headrace_group_lag_seconds", f"{group},t"] <= age_s + 5


async def test_ages_that_cost_too_much_are_left_out(monkeypatch) -> None:
    monkeypatch.setattr(group_figures, "AGES_MAX", 1)

    async with broker() as rig:
        await rig.node.topics.create("t")
        client = rig.client()
        await _produce(client, "t", batch(b"v"))
        for group in ("g", "h"):
            await _commit(client, group, "t", 0)
        found = await _samples(rig)
        assert sum(name == "headrace_group_lag_records" for name, _ in found) == 2
        assert sum(name == "headrace_group_lag_seconds" for name, _ in found) == 1


async def test_a_scrape_opens_no_coordinator_and_waits_for_none() -> None:
    async with broker(BrokerConfig(offsets_partition_count=8)) as rig:
        await rig.node.topics.create("t")
        await _commit(rig.client(), "g", "t", 0)
        opened = len(rig.node.groups.shards.opened())
        assert opened < 8
        for shard in rig.node.groups.shards.opened():
            shard.machine = None  # as while its log is read
        async with asyncio.timeout(5):
            text, _type = _metrics(rig).render()
        assert b"headrace_group_lag_records{" not in text
        assert len(rig.node.groups.shards.opened()) == opened


async def test_connections_are_shown_by_software_and_the_many_are_joined(monkeypatch) -> None:
    monkeypatch.setattr(face_figures, "SOFTWARE_MAX", 2)

    async with broker() as rig:
        for number, count in ((1, 3), (2, 2), (3, 1), (4, 1)):
            for _ in range(count):
                names = {"client_software_name": "lib", "client_software_version": f"{number}"}
                await rig.client().ask(apis.API_VERSIONS, 3, names)
        found = await _samples(rig)
        assert found["headrace_connections", ""] == 7
        name = "headrace_client_connections"
        assert {key[1]: value for key, value in found.items() if key[0] == name} == {
            "lib,1": 3,
            "lib,2": 2,
            "other,other": 2,
        }


async def test_every_metric_is_in_the_table_and_its_text_is_the_tables() -> None:
    async with broker() as rig:
        text, _type = _metrics(rig).render()
        shown = {found.name: found for found in parse(text.decode())}
        assert shown.keys() <= ROWS.keys()
        for name, found in shown.items():
            assert (found.type, found.documentation) == (ROWS[name].type, ROWS[name].help)
            for sample in found.samples:
                given = sample.labels.keys() - ({"le"} if found.type == HISTOGRAM else set())
                assert given == set(ROWS[name].labels), name
        # what needs a cluster or a setting is not made by this broker
        absent = {name for name in ROWS if name not in shown}
        others = ("tier_", "bookies", "zookeeper", "copies", "can_write", "facts_lost", "disk_")
        others += ("partitions_under", "certificate", "trusted_ca", "cache_bytes")
        assert not [name for name in absent if not any(part in name for part in others)]


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("", TEXT),
        ("text/html,*/*", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1"
            ";q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",  # Prometheus 2.42
            OPEN_METRICS,
        ),
    ],
)
async def test_a_client_that_accepts_open_metrics_gets_them(accept, encoding) -> None:
    assert encoding_for(accept) is encoding

    async with broker() as rig:
        text, content_type = _metrics(rig).render(encoding)
        assert content_type == encoding.content_type
        read = parse_open if encoding is OPEN_METRICS else parse
        assert {found.name for found in read(text.decode())} <= ROWS.keys()


def test_promtool_has_nothing_to_say_against_the_metrics() -> None:
    promtool = tool("promtool")

    async def scenario() -> bytes:
        async with broker() as rig:
            await rig.node.topics.create("t")
            await _produce(rig.client(), "t", batch(b"v"))
            await _commit(rig.client(), "g", "t", 0)
            return (_metrics(rig).render())[0]

    text = asyncio.run(scenario())
    checked = [promtool, "check", "metrics"]
    done = subprocess.run(checked, input=text, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert not done.stdout + done.stderr
