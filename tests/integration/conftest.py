"""Brokers for the integration tests, and their logs beside a failure."""

from __future__ import annotations

import itertools
import re

import pytest
from tests.integration.broker import RUNNING, Broker, Place
from tests.integration.tenants import started

_numbers = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for broker in RUNNING:
            text = "\n".join(broker.log().splitlines()[-20:])
            report.sections.append((f"log of the broker at {broker.kafka}", text))
    return report


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory):
    """One broker for all tests that leave it running."""
    broker = Broker(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def broker(shared_broker):
    """The shared broker: it must outlive the test, and log no fault of its own meanwhile."""
    mark = shared_broker.log_size()
    yield shared_broker
    assert shared_broker.is_alive(), "the broker has ended"
    faults = [line for line in shared_broker.log_since(mark) if re.search(r" ERROR |Trace", line)]
    assert not faults, faults[:5]


@pytest.fixture(scope="module")
def tenants(tmp_path_factory):
    """The places of two tenants at one broker, whose clients need no login."""
    names = "acme", "beta"
    broker = started(tmp_path_factory.mktemp("tenants"), *names)
    yield [Place(broker.listeners[one.upper()], broker.http) for one in names]
    broker.stop()


@pytest.fixture
def own_broker(tmp_path):
    """A broker that the test may stop, kill and restart."""
    broker = Broker(tmp_path / "broker")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def make_broker(tmp_path):
    """Makes brokers with options of the test's own."""
    made: list[Broker] = []

    def make(*options: str) -> Broker:
        broker = Broker(tmp_path / f"broker-{len(made)}", *options)
        made.append(broker)
        return broker.start()

    yield make
    for broker in made:
        broker.kill()


@pytest.fixture
def name(request):
    """A name for a topic or a group that no other test uses."""
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:80].strip("-")
    return f"{stem}-{next(_numbers)}"
