"""Which ZooKeeper servers are warned of, by their answers."""

from __future__ import annotations

import asyncio
import socket

import pytest

from headrace.zookeeper import servers as zookeeper_servers
from headrace.zookeeper.servers import ask_servers

ANSWER = "Zookeeper version: {}-abc, built on 2024-10-17 23:21 UTC\nMode: {}\nNode count: 7\n"


def found(*answers: bytes | None):
    """What is read from one server per answer; None: it accepts and says nothing."""

    async def run():
        servers, asked = [], []

        def answering(answer):
            async def serve(reader, writer):
                asked.append(await reader.readexactly(4))
                if answer is None:
                    await reader.read()
                else:
                    writer.write(answer)
                writer.close()

            return serve

        for answer in answers:
            servers.append(await asyncio.start_server(answering(answer), "127.0.0.1", 0))
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        result = await ask_servers(",".join(f"127.0.0.1:{port}" for port in ports))
        # Some other test's client may look for a server that had the same port before.
        assert asked.count(b"srvr") == len(answers)
        for server in servers:
            server.close()
        return [(ports.index(int(one.address[10:])), one) for one in result]

    return asyncio.run(run())


@pytest.mark.parametrize("mode", ["leader", "follower", "observer"])
def test_an_ensemble_that_loses_changes_is_warned_of(mode):
    ((_, server),) = found(ANSWER.format("3.9.3", mode).encode())
    assert (server.version, server.mode) == ((3, 9, 3), mode)
    assert f"ZooKeeper at {server.address} is version 3.9.3" in server.warning
    assert "upgrade the ensemble to 3.9.5" in server.warning


@pytest.mark.parametrize(
    ("version", "mode"),
    [("3.9.3", "standalone"), ("3.9.2", "leader"), ("3.9.5", "leader"), ("3.9.30", "leader")],
)
def test_others_are_not(version, mode):
    ((_, server),) = found(ANSWER.format(version, mode).encode())
    assert server.warning == ""


def test_a_server_that_says_nothing_is_left_out(monkeypatch):
    monkeypatch.setattr(zookeeper_servers, "ASK_TIMEOUT_S", 1)
    assert found(None) == []


def test_a_server_that_says_nonsense_is_left_out(monkeypatch):
    monkeypatch.setattr(zookeeper_servers, "ASK_TIMEOUT_S", 60)
    good = ANSWER.format("3.9.3", "leader").encode()
    refusals = (
        b"",
        b"srvr is not executed because it is not in the whitelist.\n",
        b"\xff" * 100_000,
        b"Zookeeper version: " + b"9" * 5_000 + b".1.1",
    )
    assert [number for number, _ in found(good, *refusals, good)] == [0, 5]


def test_a_server_that_does_not_run_is_left_out():
    with socket.socket() as bound:  # bound, but it does not listen
        bound.bind(("127.0.0.1", 0))
        assert asyncio.run(ask_servers(f"127.0.0.1:{bound.getsockname()[1]}")) == []


def test_a_server_that_does_not_serve_yet_has_no_mode():
    text = ANSWER.format("3.9.3", "leader").replace("Mode: leader\n", "")
    ((_, server),) = found(text.encode())
    assert server.mode == ""
    assert server.warning
