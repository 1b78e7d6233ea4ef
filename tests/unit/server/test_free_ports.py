"""Ports for servers that return to theirs."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.dev_cluster.ports import free_ports


def test_no_outgoing_connection_can_be_given_a_port_of_a_server_that_is_down():
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not ephemeral.exists():
        pytest.skip("Linux says where its range begins")
    begin = int(ephemeral.read_text().split()[0])
    assert all(free_ports(50) + 50 <= begin for _ in range(100))


def test_nothing_listens_on_them_and_none_is_taken():
    first = free_ports(8)
    with socket.create_server(("127.0.0.1", first + 3)):
        taken = range(20_000)
        for _ in range(200):
            found = range(free_ports(8, taken), 32_000)[:8]
            assert first + 3 not in found
            assert not set(found) & set(taken)


def test_no_two_processes_choose_the_same_port_nor_one_process_the_same_soon():
    """A server that is down keeps its port as long as the process that chose it goes on."""
    script = "from headrace.dev_cluster.ports import free_port\n"
    script += "print(*[free_port() for _ in range(200)], flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen([sys.executable, "-c", script], **pipes) for _ in range(4)]
    try:
        found = [one.stdout.readline().split() for one in processes]
    finally:
        for one in processes:
            one.communicate(b"\n")
    assert len({port for ports in found for port in ports}) == 4 * 200
