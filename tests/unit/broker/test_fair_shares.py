"""What a tenant may have of requests in progress, on connections that end, fail and wait."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.kit.broker import BrokerHarness, broker
from tests.kit.records import batch
from tests.unit.kafka.test_connection import Echo, Transport
from tests.unit.kafka.test_sasl import SaslClient, set_password
from tests.unit.kafka.test_tenants import made_topics
from tests.unit.log.log_rig import HeldStore

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.authentication import Authentication
from headrace.broker.security.plain import PLAIN
from headrace.broker.security.principal import ANONYMOUS, USER, Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.services.fair_shares import (
    ALONE,
    ALONE_S,
    REQUEST_BYTES,
    STALLED_S,
    Charge,
    FairShares,
    TenantShare,
    path_of,
)
from headrace.kafka import apis
from headrace.kafka.connection import KafkaConnection
from headrace.kafka.dispatch import KafkaFace
from headrace.kafka.wire.primitives import FrameInvalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SHARE = 100_000


class Waiting:
    """Accepts the request that had to wait."""

    def __init__(self) -> None:
        self.charges: list[Charge] = []

    def accepted(self, charge: Charge) -> None:
        self.charges.append(charge)


def share_of(size: int = SHARE, shares: FairShares | None = None) -> TenantShare:
    """The share of a tenant beside another."""
    loop = asyncio.get_running_loop()
    if shares is None:
        shares = FairShares(None, BrokerConfig(tenant_request_bytes_max=size))
        shares.note(TenantShare(shares, loop), loop.time())
    return TenantShare(shares, loop)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_request_waits_until_there_is_room_for_it_and_others_wait_after_it() -> None:
    share, large, small = share_of(), Waiting(), Waiting()
    first, second = share.take(Waiting(), 60_000), share.take(Waiting(), 20_000)
    assert first is not None
    assert second is not None
    assert share.take(large, 60_000) is None
    assert share.take(small, 1) is None, "it would fit, and others wait"
    second.release()
    second.release()  # has no effect
    await turns()
    assert not large.charges
    first.release()
    await turns()
    assert share.held_bytes == 60_001 + 2 * REQUEST_BYTES
    for waiter in (large, small):
        waiter.charges[0].release()
    assert share.held_bytes == share.waiting_count == 0


async def test_a_request_larger_than_the_share_is_handled_alone() -> None:
    share, large = share_of(), Waiting()
    first = share.take(Waiting(), 1)
    assert first is not None
    assert share.take(large, 10 * SHARE) is None
    first.release()
    await turns()
    assert len(large.charges) == 1


async def test_what_does_not_write_holds_its_share_for_a_turn_of_the_loop() -> None:
    share, waiter = share_of(3 * REQUEST_BYTES), Waiting()
    for _ in range(3):
        charge = share.take(Waiting(), 0)
        assert charge is not None
        charge.pass_turn()
    assert share.take(waiter, 0) is None
    await turns()
    assert share.held_bytes == REQUEST_BYTES
    assert len(waiter.charges) == 1


async def test_what_is_refused_at_once_counts_until_the_end_of_the_turn() -> None:
    share, waiter = share_of(3 * REQUEST_BYTES), Waiting()
    for _ in range(3):
        charge = share.take(Waiting(), 0)
        assert charge is not None
        charge.release()
        charge.release()  # has no effect
    assert share.held_bytes == 3 * REQUEST_BYTES
    assert share.take(waiter, 0) is None
    await turns()
    (later,) = waiter.charges
    assert share.held_bytes == REQUEST_BYTES
    later.release()
    assert share.held_bytes == 0, "it was accepted in a turn before"


async def test_those_that_waited_and_are_refused_at_once_do_not_follow_in_one_turn() -> None:
    share, accepted = share_of(3 * REQUEST_BYTES), 0

    class Refusing:
        def accepted(self, charge: Charge) -> None:
            nonlocal accepted
            accepted += 1
            charge.release()

    first = share.take(Waiting(), SHARE)
    assert first is not None
    assert not any(share.take(Refusing(), 0) for _ in range(9))
    first.release()
    most = 0
    async with asyncio.timeout(60):
        while share.waiting_count:
            before = accepted
            await asyncio.sleep(0)
            most = max(most, accepted - before)
    assert (accepted, most) == (9, 3)


async def test_writes_whose_storage_does_not_answer_stop_nothing_else_for_long() -> None:
    share, waiter = share_of(), Waiting()
    stalled = share.take(Waiting(), SHARE)
    assert stalled is not None
    assert share.take(waiter, 1) is None
    async with asyncio.timeout(60):
        while not waiter.charges:
            await asyncio.sleep(STALLED_S / 10)
    assert share.held_bytes == 1 + REQUEST_BYTES
    stalled.release()
    assert share.held_bytes == 1 + REQUEST_BYTES


async def test_a_tenant_alone_has_several_shares_until_another_sends_something() -> None:
    shares = FairShares(None, BrokerConfig(tenant_request_bytes_max=SHARE))
    share, other = (share_of(shares=shares) for _ in range(2))
    size = SHARE - REQUEST_BYTES
    charges = [share.take(Waiting(), size) for _ in range(ALONE)]
    assert share.take(first := Waiting(), 1) is None
    charges.append(other.take(Waiting(), 1))
    for charge in charges[2:]:
        assert charge is not None
        charge.release()
    await turns()
    assert not first.charges, "two shares are held, and it has one now"
    for charge in charges[:2]:
        assert charge is not None
        charge.release()
    await turns()
    assert len(first.charges) == 1
    now_s = asyncio.get_running_loop().time()
    assert shares.bytes_max(now_s) == SHARE
    assert shares.bytes_max(now_s + 2 * ALONE_S) == ALONE * SHARE


class Store(Echo):
    """Stores what it is sent when it is told to, and fails now and then."""

    request_bytes_max = 1_000_000

    def __init__(self, rng: random.Random, share: TenantShare) -> None:
        super().__init__()
        self.rng = rng
        self.share = share
        self.stored: list[Callable[[], None]] = []

    def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
        assert self.share.held_bytes <= max(SHARE, len(frame) + REQUEST_BYTES)
        self.frames.append(bytes(frame))
        match self.rng.randrange(20):
            case 0:
                raise FrameInvalid("malformed")
            case 1:
                connection.expect()
                raise RuntimeError("a fault after its place was reserved")
            case 2 | 3 | 4:
                assert connection.line is not None
                connection.line.pass_turn()
                reply = connection.expect()
                self.stored.append(lambda: reply.send([b"read" * 9], 36))
            case 5 | 6:  # no answer is wanted
                assert connection.line is not None
                charge = connection.line.keep()
                assert charge is not None
                self.stored.append(charge.release)
            case 7:
                pass
            case 8:
                connection.hold_input()
                self.stored.append(connection.release_input)
            case _:
                reply = connection.expect()
                self.stored.append(lambda: reply.send([b"done" * 2]))


async def _run(seed: int) -> None:
    rng, loop, share = random.Random(seed), asyncio.get_running_loop(), share_of()
    store = Store(rng, share)
    clients: list[Any] = []
    for number in range(12):
        frames = [rng.randbytes(rng.choice([8, 900, 30_000, 150_000])) for _ in range(6)]
        stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        connection, transport = KafkaConnection(store, loop), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.set_share(share)
        clients.append([connection, transport, stream, number, frames])
    alive = list(clients)
    while store.stored or share.waiting_count or any(one[2] for one in alive):
        for client in rng.sample(alive, len(alive)):
            connection, transport, stream = client[:3]
            if transport.is_closed or rng.randrange(100) == 0:
                connection.connection_lost(None)
                alive.remove(client)
            elif not transport.pauses:
                size = rng.choice([1, 4, 5_000, 40_000, 200_000])
                connection.data_received(stream[:size])
                client[2] = stream[size:]
        rng.shuffle(store.stored)
        done, store.stored = store.stored[:3], store.stored[3:]
        for one in done:
            one()
        await asyncio.sleep(0)
    await turns(10)
    assert share.held_bytes == share.waiting_count == 0
    for _, transport, _, _, frames in alive:
        if not transport.is_closed:
            assert all(frame in store.frames for frame in frames), "nothing waits for ever"
            assert not transport.pauses


def test_no_connection_that_ends_or_fails_leaves_anything_in_its_share() -> None:
    for seed in range(60):
        asyncio.run(_run(seed))


async def test_connections_of_a_tenant_take_turns() -> None:
    class Held(Echo):
        request_bytes_max = 1_000_000

    loop, share, store = asyncio.get_running_loop(), share_of(), Held()
    frame = bytes(60_000)
    for number in range(3):
        connection = KafkaConnection(store, loop)
        connection.connection_made(Transport())  # type: ignore[arg-type]
        connection.set_share(share)
        frames = [bytes([number]) + frame] * 3
        connection.data_received(b"".join(len(one).to_bytes(4, "big") + one for one in frames))
    order: list[int] = []
    while store.replies:
        ((reply, handled),) = store.replies
        store.replies.clear()
        order.append(handled[0])
        reply.send([b"done"])
        await turns()
    assert order == [0, 0, 1, 2, 0, 1, 2, 1, 2], "the first waited with its second one before all"


async def test_large_requests_that_wait_leave_memory_to_other_tenants() -> None:
    loop, store, size = asyncio.get_running_loop(), Echo(), 1 << 20
    store.request_bytes_max = 2 * size
    greedy, quiet = share_of(), share_of()
    held = greedy.take(Waiting(), SHARE)

    def sent(share: TenantShare, size: int) -> None:
        connection = KafkaConnection(store, loop)
        connection.connection_made(Transport())  # type: ignore[arg-type]
        connection.set_share(share)
        connection.data_received(size.to_bytes(4, "big") + bytes(size))

    for _ in range(40):
        sent(greedy, size)
    assert 0 < store.requests.held_bytes < 16 * size
    assert not store.frames
    sent(quiet, 100_000)
    assert [len(frame) for frame in store.frames] == [100_000]
    store.replies.pop()[0].send([b"done"])
    assert held is not None
    held.release()
    async with asyncio.timeout(60):
        for _ in range(40):
            while not store.replies:
                await asyncio.sleep(0)
            store.replies.pop()[0].send([b"done"])
    await turns(10)
    assert greedy.held_bytes == quiet.held_bytes == store.requests.held_bytes == 0


async def test_a_connection_of_another_tenant_waits_for_that_ones_share() -> None:
    loop, store = asyncio.get_running_loop(), Echo()
    full, free = share_of(), share_of()
    held = full.take(Waiting(), SHARE)
    connection = KafkaConnection(store, loop)
    connection.connection_made(Transport())  # type: ignore[arg-type]
    connection.set_share(full)
    connection.data_received((8).to_bytes(4, "big") + b"12345678")
    assert not store.frames
    connection.set_share(free)
    await turns()
    assert store.frames == [b"12345678"]
    assert held is not None
    held.release()
    assert full.held_bytes == full.waiting_count == 0
    assert free.held_bytes == 8 + REQUEST_BYTES


@asynccontextmanager
async def two_tenants(store: HeldStore) -> AsyncIterator[tuple[BrokerHarness, Any]]:
    """A broker, and how a tenant's client logs in; each tenant has a topic."""
    async with broker(BrokerConfig(authorizer="acl", super_users="User:root"), store) as rig:
        services = rig.node.services
        assert services.access is not None
        await services.authentication.logins.secret.load()
        logins = services.authentication.logins
        services.authentication = Authentication(logins, {"SASL": [PLAIN]}, is_required=True)
        await rig.face.close()
        rig.face = KafkaFace(rig.node)

        async def client(name: str) -> SaslClient:
            made = SaslClient(rig.face)
            assert int((await made.log_in(PLAIN, name, name)).error_code) == 0
            return made

        for name in ("greedy", "quiet"):
            await set_password(rig, name, name)
            await services.access.tenants.create(name, [f"User:{name}"])
            created = await (await client(name)).ask(apis.CREATE_TOPICS, 5, made_topics("t"))
            assert [one.error_code for one in created.topics] == [0]
        yield rig, client


def share_in(client: SaslClient) -> TenantShare:
    line = client.connection.line
    assert line is not None
    assert line.share is not None
    return line.share


def write(size: int, acks: int = -1) -> dict[str, Any]:
    part = {"index": 0, "records": batch(bytes(size))}
    data = [{"name": "t", "partition_data": [part]}]
    return {"transactional_id": None, "acks": acks, "timeout_ms": 60_000, "topic_data": data}


async def test_a_quiet_tenant_is_served_while_most_of_a_greedy_ones_requests_wait() -> None:
    """Its write reaches the disk although the greedy tenant has sent more than it ever gets."""
    store = HeldStore()
    async with two_tenants(store) as (rig, client):
        greedy, quiet = [await client("greedy") for _ in range(20)], await client("quiet")
        shares = [share_in(one) for one in (*greedy, quiet)]
        assert len({id(one) for one in shares}) == 2
        share = share_in(greedy[0])
        await quiet.ask(apis.PRODUCE, 9, write(10))
        store.is_held = True
        for _ in range(5):
            for one in greedy:
                one.send(apis.PRODUCE, 9, write(50_000))
        await turns()
        assert SHARE < share.held_bytes <= rig.node.config.tenant_request_bytes_max
        assert share.waiting_count == 20
        assert all(one.transport.is_paused for one in greedy)
        held = share.held_bytes // 50_000
        quiet.send(apis.PRODUCE, 9, write(10))
        await turns()
        store.complete_all()
        while len(quiet.answers()) < len(quiet.asked):
            await asyncio.sleep(0)
        assert sum(len(one.answers()) - 2 for one in greedy) <= 3 * held, "of 100"
        for one in greedy:
            while len(one.answers()) < len(one.asked):
                await asyncio.sleep(0)
            assert {part.partition_responses[0].error_code for part in stored_by(one)} == {0}
        await turns()
        assert share.held_bytes == share.waiting_count == 0
        assert not any(one.transport.is_paused for one in greedy)


async def test_writes_that_are_refused_at_once_take_their_share_of_a_turn() -> None:
    async with two_tenants(HeldStore()) as (rig, client):
        greedy, quiet = [await client("greedy") for _ in range(3)], await client("quiet")
        await quiet.ask(apis.PRODUCE, 9, write(10))
        share, count = share_in(greedy[0]), rig.face.request_counts
        await turns()
        before = count[apis.PRODUCE]
        unknown = write(10)
        unknown["topic_data"][0]["name"] = "unknown"
        for _ in range(80):
            for one in greedy:
                one.send(apis.PRODUCE, 9, unknown)
        in_turn = count[apis.PRODUCE] - before
        assert 0 < in_turn <= rig.node.config.tenant_request_bytes_max // REQUEST_BYTES
        assert share.waiting_count == 3
        for one in greedy:
            while len(one.answers()) < len(one.asked):
                await asyncio.sleep(0)
        await turns()
        assert share.held_bytes == share.waiting_count == 0


async def test_committed_offsets_count_until_they_are_stored() -> None:
    store = HeldStore()
    async with two_tenants(store) as (_rig, client):
        first, lost = await client("greedy"), await client("greedy")
        share = share_in(first)
        parts = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]
        commit = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "t", "partitions": parts}],
        }
        while (await first.ask(apis.OFFSET_COMMIT, 7, commit)).topics[0].partitions[0].error_code:
            await turns()  # the coordinator loads
        store.is_held = True
        for one in (first, lost):
            one.send(apis.OFFSET_COMMIT, 7, commit)
        await turns(10)
        assert 2 * REQUEST_BYTES < share.held_bytes < 3 * REQUEST_BYTES
        lost.transport.abort()
        await turns(10)
        assert share.held_bytes > 2 * REQUEST_BYTES
        store.is_held = False
        store.complete_all()
        while len(first.answers()) < len(first.asked):
            await asyncio.sleep(0)
        await turns(10)
        assert share.held_bytes == share.waiting_count == 0


def stored_by(client: SaslClient) -> list[Any]:
    return [part for one in client.answers()[2:] for part in one.responses]


async def test_what_a_client_does_not_wait_for_counts_until_it_is_stored() -> None:
    """Writes with acks=0, and those of a client that has disconnected. Fetches that wait and
    requests between do not count."""
    store = HeldStore()
    async with two_tenants(store) as (_rig, client):
        first, second, third = [await client("greedy") for _ in range(3)]
        share = share_in(first)
        store.is_held = True
        first.send(apis.PRODUCE, 9, write(1_000, acks=0))
        second.send(apis.PRODUCE, 9, write(2_000))
        wanted = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 9}]}]
        wait = {"replica_id": -1, "max_wait_ms": 60_000, "min_bytes": 1 << 20, "topics": wanted}
        third.send(apis.FETCH, 4, wait)
        await turns()
        assert 3_000 + 2 * REQUEST_BYTES < share.held_bytes < 3_000 + 3 * REQUEST_BYTES
        second.transport.abort()
        await turns()
        assert share.held_bytes > 3_000
        store.complete_all()
        await turns(10)
        assert share.held_bytes == 0


def test_addresses_of_one_network_have_their_turns_together() -> None:
    def path(host: str, principal: Principal | None = ANONYMOUS) -> object:
        return path_of(ClientSession("", host, principal), None)

    assert path("2001:db8::1") == path("2001:db8::2:3") != path("2001:db8:0:1::1")
    assert path("192.0.2.1") == path("::ffff:192.0.2.1") != path("192.0.2.2")
    known = Principal(USER, "ann")
    assert path("2001:db8::1", known) == path("192.0.2.1", known)
