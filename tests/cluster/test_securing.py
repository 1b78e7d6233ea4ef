"""The guide from an open cluster to a secured one is followed: its settings, its commands, while
clients write."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.cluster.brokers import Brokers, Load
from tests.documents.commands import ROOT, blocks, words
from tests.integration.clients import create_topic

if TYPE_CHECKING:
    from pathlib import Path

GUIDE = list(blocks(ROOT / "docs" / "SECURING.md"))
SETTINGS = [text for language, text in GUIDE if language == "toml"]
COMMANDS = [text for language, text in GUIDE if language == "sh"]
PARTITIONS = 2
LIMIT_S = 180
SESSION_MS = "30000"
"""No broker dies here: what takes long on a busy machine is no death."""


def of_user(name: str, folder: Path) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(folder / "certificates" / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": name,
        "sasl.password": f"of {name}",
    }


class Guided:
    """The brokers, and what the guide has them do."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.folder = folder
        self.place = ["--zookeeper", zookeeper, "--zookeeper-root", f"/{folder.name}"]
        session = ("--session-timeout-ms", SESSION_MS)
        self.brokers = Brokers(folder, zookeeper, 2, *self.place[2:], *session)
        self.own = {number: one.options for number, one in self.brokers.by_id.items()}
        for name in ("admin", "billing"):
            (folder / f"{name}-password").write_text(f"of {name}")

    def run(self, text: str, *options: str) -> None:
        """Every command of a block."""
        for line in text.replace("--zookeeper zk1:2181", shlex.join(self.place)).splitlines():
            done = subprocess.run(
                [sys.executable, "-m", "headrace.cli.main", *options, *words(line)[1:]],
                cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stderr}"

    def roll(self, settings: str) -> None:
        """Restart one broker after the other, with the settings at its own addresses."""
        path = self.folder / "headrace.toml"
        first, rest = settings.split("\n", 1)
        path.write_text("[serve]\n" + rest.replace("certificates/", f"{self.folder}/certificates/"))
        names = re.findall(r"(\w+)://", first)
        for number, broker in self.brokers.by_id.items():
            broker.listen(*names)
            broker.stop()
            broker.options = (*self.own[number], "--config", str(path))
            broker.start()
            assert [*broker.listeners] == names

    def bootstrap(self, listener: str) -> str:
        return ",".join(one.listeners[listener] for one in self.brokers.by_id.values())


@pytest.mark.timeout(900)
def test_an_open_cluster_becomes_a_secured_one_while_clients_write(shared_cluster, tmp_path):
    guided = Guided(tmp_path, shared_cluster.zookeeper.address)
    make_certificates, add_admin, move_clients = COMMANDS
    add_listener, between_brokers, close = SETTINGS
    brokers = guided.brokers
    try:
        opened, admin = brokers.bootstrap, of_user("admin", tmp_path)
        for topic in ("before", "orders"):
            create_topic(opened, topic, PARTITIONS)
        load = Load(opened, "before", PARTITIONS, rate=100)
        load.wait_acked()
        guided.run(make_certificates)
        guided.run(add_admin)
        guided.roll(add_listener)
        load.wait_acked()
        login = [f"-X{name}={value}" for name, value in admin.items()]
        guided.run(move_clients, "--bootstrap", guided.bootstrap("SECURE"), *login)
        billing = of_user("billing", tmp_path)
        moved = Load(guided.bootstrap("SECURE"), "orders", PARTITIONS, rate=100, **billing)
        moved.wait_acked()
        guided.roll(between_brokers)
        load.wait_acked()
        load.stop()
        guided.roll(close)
        moved.wait_acked()
        moved.stop()
        assert load.check(guided.bootstrap("SECURE"), **admin) > 0
        assert moved.check(guided.bootstrap("SECURE"), **admin) > 0
    finally:
        brokers.close()
