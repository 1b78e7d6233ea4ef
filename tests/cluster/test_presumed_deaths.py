"""Who is dead: brokers that are frozen or cut off and shunned by the others, or killed, with and
without the process beside them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import psutil
import pytest
from tests.cluster.network import Proxy, proxy_in_a_thread
from tests.integration.broker import Broker
from tests.integration.clients import create_topic
from tests.integration.raw import Raw, batch
from tests.waiting import wait_until

from headrace.dev_cluster.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SESSION_MS = 16_000
"""A busy machine does in less what takes a process milliseconds."""
FROZEN_S = 2.5
"""Far less than a session, and enough for others to notice, claim, serve and acknowledge."""
PARTITIONS = 8


class Pair(NamedTuple):
    """Broker 1, whose advertised address is a proxy's, and broker 2."""

    first: Broker
    other: Broker
    proxy: Proxy
    run: Callable
    """Calls something in the proxy's loop."""
    zookeeper: Proxy
    """Broker 1's way to ZooKeeper."""
    run_zookeeper: Callable

    def shun(self) -> None:
        """Have broker 2's connections to broker 1's address refused; existing connections stay
        open."""
        self.run(self.proxy.refuse)

    @contextmanager
    def deaf(self, how: str) -> Iterator[None]:
        """Broker 1 cannot learn what the others make of it: it is frozen, or cut off from
        ZooKeeper."""
        pid = self.first.process.pid
        if how == "frozen":
            os.kill(pid, signal.SIGSTOP)
        else:
            self.run_zookeeper(self.zookeeper.swallow)
        try:
            yield
        finally:
            if how == "frozen":
                os.kill(pid, signal.SIGCONT)


@pytest.fixture
def pair(tmp_path, shared_cluster) -> Iterator[Pair]:
    zookeeper, root = shared_cluster.zookeeper.address, f"/{tmp_path.name}"
    where = ("--zookeeper", zookeeper, "--zookeeper-root", root)
    where += ("--session-timeout-ms", str(SESSION_MS))
    port = free_port()
    with ExitStack() as stack:
        proxy, run = stack.enter_context(proxy_in_a_thread(f"127.0.0.1:{port}"))
        way, run_way = stack.enter_context(proxy_in_a_thread(zookeeper))
        advertised = ("--advertise", proxy.address, "--zookeeper", way.address)
        first = Broker(tmp_path / "1", *where, "--broker-id", "1", *advertised)
        first.kafka = f"127.0.0.1:{port}"
        other = Broker(tmp_path / "2", *where, "--broker-id", "2")
        for broker in (first, other):
            stack.callback(_end, broker)
            broker.start()
        yield Pair(first, other, proxy, run, way, run_way)


def _end(broker: Broker) -> None:
    if broker.process is not None:
        os.kill(broker.process.pid, signal.SIGCONT)
        broker.kill()


def leaders(broker: Broker, topic: str) -> dict[int, int]:
    with Raw(broker.address) as raw:
        answer = raw.call(3, 4, topics=[{"name": topic}], allow_auto_topic_creation=False)
    return {int(p.partition_index): int(p.leader_id) for p in answer.topics[0].partitions}


def _end_offset(raw: Raw, topic: str, part: int) -> int:
    asked = {"name": topic, "partitions": [{"partition_index": part, "timestamp": -1}]}
    answer = raw.call(2, 1, replica_id=-1, topics=[asked]).topics[0].partitions[0]
    if int(answer.error_code):
        raise ConnectionError(int(answer.error_code))
    return int(answer.offset)


def _shown(broker: Broker, topic: str, part: int) -> int:
    target = f"http://{broker.http}/v1/topics/{topic}/records?partition={part}&offset=0"
    with urllib.request.urlopen(target, timeout=30) as answer:
        return len(json.load(answer)["records"])


class Reads:
    """What is asked of a frozen broker, over connections that it had before."""

    def __init__(self, broker: Broker, topic: str, part: int) -> None:
        self._raws = raws = [Raw(broker.address) for _ in range(3)]
        for raw in raws:
            raw.call(18, 0)
        self._pool = ThreadPoolExecutor(4)
        self._calls = {
            "fetch": lambda: raws[0].fetch(topic, part, 0)[1],
            "end offset": lambda: _end_offset(raws[1], topic, part),
            "committed": lambda: raws[2].committed("g", topic, part),
            "http": lambda: _shown(broker, topic, part),
        }
        self._asked: dict[str, Future] = {}

    def ask(self) -> None:
        self._asked = {name: self._pool.submit(call) for name, call in self._calls.items()}

    def answers(self) -> dict[str, int]:
        """The answers; none where it refused, by an error or by closing the connection."""
        found = {}
        for name, asked in self._asked.items():
            try:
                found[name] = asked.result(60)
            except (OSError, urllib.error.HTTPError):
                continue
        self._pool.shutdown()
        for raw in self._raws:
            raw.close()
        return found


def _write_to_whoever_serves(broker: Broker, topic: str, part: int) -> int:
    """Records that a broker acknowledged within a moment: 0 or 1; and the group's offset."""
    count = 0
    ends = time.monotonic() + FROZEN_S
    with Raw(broker.address) as raw:
        while time.monotonic() < ends and not count:
            try:
                raw.produce(topic, part, batch(b"new"))
                count = 1
            except ConnectionError:
                time.sleep(0.05)
        while time.monotonic() < ends and count:
            try:
                raw.commit("g", topic, part, 2)
                break
            except ConnectionError:
                time.sleep(0.05)
    return count


@pytest.mark.parametrize("how", ["frozen", "cut"])
def test_a_broker_that_is_deaf_and_shunned_for_less_than_its_session_shows_nothing_old(pair, how):
    create_topic(pair.other.kafka, "t", PARTITIONS)
    part = wait_until(lambda: [n for n, at in leaders(pair.other, "t").items() if at == 1])[0]
    with Raw(pair.first.address) as raw:
        wait_until(lambda: _produced(raw, "t", part))
        wait_until(lambda: _committed_by_anyone(pair, "t", part))
    reads = Reads(pair.first, "t", part)
    with pair.deaf(how):
        pair.shun()
        stored = 1 + _write_to_whoever_serves(pair.other, "t", part)
        reads.ask()
        time.sleep(0.2)
    answers = reads.answers()
    pair.run_zookeeper(pair.zookeeper.restore)
    assert all(found >= stored for found in answers.values()), (stored, answers)
    # It lives, so nobody may have taken over: this is what the answers rest on.
    assert stored == 1
    with Raw(pair.first.address) as raw:
        assert raw.produce("t", part, batch(b"more")) == 1


def _produced(raw: Raw, topic: str, part: int) -> bool:
    try:
        return raw.produce(topic, part, batch(b"old")) == 0
    except ConnectionError:
        return False


def _committed_by_anyone(pair: Pair, topic: str, part: int) -> bool:
    for broker in (pair.first, pair.other):
        with Raw(broker.address) as raw:
            try:
                raw.find_coordinator("g")
                raw.commit("g", topic, part, 1)
            except ConnectionError:
                continue
            return True
    return False


def ender_of(broker: Broker) -> psutil.Process:
    """The process beside it."""
    found = [
        child
        for child in psutil.Process(broker.process.pid).children()
        if "headrace.zookeeper.session_ender" in child.cmdline()
    ]
    assert len(found) == 1, found
    return found[0]


def has_expired(pair: Pair, log: Path, topic: str) -> bool:
    """Whether broker 1's session was ended by ZooKeeper, which waits for its time-out, and not by a
    request; once broker 2 has taken over."""
    wait_until(lambda: set(leaders(pair.other, topic).values()) == {2})
    session = re.findall(r"session \d+ \((0x\w+)\) with ZooKeeper", pair.first.log())[-1]
    return f"Expiring session {session}," in log.read_text(errors="replace")


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_death_of_a_process_is_known_at_once_unless_the_one_beside_it_dies_too(
    pair, shared_cluster, is_alone
):
    create_topic(pair.other.kafka, "killed", PARTITIONS)
    wait_until(lambda: 1 in leaders(pair.other, "killed").values())
    ender = ender_of(pair.first)
    if not is_alone:
        os.kill(pair.first.process.pid, signal.SIGSTOP)  # it replaces nobody
        ender.kill()
    pair.first.kill()
    assert has_expired(pair, shared_cluster.zookeeper.log, "killed") is not is_alone
    wait_until(lambda: not ender.is_running() or ender.status() == psutil.STATUS_ZOMBIE)


def test_a_process_beside_a_broker_that_dies_is_replaced(pair, shared_cluster):
    create_topic(pair.other.kafka, "beside", PARTITIONS)
    wait_until(lambda: 1 in leaders(pair.other, "beside").values())
    former = ender_of(pair.first)
    former.kill()

    def another() -> bool:
        children = psutil.Process(pair.first.process.pid).children()
        return any(child.pid != former.pid and child.is_running() for child in children)

    wait_until(another)
    # It answers, so the turn of its loop that started the process and wrote to its pipe is over.
    assert 1 in leaders(pair.first, "beside").values()
    pair.first.kill()
    assert not has_expired(pair, shared_cluster.zookeeper.log, "beside")
