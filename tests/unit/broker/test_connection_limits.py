"""Connection limits by address, listener, user and rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.connection_limits import (
    ADDRESS_MAX,
    UNLIMITED,
    ConnectionLimits,
    ListenerLimits,
    parse_overrides,
)
from headrace.coordination.quotas.token_bucket import NS_PER_S

CONFIG = BrokerConfig()


class Limited:
    """Limits whose clock a test moves."""

    def __init__(self, descriptors: int = UNLIMITED, **config: object) -> None:
        self.now_ns = 0
        self.limits = ConnectionLimits(
            replace(CONFIG, **config), lambda: self.now_ns, None, descriptors
        )
        self._next = 0

    def open(self, host: str = "10.0.0.1", listener: str = "CLIENT") -> tuple[int, str]:
        """(the connection, what it exceeds)."""
        self._next += 1
        return self._next, self.limits.open(self._next, listener, host)


def test_an_address_has_its_limit_and_its_override():
    limited = Limited(connections_per_ip_max=2, connections_per_ip_overrides="10.0.0.9:3,::1:0")
    first, _ = limited.open()
    assert limited.open()[1] == ""
    assert limited.open()[1] == "max.connections.per.ip, 2 for 10.0.0.1"
    assert limited.open("10.0.0.2")[1] == ""
    assert [limited.open("10.0.0.9")[1] for _ in range(4)].count("") == 3
    assert "::1" in limited.open("::1")[1]
    limited.limits.close(first)
    limited.limits.close(first)
    assert limited.open()[1] == ""
    assert limited.limits.refused_total == 3


@pytest.mark.parametrize(("descriptors", "most"), [(1_000_000, ADDRESS_MAX), (40, 10)])
def test_an_address_of_another_machine_leaves_room_for_others_without_any_limit(descriptors, most):
    limited = Limited(descriptors)
    assert [limited.open()[1] for _ in range(most)] == [""] * most
    assert limited.open()[1] == f"max.connections.per.ip, {most} for 10.0.0.1"
    assert limited.open("10.0.0.2")[1] == ""
    for local in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert {limited.open(local)[1] for _ in range(most + 1)} == {""}


def test_a_client_has_the_limit_of_its_ipv6_network_whatever_its_address():
    for config, most in (({}, 10), ({"connections_per_ip_max": 5}, 5)):
        limited = Limited(40, **config)
        refused = [limited.open(f"2001:db8:0:1::{number:x}")[1] for number in range(20)]
        assert refused.count("") == most
        assert refused[-1] == f"max.connections.per.ip, {most} for 2001:db8:0:1::/64"
        assert limited.open("2001:db8:0:2::1")[1] == "", "another network is another client"
        mapped = [limited.open(host)[1] for host in ("10.0.0.1", "::ffff:10.0.0.1") * 10]
        assert mapped.count("") == most, "one client, however its IPv4 address is written"
    own = Limited(connections_per_ip_max=1, connections_per_ip_overrides="2001:db8::9:2")
    opened = [own.open(host) for host in ("2001:db8::9", "2001:db8::1", "2001:db8::9")]
    assert [exceeded for _, exceeded in opened] == [""] * 3, "it is counted by itself"
    assert own.open("2001:db8::2")[1] == "max.connections.per.ip, 1 for 2001:db8::/64"
    own.limits.close(opened[1][0])
    assert own.open("2001:db8::2")[1] == ""


def test_the_limit_of_another_machine_is_lifted_by_a_setting():
    more = Limited(40, connections_per_ip_max=12)
    assert [more.open()[1] for _ in range(13)].count("") == 12
    one = Limited(40, connections_per_ip_overrides=f"10.0.0.1:{UNLIMITED}")
    assert {one.open()[1] for _ in range(20)} == {""}
    assert [one.open("10.0.0.2")[1] for _ in range(20)].count("") == 10


def test_a_listener_has_its_limit_and_the_one_of_brokers_is_exempt_from_the_brokers():
    limited = Limited(connections_max=2)
    limited.limits.of_listeners["CLIENT"] = ListenerLimits(connections_max=1)
    limited.limits.protected_listener = "INSIDE"
    assert limited.open()[1] == ""
    assert limited.open()[1] == "listener.name.client.max.connections, 1"
    assert limited.open(listener="OTHER")[1] == ""
    assert limited.open(listener="OTHER")[1] == "max.connections, 2"
    assert limited.open(listener="INSIDE")[1] == ""


def test_a_user_has_its_limit_whatever_its_address():
    limited = Limited(connections_per_user_max=1)
    first, second = limited.open("10.0.0.1")[0], limited.open("10.0.0.2")[0]
    assert limited.limits.identify(first, "User:a") == ""
    assert limited.limits.identify(first, "User:a") == "", "it authenticates again"
    assert limited.limits.identify(second, "User:a") == "headrace.max.connections.per.user, 1"
    limited.limits.close(second)
    limited.limits.close(first)
    third, _ = limited.open()
    assert limited.limits.identify(third, "User:a") == ""


def test_connections_beyond_a_rate_wait():
    limited = Limited(connection_rate_max=10)
    limited.limits.protected_listener = "INSIDE"
    assert [limited.limits.delay_ms("CLIENT") for _ in range(10)] == [0] * 10
    assert limited.limits.delay_ms("CLIENT") == 100
    assert limited.limits.delay_ms("INSIDE") == 0
    limited.now_ns += NS_PER_S
    assert limited.limits.delay_ms("CLIENT") == 0


@pytest.mark.parametrize("text", ["10.0.0.1", "host:1", "10.0.0.1:-1", "10.0.0.1:x", ":1"])
def test_overrides_that_are_malformed_are_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        parse_overrides(text)


def test_overrides_name_addresses_in_any_notation():
    assert parse_overrides("127.0.0.1:1, [::1]:2,0:0:0:0:0:0:0:2:3,") == {
        "127.0.0.1": 1,
        "::1": 2,
        "::2": 3,
    }
