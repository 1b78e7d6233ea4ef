"""Calls take turns with the requests of every protocol, whatever they ask for."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

from tests.kit.turns import TurnCount
from tests.unit.rocketmq.rocketmq_rig import TestConnection, on_rocketmq

from headrace.rocketmq import codes, messaging, wire
from headrace.runtime.loop_turns import TURN_NS, LoopTurns

UNARY = [rpc for rpc in wire.RPCS if rpc != wire.TELEMETRY]


class Clock:
    """Time passes when the test says so."""

    now_ms = 0
    passed_ns = 0

    def now_ns(self) -> int:
        return self.passed_ns


def heavy(rocket):
    """Have each call take a turn from when it is decoded; returns how many began in which."""
    turns, clock, begun = LoopTurns(), Clock(), Counter()
    count = TurnCount(turns)
    services = rocket.node.services
    rocket.messaging._turns._services = SimpleNamespace(
        turns=turns, fair_shares=services.fair_shares, appends=SimpleNamespace(clock=clock)
    )
    accepted = rocket.messaging._accepted

    def accept(rpc, *rest):
        begun[count.number] += 1
        clock.passed_ns += TURN_NS + 1
        return accepted(rpc, *rest)

    rocket.messaging._accepted = accept
    return begun


def request_of(rpc):
    """One that is handled in a task."""
    request = wire.request_of(rpc)()
    if rpc == "SendMessage":
        for _ in range(messaging.STARTED_FIELDS_MAX + 1):
            request.messages.add(topic={"name": "jobs"}, body=bytes(100))
    elif rpc == "AckMessage":
        for _ in range(messaging.STARTED_FIELDS_MAX + 1):
            request.entries.add(receipt_handle="r" * 100)
    return request


@on_rocketmq
async def test_calls_of_every_kind_that_take_long_begin_one_by_one(rocket):
    begun = heavy(rocket)
    calls = [rocket.begin(rpc, request_of(rpc)) for rpc in UNARY for _ in range(4)]
    for call in calls:
        await asyncio.wait_for(call.over.wait(), 30)
    assert sum(begun.values()) == len(calls)
    assert max(begun.values()) == 1


@on_rocketmq
async def test_another_client_waits_for_one_call_and_not_for_all(rocket):
    begun = heavy(rocket)
    await rocket.create("jobs")
    calls = []
    for _ in range(50):
        rocket.connection = TestConnection()
        calls.append(rocket.begin("QueryRoute", request_of("QueryRoute")))
    rocket.connection = TestConnection()
    request = wire.request_of("QueryRoute")(topic={"name": "jobs"})
    other = rocket.begin("QueryRoute", request, peer="10.0.0.2")
    await asyncio.wait_for(other.over.wait(), 30)
    assert sum(begun.values()) <= 6  # its own, and one before each of its steps
    for call in calls:
        await asyncio.wait_for(call.over.wait(), 30)


@on_rocketmq
async def test_a_call_that_ended_while_it_waited_is_not_handled(rocket):
    begun = heavy(rocket)
    calls = [rocket.begin("QueryRoute", request_of("QueryRoute")) for _ in range(5)]
    calls[3].cancel()
    for call in calls:
        await asyncio.wait_for(call.over.wait(), 30)
    await asyncio.sleep(0)
    assert sum(begun.values()) == 4
    assert rocket.messaging.in_progress.bytes == 0


def waiting_stream(rocket):
    """The memory of calls, and a stream of settings that wait for the next turn of the loop."""
    call = rocket.stream_call(wire.TELEMETRY, None, {})
    stream = rocket.messaging.methods[call.path].handler(call)
    rocket.node.services.turns.spent(TURN_NS + 1)
    return rocket.messaging.in_progress, call, stream


@on_rocketmq
async def test_settings_wait_encoded_and_count_until_they_are_answered(rocket):
    in_progress, call, stream = waiting_stream(rocket)
    sizes = []
    for number in (1_000, 2_000):
        command = wire.TelemetryCommand()
        for _ in range(number):
            command.settings.publishing.topics.add()
        body = command.SerializeToString()
        stream.message(body)
        sizes.append((in_progress.bytes, len(body)))
    assert [held for held, _size in sizes] == [size for _held, size in sizes], "the last ones alone"
    assert not call.sent
    await asyncio.wait_for(call.arrived.wait(), 30)
    (answer,) = map(wire.TelemetryCommand.FromString, call.sent)
    assert answer.status.code == codes.OK
    assert len(answer.settings.publishing.topics) == 2_000
    await asyncio.sleep(0)
    assert in_progress.bytes == 0


@on_rocketmq
async def test_settings_of_a_stream_that_the_broker_ends_no_longer_count(rocket):
    in_progress, call, stream = waiting_stream(rocket)
    command = wire.TelemetryCommand()
    command.settings.publishing.topics.add()
    stream.message(command.SerializeToString())
    assert in_progress.bytes
    stream.message(b"\xff")
    assert call.is_finished
    assert in_progress.bytes == 0
