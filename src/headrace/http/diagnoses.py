"""What explains a group's lag, over HTTP: its last hour, the keys of a hot partition, and why the
consumers are slow.

Invariants: reads only; what is found is decided by `broker/services`. A diagnosis waits for the
time between two looks, and holds nothing meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.authorizer import ResourceType
from headrace.broker.services.group_diagnosis import SHARE, Look, Position, diagnose
from headrace.broker.services.group_lags import INTERVAL_MS, trend_of
from headrace.broker.services.hot_keys import RECORDS_MAX
from headrace.errors import HeadraceError
from headrace.http.operations import (
    GROUP,
    OFFSET,
    PARTITION,
    TOPIC,
    Call,
    Json,
    Operation,
    integer,
)
from headrace.http.partitions import failed_brokers
from headrace.http.records import as_text

if TYPE_CHECKING:
    from headrace.broker.services.hot_keys import HotKey
    from headrace.broker.services.services import Services
    from headrace.http.authorization import Rights

SPAN_MS: Final = 6_000
"""Longer than the interval at which Kafka's clients commit by default (5 s)."""
SPAN_MS_MAX: Final = 60_000
TOPICS_MAX: Final = 20
COUNTS: Final = ("delivered", "acknowledged", "released", "timed_out", "given_up")


class DiagnosisOperations:
    """The operations that explain a group's lag."""

    def __init__(self, services: Services) -> None:
        self._services = services
        span = integer(0, SPAN_MS_MAX, default=SPAN_MS, description="Between the two looks.")
        window = integer(1, RECORDS_MAX, default=RECORDS_MAX, description="How many records.")
        hot = {"topic": TOPIC, "partition": PARTITION, "records": window}
        self.operations = [
            Operation("GET", "/v1/groups/{group}/lag", "getGroupLag",
                      "Get the lag of a group over the last hour, and whether it grows.",
                      self._lag, {"group": GROUP}),
            Operation("GET", "/v1/topics/{topic}/hot-keys/{partition}", "listHotKeys",
                      "Count the keys of a partition's newest records, or of those from an offset.",
                      self._hot_keys, hot | {"offset": OFFSET}),
            Operation("GET", "/v1/groups/{group}/diagnosis", "diagnoseGroup",
                      "Say why a group's consumers are slow: sentences, evidence, next steps.",
                      self._diagnose, {"group": GROUP, "span_ms": span}),
        ]  # fmt: skip

    async def _lag(self, call: Call) -> Json:
        group_id = call.path["group"]
        points, failed = await self._services.lags.of(group_id)
        trend = trend_of(points)
        return {
            "group": group_id,
            "interval_ms": INTERVAL_MS,
            "points": [
                {
                    "at_ms": one.at_ms,
                    "lag_records": one.records,
                    "lag_ms": one.lag_ms,
                    "is_partial": one.is_partial,
                }
                for one in points
            ],
            "lag_is_partial": bool(failed) or any(one.is_partial for one in points),
            "trend": None if trend is None else trend._asdict(),
            **failed_brokers(failed),
        }

    async def _hot_keys(self, call: Call) -> Json:
        topic, number = self._services.topics.get(call.path["topic"]), call.path["partition"]
        asked = call.query.get("records", RECORDS_MAX), call.query.get("offset", -1)
        found = (await self._services.hot_keys.of(topic, number, *asked))._asdict()
        keys = [_hot_key(one) for one in found.pop("keys")]
        return {"topic": topic.name, "partition": number, **found, "keys": keys}

    async def _diagnose(self, call: Call) -> Json:
        group_id = call.path["group"]
        before = await self._look(group_id, call.rights)
        await asyncio.sleep(call.query.get("span_ms", SPAN_MS) / 1_000)
        now = await self._look(group_id, call.rights)
        return {
            "group": group_id,
            "span_ms": now.at_ms - before.at_ms,
            "lag": now.lag,
            "findings": [one._asdict() for one in diagnose(before, now)],
        }

    async def _look(self, group_id: str, rights: Rights) -> Look:
        """The group in the topics that the client may see. Raises GroupUnknown."""
        services = self._services
        found = await services.all_groups.describe(group_id)
        offsets = await services.all_groups.offsets(group_id)
        look = Look(
            services.appends.clock.now_ms(),
            found.state,
            found.group_type,
            [one.client_id for one in found.members],
            {
                (one.topic, one.partition): Position(one.offset, one.offset + one.lag)
                for one in offsets
                if one.offset >= 0
                and one.lag >= 0
                and rights.may(Right.DESCRIBE, ResourceType.TOPIC, one.topic)
            },
        )
        if found.group_type == SHARE:
            await self._look_at_queues(look, group_id)
        return look

    async def _look_at_queues(self, look: Look, group_id: str) -> None:
        services = self._services
        topics = sorted({topic for topic, _ in look.positions})[:TOPICS_MAX]
        counts = dict.fromkeys(COUNTS, 0)
        for group, topic, figures in services.shares.figures:
            if group == group_id and topic in topics:
                for name in COUNTS:
                    counts[name] += getattr(figures, name)
        look.counts = counts
        look.in_flight_max = services.queues.terms(group_id).config.unfinished_max
        for name in topics:
            positions = await services.queues.describe(services.topics.readable.get(name), group_id)
            for one in positions.values():
                if one is not None and not isinstance(one, HeadraceError):
                    look.in_flight = max(look.in_flight, one.in_flight)


def _hot_key(one: HotKey) -> Json:
    key, is_text = as_text(one.key)
    shown: Json = {"key": key} if is_text else {"key": key, "key_encoding": "base64"}
    return shown | {
        "key_bytes": one.key_bytes,
        "records": one.records,
        "size_bytes": one.size_bytes,
    }
