"""The black box's parts: a seed decides all faults, values name their producers, links cut."""

from __future__ import annotations

import socket
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_verify.blackbox.fault_injection import InjectedFault
from headrace_verify.blackbox.figures import Tally, outages, summary
from headrace_verify.blackbox.link import TO_BROKER, Network
from headrace_verify.blackbox.payload import number_of, value_bytes, value_number
from headrace_verify.blackbox.schedule import CHAINS, CLUSTER_KINDS, KINDS, Fault, draw_schedule


@given(seed=st.integers(0, 2**40), seconds=st.floats(5, 600))
@settings(deadline=None)
def test_a_seed_decides_every_fault_and_all_heal_before_the_end(seed, seconds):
    schedule = draw_schedule(seed, seconds)
    assert schedule == draw_schedule(seed, seconds)
    assert schedule
    for fault in schedule:
        assert fault.kind in CHAINS[fault.chain]
        assert 0 < fault.at_s <= fault.ends_s <= seconds
    for chain in CHAINS:
        faults = [fault for fault in schedule if fault.chain == chain]
        assert all(one.ends_s < other.at_s for one, other in pairwise(faults))


def test_every_kind_of_fault_is_drawn_by_some_seed():
    drawn = {fault.kind for seed in range(20) for fault in draw_schedule(seed, 60)}
    assert drawn == set(KINDS)


def test_a_cluster_has_faults_of_several_nodes_and_one_broker_the_same_as_ever():
    drawn = {f.kind for seed in range(60) for f in draw_schedule(seed, 60, CLUSTER_KINDS)}
    assert drawn == set(CLUSTER_KINDS)
    several = {"kill-many", "pause-many", "journal", "slow-bookie"}
    ensemble = {"kill-leader", "zookeeper-disk", "roll-brokers", "roll-bookies"}
    assert drawn - set(KINDS) == several | ensemble
    faults = draw_schedule(5, 600, ("slow-bookie",))
    assert all(fault.lasts_s > 5 for fault in faults), "longer than a broker waits for an answer"


def test_only_the_faults_that_are_asked_for_are_drawn():
    assert {fault.kind for fault in draw_schedule(3, 300, ("pause", "reset"))} == {"pause", "reset"}


@given(producer=st.integers(1, 2**20), count=st.integers(1, 2**32 - 1), data=st.data())
@settings(deadline=None)
def test_a_value_contains_its_number_and_other_bytes_contain_none(producer, count, data):
    number = value_number(producer, count)
    value = value_bytes(number)
    assert number_of(value) == number
    at = data.draw(st.integers(0, len(value) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    spoiled = value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :]
    assert number_of(spoiled) != number
    assert number_of(value[:at]) != number
    assert number_of(None) == 0


@pytest.fixture
def echo():
    """A server that says everything again, behind a link."""
    server = socket.create_server(("127.0.0.1", 0))
    network = Network()
    link = network.link(lambda: server.getsockname()[:2])

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection):
        with connection:
            try:
                while data := connection.recv(1000):
                    connection.sendall(data)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    yield link
    network.close()
    server.close()


def connect(link, timeout_s=5.0):
    return socket.create_connection(link.address, timeout_s)


def test_a_link_passes_holds_back_and_passes_again(echo):
    with connect(echo) as client:
        client.sendall(b"before")
        assert client.recv(100) == b"before"
        echo.cut(TO_BROKER)
        client.sendall(b"meanwhile")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(100)
        client.settimeout(5)
        echo.heal()
        assert client.recv(100) == b"meanwhile"


def test_a_cut_may_spare_half_of_the_connections(echo):
    with connect(echo) as first, connect(echo) as second:
        for client in (first, second):
            client.sendall(b"a")
            assert client.recv(1) == b"a"
        echo.cut(is_for_all=False)
        heard = 0
        for client in (first, second):
            client.settimeout(1.0)
            client.sendall(b"b")
            try:
                heard += len(client.recv(1))
            except TimeoutError:
                pass
        assert heard == 1


def test_a_link_resets_and_delays(echo):
    with connect(echo) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        echo.reset()
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            pass  # a close is as good
    echo.slow(0.1)
    with connect(echo) as client:
        begun = time.monotonic()
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        assert time.monotonic() - begun >= 0.2


def test_unavailability_is_the_gap_and_the_time_from_healing_to_the_next_write():
    ms = 1_000_000
    tally = Tally()
    tally.writes = [(at * ms, (at + 1) * ms) for at in (*range(0, 1000, 10), 2500, 2600)]
    tally.writes.insert(100, (1500 * ms, 2400 * ms))  # invoked before the healing: proves nothing
    tally.reads.extend([500 * ms, 1990 * ms, 2050 * ms])
    fault = Fault(1.0, "kill", 1.0, 0, 0.0, "one by one")
    (found,) = outages(tally, [InjectedFault(fault, "node 0", 1000 * ms, 2000 * ms)])
    assert found["write_after_ms"] == 501
    assert found["write_gap_ms"] == 1400  # to the answer at 2,400 ms
    assert found["read_after_ms"] == 50
    assert summary([found])[0]["write_after_ms_max"] == 501
