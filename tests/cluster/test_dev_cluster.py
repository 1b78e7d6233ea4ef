"""The launcher of a real ZooKeeper and real bookies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from tests.waiting import wait_until

from headrace.dev_cluster.cluster import DevCluster
from headrace.dev_cluster.parts import Parts
from headrace.dev_cluster.processes import Family, ProcessNotReady, ServerProcess
from headrace.dev_cluster.settings import ClusterOptions
from headrace.errors import FolderInUse


def test_a_cluster_serves_and_its_servers_may_be_killed_suspended_and_restarted(make_cluster):
    cluster = make_cluster(bookie_count=1, bookie_session_timeout_ms=2_000)
    (bookie,) = cluster.bookies
    wait_until(lambda: cluster.available_bookies() == [bookie.address])
    assert cluster.ask_zookeeper("ruok") == "imok"
    for connection in psutil.Process(bookie.pid).net_connections():
        assert connection.status != "LISTEN" or connection.laddr.ip in {"127.0.0.1", "::1"}

    bookie.suspend()
    assert psutil.Process(bookie.pid).status() == psutil.STATUS_STOPPED
    wait_until(lambda: cluster.available_bookies() == [])  # its session has ended
    bookie.resume()
    wait_until(lambda: cluster.available_bookies() == [bookie.address])

    address, pid = bookie.address, bookie.pid
    cluster.restart(bookie)
    assert bookie.address == address
    wait_until(lambda: cluster.available_bookies() == [address])
    assert bookie.pid != pid

    cluster.kill()
    assert not bookie.is_alive
    with DevCluster(cluster.folder, ClusterOptions(bookie_count=1), cluster.parts) as again:
        wait_until(
            lambda: again.available_bookies() == [address]
        )  # a bookie's address is its identity
        with pytest.raises(FolderInUse):
            DevCluster(cluster.folder, cluster.options, cluster.parts).start()


def test_processes_die_with_their_owner_even_when_both_are_stopped_by_force(tmp_path):
    owner = (
        "import sys, signal, os; from pathlib import Path\n"
        "from headrace.dev_cluster.processes import Family\n"
        "family = Family()\n"
        "pids = [family.start(['sleep', '1000'], Path(sys.argv[1])).pid for _ in range(2)]\n"
        "os.kill(pids[0], signal.SIGSTOP)\n"
        "print(*pids, flush=True); signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", owner, str(tmp_path / "log")], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert all(map(psutil.pid_exists, pids))
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(psutil.pid_exists, pids)))


def test_a_server_that_ends_is_reported_with_its_log(tmp_path):
    family = Family()
    server = ServerProcess(
        "it", ("127.0.0.1", 1), ["sh", "-c", "echo no room; exit 3"], tmp_path / "l", family
    )
    server.start()
    with pytest.raises(ProcessNotReady, match=r"it at 127.0.0.1:1 has exited(?s:.*)no room"):
        server.wait_until(lambda: False, 60)
    family.close()


def test_a_cluster_that_cannot_start_releases_its_folder(tmp_path):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho cannot; exit 1\n")
    java.chmod(0o755)
    cluster = DevCluster(tmp_path / "c", parts=Parts(java, ""))
    with pytest.raises(ProcessNotReady, match="cannot"):
        cluster.start()
    with pytest.raises(ProcessNotReady):  # not FolderInUse
        cluster.start()


def test_the_command_says_where_everything_is_and_stops_on_ctrl_c(cluster_parts, tmp_path):
    command = [sys.executable, "-m", "headrace.cli.main", "cluster", "dev", "--bookies", "1"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        children = []
        try:
            line = process.stdout.readline()
            children = psutil.Process(process.pid).children(recursive=True)
            assert len(children) == 4  # the family's leader, ZooKeeper, a bookie, AutoRecovery
            while not line.endswith(b"}\n"):
                line += process.stdout.readline()
            ready = json.loads(line)
            assert ready["ready"]
            assert len(ready["bookies"]) == 1
        finally:
            os.kill(process.pid, signal.SIGINT)
        assert process.wait(120) == 0
        wait_until(lambda: not any(child.is_running() for child in children))
