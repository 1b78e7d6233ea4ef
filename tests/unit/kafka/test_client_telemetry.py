"""Client telemetry over the wire (KIP-714): what each client may push, and what is kept of it."""

from __future__ import annotations

import zlib
from contextlib import asynccontextmanager
from struct import pack
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.kit.broker import broker, metrics_of

from headrace.broker.security.principal import Principal
from headrace.broker.services import client_telemetry, otlp_metrics
from headrace.broker.services.client_metrics import INTERVAL_MS_DEFAULT
from headrace.errors import RecordInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    INVALID_CONFIG,
    INVALID_RECORD,
    INVALID_REQUEST,
    NONE,
    TELEMETRY_TOO_LARGE,
    THROTTLING_QUOTA_EXCEEDED,
    UNKNOWN_SUBSCRIPTION_ID,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from headrace.records.compression import GZIP, ZSTD, compress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CLIENT_METRICS = 16
NOBODY = UUID(int=0)


def message(*fields: tuple[int, bytes | float | int | str]) -> bytes:
    """A protobuf message of text, messages, doubles and varints."""
    out = b""
    for number, value in fields:
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, float):
            out += bytes([number << 3 | 1]) + pack("<d", value)
        elif isinstance(value, int):
            out += bytes([number << 3 | 1]) + pack("<q", value)
        else:
            size, head = len(value), [number << 3 | 2]
            while size > 127:
                head.append(size & 127 | 128)
                size >>= 7
            out += bytes([*head, size]) + value
    return out


def attribute(name: str, value: str) -> bytes:
    return message((1, name), (2, message((1, value))))


def gauge(name: str, value: float, *attributes: bytes) -> bytes:
    point = message((4, value), *((7, one) for one in attributes))
    return message((1, name), (5, message((1, point))))


def metrics_data(*metrics: bytes, resource: bytes = b"") -> bytes:
    scope = message(*((2, one) for one in metrics))
    return message((1, message((1, resource), (2, scope))))


def interval_ms(offer: Any) -> int:
    return round(offer.push_interval.total_seconds() * 1_000)


class Pushing:
    """A client of one broker."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.client = rig.client()
        self.instance = NOBODY
        self.subscription = 0

    async def configure(self, name: str, **configs: str) -> int:
        resource = {
            "resource_type": CLIENT_METRICS,
            "resource_name": name,
            "configs": [
                {"name": key.replace("_", "."), "config_operation": 0, "value": value}
                for key, value in configs.items()
            ],
        }
        request = {"resources": [resource], "validate_only": False}
        answer = await self.client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
        return int(answer.responses[0].error_code)

    async def subscribe(self, instance: UUID | None = None) -> Any:
        answer = await self.client.ask(
            apis.GET_TELEMETRY_SUBSCRIPTIONS,
            0,
            {"client_instance_id": instance or self.instance},
        )
        if answer.error_code == NONE:
            self.instance = answer.client_instance_id
            self.subscription = answer.subscription_id
        return answer

    async def push(self, metrics: bytes, codec: int = 0, **other: Any) -> int:
        request = {
            "client_instance_id": self.instance,
            "subscription_id": self.subscription,
            "terminating": False,
            "compression_type": codec,
            "metrics": metrics,
        }
        answer = await self.client.ask(apis.PUSH_TELEMETRY, 0, request | other)
        return int(answer.error_code)

    async def shown(self) -> str:
        text, _type = metrics_of(self.rig).render()
        return "\n".join(
            line
            for line in text.decode().splitlines()
            if line.startswith("headrace_client_metric{")
        )


@asynccontextmanager
async def pushing() -> AsyncIterator[Pushing]:
    async with broker() as rig:
        yield Pushing(rig)


async def test_a_client_gets_its_subscription_and_its_pushed_metrics_are_shown():
    async with pushing() as one:
        offer = await one.subscribe()
        assert (list(offer.requested_metrics), interval_ms(offer)) == ([], INTERVAL_MS_DEFAULT)
        assert await one.configure("s", metrics="org.apache", interval_ms="100") == NONE
        offer = await one.subscribe()
        assert list(offer.requested_metrics) == ["org.apache"]
        assert interval_ms(offer) == 100
        data = metrics_data(
            gauge("org.apache.kafka.rate", 2.5, attribute("topic", "t")),
            resource=message((1, attribute("client_rack", "r1"))),
        )
        assert await one.push(compress(ZSTD, data), ZSTD) == NONE
        shown = await one.shown()
        assert 'attributes="client_rack=r1,topic=t",client_id="t"' in shown
        assert 'metric="org.apache.kafka.rate"' in shown
        assert shown.endswith(" 2.5")


async def test_telemetry_is_advertised_while_there_is_a_subscription():
    async with pushing() as one:

        async def is_advertised() -> bool:
            answer = await one.client.ask(apis.API_VERSIONS, 3, {"client_software_name": "c"})
            keys = {int(api.api_key) for api in answer.api_keys}
            assert len(keys & apis.TELEMETRY) in {0, 2}
            return bool(keys & apis.TELEMETRY)

        assert not await is_advertised()
        await one.configure("s", metrics="a")
        assert await is_advertised()


async def test_only_the_clients_that_a_subscription_matches_push_for_it():
    async with pushing() as one:
        assert await one.configure("a", metrics="a.", match="client_id=other.*") == NONE
        assert await one.configure("b", metrics="b.", match="client_id=t") == NONE
        assert list((await one.subscribe()).requested_metrics) == ["b."]
        assert await one.configure("c", metrics="*", interval_ms="200") == NONE
        offer = await one.subscribe()
        assert (list(offer.requested_metrics), interval_ms(offer)) == (["*"], 200)


@pytest.mark.parametrize(
    "configs",
    [
        {"interval_ms": "99"},
        {"interval_ms": "3600001"},
        {"match": "client_id"},
        {"match": "client_name=x"},
        {"match": "client_id=("},
        {"what": "x"},
    ],
)
async def test_a_subscription_that_kafka_would_refuse_is_refused(configs):
    async with pushing() as one:
        assert await one.configure("s", **configs) == INVALID_CONFIG
        assert one.rig.node.services.telemetry.subscriptions.names() == []
        assert await one.configure("", metrics="a") == INVALID_REQUEST


async def test_a_client_that_asks_or_pushes_too_early_is_throttled():
    async with pushing() as one:
        await one.configure("s", metrics="*", interval_ms="1000")
        await one.subscribe()
        assert (await one.subscribe()).error_code == THROTTLING_QUOTA_EXCEEDED
        assert await one.push(b"") == NONE
        assert await one.push(b"") == THROTTLING_QUOTA_EXCEEDED
        one.rig.clock.ahead_ms += 1_000
        assert await one.push(b"") == NONE
        assert await one.push(b"", terminating=True) == NONE
        one.rig.clock.ahead_ms += 1_000
        assert await one.push(b"") == INVALID_REQUEST


async def test_a_stale_subscription_an_unknown_codec_and_what_is_too_large_or_broken_are_refused():
    async with pushing() as one:
        await one.configure("s", metrics="*", interval_ms="100")
        await one.subscribe()

        async def refused(code: int, metrics: bytes, **other: Any) -> None:
            one.rig.clock.ahead_ms += 100
            assert await one.push(metrics, **other) == code
            assert await one.shown() == ""

        await refused(UNKNOWN_SUBSCRIPTION_ID, b"", subscription_id=one.subscription + 1)
        await refused(UNSUPPORTED_COMPRESSION_TYPE, b"", compression_type=5)
        await refused(INVALID_REQUEST, b"", client_instance_id=NOBODY)
        await refused(TELEMETRY_TOO_LARGE, bytes(client_telemetry.BYTES_MAX + 1))
        bomb = zlib.compress(bytes(client_telemetry.BYTES_MAX + 1), wbits=31)
        await refused(TELEMETRY_TOO_LARGE, bomb, compression_type=GZIP)
        await refused(INVALID_RECORD, b"not gzip", compression_type=GZIP)
        await refused(INVALID_RECORD, b"\x0a\x7f")
        await refused(INVALID_RECORD, b"\xff" * 20)
        # after an unknown codec or a stale subscription the client may ask at once
        await refused(UNKNOWN_SUBSCRIPTION_ID, b"", subscription_id=one.subscription + 1)
        assert (await one.subscribe()).error_code == NONE


async def test_the_numbers_of_all_clients_together_are_bounded(monkeypatch):
    monkeypatch.setattr(client_telemetry, "LINES_KEPT_MAX", 20)
    monkeypatch.setattr(client_telemetry, "INSTANCES_MAX", 5)

    async with pushing() as one:
        await one.configure("s", metrics="*", interval_ms="100")
        for number in range(2, 12):
            await one.subscribe(UUID(int=number))
            assert await one.push(metrics_data(*[gauge(f"m{i}", 1.0) for i in range(6)])) == NONE
        assert len((await one.shown()).splitlines()) in range(6, 21)
        assert len(one.rig.node.services.telemetry._instances) <= 5
        one.rig.clock.ahead_ms += client_telemetry.KEPT_MS_MIN + 1
        assert await one.shown() == ""
        telemetry = one.rig.node.services.telemetry
        assert telemetry._lines.by_tenant == telemetry._held.by_user == telemetry._of_holder == {}


async def test_a_user_that_pushes_as_many_displaces_its_own_numbers_alone(monkeypatch):
    """By instances, and by lines, which a push of many or long names has."""
    monkeypatch.setattr(client_telemetry, "LINES_KEPT_MAX", 30)
    monkeypatch.setattr(client_telemetry, "INSTANCES_MAX", 9)
    async with pushing() as one:
        await one.configure("s", metrics="*", interval_ms="100")

        async def push(user: str, number: int, lines: int) -> int:
            one.client.connection.session.principal = Principal(user)
            await one.subscribe(UUID(int=number))
            numbers = [gauge(f"{user}.{at}", 1.0) for at in range(lines)]
            return await one.push(metrics_data(*numbers))

        assert await push("alice", 2, 1) == NONE
        for number in range(100, 150):
            assert await push("mallory", number, 1) == NONE
        assert "alice.0" in await one.shown()
        assert len(one.rig.node.services.telemetry._instances) <= 7
        for number in range(200, 220):
            assert await push("mallory", number, 9) == NONE
        kept = (await one.shown()).count("mallory.")
        assert await push("mallory", 220, 40) == THROTTLING_QUOTA_EXCEEDED
        assert (await one.shown()).count("mallory.") == kept > 0, "others of the user"
        assert await push("bob", 3, 3) == NONE
        shown = await one.shown()
        assert "alice.0" in shown
        assert "bob.2" in shown
        assert shown.count("mallory.") <= 20
        for number in range(300, 320):  # of any number of users
            await push(f"mallory-{number}", number, 1)
        assert len(one.rig.node.services.telemetry._instances) == 9


async def test_the_text_of_the_numbers_of_all_clients_together_is_bounded():
    """Every number of a push may have sixteen attributes of 400 characters."""
    long = [attribute(f"{number:0200}", "v" * 200) for number in range(16)]
    gauges = [gauge(f"{number:0200}", 1.0) for number in range(1_000)]
    data = metrics_data(*gauges, resource=message(*((1, one) for one in long)))
    async with pushing() as one:
        await one.configure("s", metrics="*", interval_ms="100")
        for number in range(2, 8):
            await one.subscribe(UUID(int=number))
            assert await one.push(data) == NONE
            shown = await one.shown()
            assert len(shown) < 10_000_000
        assert len(shown.splitlines()) == 1_000, "the latest numbers are kept"


def test_numbers_are_read_of_gauges_sums_and_histograms():
    total = message((1, message((6, 7))))
    spread = message((1, message((4, 3), (5, 1.5), (9, attribute("a", "b")))))
    data = metrics_data(
        message((1, "sum"), (7, total)), message((1, "time"), (9, spread)), gauge("g", -1.0)
    )
    found = [(point.name, point.value) for point in otlp_metrics.read_points(data)]
    assert found == [("sum", 7.0), ("time.count", 3.0), ("time.sum", 1.5), ("g", -1.0)]


def test_tiny_fields_without_end_are_refused_and_many_numbers_cut():
    with pytest.raises(RecordInvalid, match="fields"):
        otlp_metrics.read_points(b"\x10\x01" * (otlp_metrics.FIELDS_MAX + 1))
    many = metrics_data(*[gauge(f"m{i}", 1.0) for i in range(otlp_metrics.POINTS_MAX + 5)])
    assert len(otlp_metrics.read_points(many)) == otlp_metrics.POINTS_MAX


async def test_a_subscription_is_described_listed_and_deleted_with_its_last_setting():
    async with pushing() as one:
        await one.configure("s", metrics="a,b")
        resource = {"resource_type": CLIENT_METRICS, "resource_name": "s"}
        wanted = {"resources": [resource | {"configuration_keys": None}]}
        answer = await one.client.ask(apis.DESCRIBE_CONFIGS, 4, wanted)
        found = {item.name: (item.value, item.config_source) for item in answer.results[0].configs}
        assert found == {"metrics": ("a,b", 7), "interval.ms": ("300000", 5), "match": ("", 5)}
        listed = await one.client.ask(apis.LIST_CONFIG_RESOURCES, 0, {})
        assert [item.resource_name for item in listed.config_resources] == ["s"]
        deletion = {"configs": [{"name": "metrics", "config_operation": 1, "value": None}]}
        request = {"resources": [resource | deletion], "validate_only": False}
        await one.client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
        listed = await one.client.ask(apis.LIST_CONFIG_RESOURCES, 0, {})
        assert list(listed.config_resources) == []
