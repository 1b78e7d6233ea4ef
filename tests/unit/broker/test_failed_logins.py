"""Clients that try passwords are slowed down, and no others."""

from __future__ import annotations

import asyncio

from headrace.broker.security import failed_logins
from headrace.broker.security.failed_logins import FREE_FAILURES, FailedLogins
from headrace.coordination.quotas.token_bucket import NS_PER_S

ATTACKER, OTHER = "10.0.0.1", "10.0.0.2"


class Slept:
    """Failed logins whose sleeps are noted instead of slept."""

    def __init__(self, monkeypatch) -> None:
        self.now_ns = 0
        self.slept_s: list[float] = []
        self.failures = FailedLogins(lambda: self.now_ns)
        monkeypatch.setattr(failed_logins.asyncio, "sleep", self._sleep)

    async def _sleep(self, time_s: float) -> None:
        self.slept_s.append(time_s)

    def fail(self, host: str = ATTACKER) -> float:
        asyncio.run(self.failures.delay(host))
        return self.slept_s.pop()

    def wait(self, host: str = ATTACKER) -> float:
        asyncio.run(self.failures.wait(host))
        return self.slept_s.pop() if self.slept_s else 0


def test_an_address_that_keeps_failing_waits_longer_and_before_it_is_checked(monkeypatch):
    slept = Slept(monkeypatch)
    assert [slept.fail() for _ in range(FREE_FAILURES)] == [0.1] * FREE_FAILURES
    assert slept.wait() == 0
    assert [slept.fail() for _ in range(8)] == [1, 2, 3, 4, 5, 5, 5, 5]
    assert slept.wait() == 5, "also with the right password, and in parallel"
    assert slept.wait(OTHER) == 0
    assert slept.fail(OTHER) == 0.1
    slept.now_ns += 100 * NS_PER_S
    assert slept.wait() == 0
    assert slept.fail() == 0.1


def test_a_client_that_takes_another_ipv6_address_of_its_network_waits_as_long(monkeypatch):
    slept = Slept(monkeypatch)
    waits = [slept.fail(f"2001:db8::{number:x}") for number in range(FREE_FAILURES + 1)]
    assert waits == [0.1] * FREE_FAILURES + [1]
    assert slept.wait("2001:db8::ffff:1") == 1
    assert slept.wait("2001:db8:0:1::1") == 0


def test_the_number_of_remembered_addresses_is_bounded(monkeypatch):
    slept = Slept(monkeypatch)
    monkeypatch.setattr(failed_logins, "ADDRESSES_MAX", 10)
    for n in range(50):
        slept.fail(f"10.0.1.{n}")
    assert len(slept.failures._addresses) == 10
