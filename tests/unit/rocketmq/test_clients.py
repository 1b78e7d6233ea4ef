"""The clients that a broker knows: how many, and whose."""

from __future__ import annotations

from tests.unit.rocketmq.rocketmq_rig import Rocket, on_rocketmq

from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.rocketmq import clients, wire
from headrace.rocketmq.codes import OK, TOO_MANY_REQUESTS

LIMIT = 30


async def heartbeat(rocket, user, number):
    """The code that a client of a user gets, by a connection of its own."""
    rocket.session = ClientSession("ROCKETMQ", "127.0.0.1", Principal(user))
    name = f"{user}-{number}"
    return await rocket.code("Heartbeat", name, client_type=wire.SIMPLE_CONSUMER)


async def begin(rocket, user, count):
    return [await heartbeat(rocket, user, number) for number in range(count)]


@on_rocketmq
async def test_a_user_with_many_clients_leaves_room_for_those_of_others(rocket):
    most, clients.CLIENTS_MAX = clients.CLIENTS_MAX, LIMIT
    try:
        rocket = Rocket(rocket.rig)
    finally:
        clients.CLIENTS_MAX = most
    taken = 2 * LIMIT // 3
    assert await begin(rocket, "flooding", LIMIT) == [OK] * taken + [TOO_MANY_REQUESTS] * (
        LIMIT - taken
    )
    assert await begin(rocket, "other", 5) == [OK] * 5
    assert await begin(rocket, "flooding", taken) == [OK] * taken, "those that it has"
    rocket.session = ClientSession("ROCKETMQ", "127.0.0.1", Principal("flooding"))
    for number in range(10):
        assert await rocket.code("NotifyClientTermination", f"flooding-{number}") == OK
    assert await heartbeat(rocket, "flooding", "next") == OK
