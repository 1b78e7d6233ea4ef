"""Metrics that clients push (KIP-714): who pushes, whether it may, and the latest numbers.

Invariants: what a client pushes is bounded in size, rate and number before it is decoded, and never
decides anything. The state of an instance is its last push; at most INSTANCES_MAX instances with
LINES_KEPT_MAX lines of numbers in all are kept, and none longer than three intervals after its last
request. Of both, users have shares: at its share a user loses its own longest silent instances. A
broker knows the clients that push to it, no others; it forgets them when it stops. Errors and their
order are Kafka's (`ClientMetricsManager`).
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from headrace.broker.security.tenant_shares import (
    NO_HOLDER,
    PLACES_PARTS,
    Held,
    Holder,
    TenantShares,
)
from headrace.broker.services.client_metrics import ClientMetrics
from headrace.broker.services.otlp_metrics import read_points
from headrace.errors import (
    BatchCorrupt,
    BatchExpandsTooFar,
    CodecUnsupported,
    HeadraceError,
    QuotaExceeded,
    RecordInvalid,
    RequestInvalid,
    SubscriptionUnknown,
    TelemetryTooLarge,
)
from headrace.records.compression import CODEC_NAMES, GZIP, LZ4, SNAPPY, ZSTD, decompress
from headrace.records.identifiers import kafka_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.broker.services.client_metrics import Subscription
    from headrace.broker.services.otlp_metrics import Point
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness

ACCEPTED_CODECS: Final = (ZSTD, LZ4, GZIP, SNAPPY)
"""In Kafka's order; clients take the first that they have."""
BYTES_MAX: Final = 1024 * 1024
"""Of one push, compressed or not: Kafka's default of telemetry.max.bytes."""
INSTANCES_MAX: Final = 16_384
"""As in Kafka. One that is forgotten may push all the same; its last numbers are missing."""
LINES_KEPT_MAX: Final = 20_000
"""About 10 MB, and as many lines of /metrics: a number with long names counts as several."""
LINE_LENGTH: Final = 500
"""Characters of a line; with all names and attributes that it may have, a number takes 7,000."""
KEPT_MS_MIN: Final = 60_000
_NEVER_MS: Final = -(10**12)
NO_INSTANCE: Final = UUID(int=0)
RESERVED: Final = frozenset({UUID(int=0), UUID(int=1)})


class Client(NamedTuple):
    """A client as its connection and requests describe it: for display and for matching."""

    client_id: str
    software_name: str
    software_version: str
    address: str
    port: int
    holder: Holder = NO_HOLDER
    """For whom its instances count."""

    def properties(self, instance: UUID) -> Mapping[str, str]:
        """What subscriptions match."""
        return {
            "client_instance_id": kafka_uuid(instance),
            "client_id": self.client_id,
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
            "client_source_address": self.address,
            "client_source_port": str(self.port),
        }


class Push(NamedTuple):
    """A request to store metrics."""

    instance: UUID
    subscription_id: int
    codec: int
    metrics: bytes
    is_terminating: bool


class Offer(NamedTuple):
    """What a client is to push."""

    instance: UUID
    subscription_id: int
    subscription: Subscription


class _Instance:
    """One instance of a client."""

    __slots__ = (
        "client",
        "is_terminating",
        "last_error",
        "last_get_ms",
        "last_push_ms",
        "lines",
        "points",
        "subscription",
        "subscription_id",
        "version",
    )

    def __init__(self, client: Client) -> None:
        self.client = client
        self.version = -1
        self.subscription: Subscription
        self.subscription_id = 0
        self.last_get_ms = self.last_push_ms = _NEVER_MS
        self.last_error: type[HeadraceError] | None = None
        self.is_terminating = False
        self.points: list[Point] = []
        self.lines = 0
        """What its numbers count."""

    def is_too_early_to_ask(self, now_ms: int) -> bool:
        """Whether the client asks again within its interval, without a reason."""
        last_ms = max(self.last_get_ms, self.last_push_ms)
        if now_ms - last_ms >= self.subscription.interval_ms:
            self.last_get_ms = now_ms
            return False
        return self.last_error not in {SubscriptionUnknown, CodecUnsupported}

    def is_too_early_to_push(self, now_ms: int) -> bool:
        """Whether the client pushes again within its interval; the first push after a subscription
        may come earlier, as clients spread it."""
        if (
            self.last_get_ms <= self.last_push_ms
            and now_ms - self.last_push_ms < self.subscription.interval_ms
        ):
            return True
        self.last_push_ms = now_ms
        return False


class ClientTelemetry:
    """See the module."""

    def __init__(self, metadata: MetadataStore, clock: Clock, randomness: Randomness) -> None:
        self.subscriptions = ClientMetrics(metadata)
        self._clock = clock
        self._randomness = randomness
        self._instances: dict[UUID, _Instance] = {}
        """By the time of their last request."""
        self._of_holder: dict[Holder, dict[UUID, None]] = {}
        """The same, of each."""
        share = "this broker", PLACES_PARTS
        self._instance_shares = TenantShares("client instances", INSTANCES_MAX, *share)
        self._line_shares = TenantShares("lines of pushed metrics", LINES_KEPT_MAX, *share)
        self._held, self._lines = Held(), Held()
        """How many instances and lines there are."""
        self.pushes_total = 0
        self.refused_total = 0

    def subscribe(self, instance_id: UUID | None, client: Client) -> Offer:
        """What a client is to push; an instance without an id gets one.

        Raises QuotaExceeded if it asks again before its interval is over.
        """
        if instance_id is None or instance_id == NO_INSTANCE:
            instance_id = self._randomness.uuid()
        instance = self._instance(instance_id, client)
        if instance.is_too_early_to_ask(self._now_ms()):
            self.refused_total += 1
            raise _too_early(instance)
        instance.last_error = None
        return Offer(instance_id, instance.subscription_id, instance.subscription)

    async def push(self, push: Push, client: Client) -> None:
        """Store a client's metrics in place of its former ones.

        Raises RequestInvalid, QuotaExceeded, SubscriptionUnknown, CodecUnsupported,
        TelemetryTooLarge, RecordInvalid.
        """
        if push.instance in RESERVED:
            raise RequestInvalid("the request has no client instance id: get a subscription first")
        instance = self._instance(push.instance, client)
        try:
            self._check(instance, push)
            if push.metrics and instance.subscription.metrics:
                # In a thread: a small push may decompress to much.
                points = await asyncio.to_thread(_points, push)
                if self._instances.get(push.instance) is instance:  # not forgotten meanwhile
                    self._keep(instance, points)
        except HeadraceError as error:
            instance.last_error = type(error)
            self.refused_total += 1
            raise
        finally:
            instance.is_terminating = push.is_terminating
        instance.last_error = None
        self.pushes_total += 1

    def _check(self, instance: _Instance, push: Push) -> None:
        if instance.is_terminating:
            raise RequestInvalid(
                "the client has said that its former push was its last: it must not push again"
            )
        if instance.is_too_early_to_push(self._now_ms()) and not push.is_terminating:
            raise _too_early(instance)
        if push.subscription_id != instance.subscription_id:
            raise SubscriptionUnknown("the subscription has changed: get it again")
        if not 0 <= push.codec < len(CODEC_NAMES):
            raise CodecUnsupported(f"unknown compression codec {push.codec}", codec=push.codec)
        if len(push.metrics) > BYTES_MAX:
            raise _too_large()

    def series(self) -> Iterator[tuple[str, Client, list[Point]]]:
        """(instance id, client, numbers) of all instances that have pushed."""
        self._drop_silent()
        for instance_id, instance in self._instances.items():
            if instance.points:
                yield kafka_uuid(instance_id), instance.client, instance.points

    def _now_ms(self) -> int:
        return self._clock.now_ns() // 1_000_000

    def _instance(self, instance_id: UUID, client: Client) -> _Instance:
        """The instance, now the latest, with its present subscription."""
        instance = self._instances.get(instance_id)
        if instance is not None and instance.version != self.subscriptions.version:
            # A new one, so that a changed subscription is told at once, as by Kafka.
            self._drop(instance_id)
            instance = None
        if instance is None:
            instance = _Instance(client)
            instance.version = self.subscriptions.version
            instance.subscription = self.subscriptions.of_client(client.properties(instance_id))
            instance.subscription_id = _subscription_id(instance_id, instance.subscription)
            self._make_room(self._instance_shares, self._held, client.holder)
            if len(self._instances) >= INSTANCES_MAX:  # of a user that has no other
                self._drop(next(iter(self._instances)))
            self._held.add(client.holder)
        holder = instance.client.holder
        for known in (self._instances, self._of_holder.setdefault(holder, {})):
            known.pop(instance_id, None)
        self._instances[instance_id] = instance
        self._of_holder[holder][instance_id] = None
        return instance

    def _make_room(
        self,
        shares: TenantShares,
        held: Held,
        holder: Holder,
        amount: int = 1,
        kept: _Instance | None = None,
    ) -> str:
        """Drop the longest silent instances of a user but `kept`, until it may have so much more.
        Returns why it may not, in words; "": it may."""
        excess = shares.excess_of(holder, held, amount)
        for instance_id in [*self._of_holder.get(holder, ())] if excess else ():
            if self._instances[instance_id] is not kept:
                self._drop(instance_id)
                if not (excess := shares.excess_of(holder, held, amount)):
                    break
        return excess

    def _drop_silent(self) -> None:
        now_ms = self._now_ms()
        for instance_id, one in list(self._instances.items()):
            kept_ms = max(KEPT_MS_MIN, 3 * one.subscription.interval_ms)
            if now_ms - max(one.last_get_ms, one.last_push_ms) > kept_ms:
                self._drop(instance_id)

    def _drop(self, instance_id: UUID) -> None:
        instance = self._instances.pop(instance_id)
        holder = instance.client.holder
        del self._of_holder[holder][instance_id]
        if not self._of_holder[holder]:
            del self._of_holder[holder]
        self._held.add(holder, -1)
        self._lines.add(holder, -instance.lines)

    def _keep(self, instance: _Instance, points: list[Point]) -> None:
        """Keep an instance's numbers in place of its former ones. Raises QuotaExceeded."""
        holder, lines = instance.client.holder, _lines(instance.client, points)
        self._lines.add(holder, -instance.lines)
        instance.points, instance.lines = [], 0
        if self._line_shares.excess_of(holder, self._lines, lines):
            others = sum(self._instances[one].lines for one in self._of_holder[holder])
            self._lines.add(holder, -others)
            excess = self._line_shares.excess_of(holder, self._lines, lines)
            self._lines.add(holder, others)
            if excess:  # also without all its others: these are kept
                raise QuotaExceeded(f"{excess}: subscribe to fewer", throttle_ms=0)
            self._make_room(self._line_shares, self._lines, holder, lines, instance)
        self._lines.add(holder, lines)
        instance.points, instance.lines = points, lines


def _points(push: Push) -> list[Point]:
    """Raises TelemetryTooLarge, RecordInvalid."""
    try:
        return read_points(decompress(push.codec, push.metrics, BYTES_MAX))
    except BatchExpandsTooFar:
        raise _too_large() from None
    except BatchCorrupt as error:
        raise RecordInvalid(str(error)) from error


def _lines(client: Client, points: list[Point]) -> int:
    """What numbers count: see LINE_LENGTH."""
    shared = len(client.client_id) + len(client.software_name) + len(client.software_version)
    found = len(points)
    for one in points:
        length = shared + len(one.name) + sum(len(key) + len(text) for key, text in one.attributes)
        found += length // LINE_LENGTH
    return found


def _subscription_id(instance: UUID, subscription: Subscription) -> int:
    """Differs between subscriptions, and says nothing about them: a 32-bit number."""
    text = f"{subscription.metrics}{subscription.interval_ms}{instance.hex}"
    return zlib.crc32(text.encode()) - (1 << 31)


def _too_early(instance: _Instance) -> QuotaExceeded:
    return QuotaExceeded(
        f"the client may push metrics every {instance.subscription.interval_ms} ms: wait",
        throttle_ms=0,
    )


def _too_large() -> TelemetryTooLarge:
    return TelemetryTooLarge(
        f"the metrics of a push exceed {BYTES_MAX} bytes: subscribe to fewer", limit=BYTES_MAX
    )
