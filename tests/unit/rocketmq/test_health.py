"""Load balancers ask for the health of RocketMQ's service as they do of any gRPC service."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from tests.unit.rocketmq.rocketmq_rig import TestCall, on_rocketmq

from headrace.grpc.health import SERVICE, Serving
from headrace.rocketmq import face, wire
from headrace.rocketmq.face import RocketMqFace
from headrace.runtime.protobuf_wire import bytes_field, number_field
from headrace.runtime.slow_requests import SlowRequests


def full_disk(is_full):
    return SimpleNamespace(space=lambda: SimpleNamespace(is_full=is_full))


async def next_state(call):
    while not call.sent:
        call.arrived.clear()
        await asyncio.wait_for(call.arrived.wait(), 30)
    return call.sent.pop(0)


@pytest.mark.parametrize("service", ["", wire.SERVICE])
def test_a_broker_that_cannot_store_or_stops_is_not_serving(monkeypatch, service):
    @on_rocketmq
    async def run(rocket):
        monkeypatch.setattr(face, "HEALTH_S", 0.01)
        services = rocket.node.services
        one = RocketMqFace(services, rocket.node.tasks, [], SlowRequests())
        await one.listen("127.0.0.1", 0)
        one.serve_ready()
        watching = TestCall(f"/{SERVICE}/Watch", "")
        one._methods[watching.path].handler(watching, bytes_field(1, service.encode()))
        states = [await next_state(watching)]
        for is_full in (True, False):
            monkeypatch.setattr(services.topics, "disk", full_disk(is_full))
            states.append(await next_state(watching))
        await one.close()
        states.append(await next_state(watching))
        expected = (Serving.SERVING, Serving.NOT_SERVING) * 2
        assert states == [number_field(1, state) for state in expected]

    run()
