"""The settings and units in deploy/ keep bookies alive, and `cluster dev` has the same settings."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import pytest

from headrace.dev_cluster.settings import (
    ClusterOptions,
    Member,
    of_bookie,
    of_zookeeper,
    sample,
)

DEPLOY = Path(__file__).parents[3] / "deploy"
OWN_OF_BOOKIE = {"metadataServiceUri", "bookiePort", "journalDirectories", "ledgerDirectories"}
OWN_OF_ZOOKEEPER = {"dataDir", "clientPort"}


def test_what_deploy_ships_is_what_a_development_cluster_starts_from(tmp_path):
    for name in ("zoo.cfg", "bookie.conf"):
        lines = (DEPLOY / name).read_text().splitlines()
        assert [line for line in lines if line and line[0] != "#"] == [
            f"{key}={value}" for key, value in sample(name).items()
        ]
    bookie = of_bookie(tmp_path, 1, "lo", ["zk:1"], ClusterOptions())
    for key, value in sample("bookie.conf").items():
        assert key in OWN_OF_BOOKIE or bookie[key] == value
    zookeeper = of_zookeeper(tmp_path, [Member("127.0.0.1", 1, 2, 3)], 1)
    for key, value in sample("zoo.cfg").items():
        assert key.startswith("server.") or key in OWN_OF_ZOOKEEPER or zookeeper[key] == value
    assert "server.1" not in zookeeper, "the sample's hosts are not this machine's"


def test_auto_recovery_runs_apart_from_the_bookies():
    assert sample("bookie.conf")["autoRecoveryDaemonEnabled"] == "false"
    assert sample("bookie.conf")["journalSyncData"] == "true"


@pytest.mark.parametrize("name", ["zookeeper", "bookie", "autorecovery", "headrace"])
def test_what_ends_is_started_again_however_often(name):
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / f"{name}.service")
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
