"""The settings and units in deploy/ keep bookies alive, and `cluster dev` has the same settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.debian import unpacked

from headrace.broker.settings.table import SETTINGS
from headrace.cli.failures import USAGE
from headrace.cli.main import cli
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


def test_shipped_sample_files_match_the_settings_of_a_development_cluster(tmp_path):
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


UNITS = ["zookeeper", "bookie", "autorecovery", "headrace", "headrace-single"]
"""Those of a cluster, and the one that `headrace unit` prints."""


def unit_of(name: str) -> str:
    if name != "headrace-single":
        return (DEPLOY / f"{name}.service").read_text()
    printed = CliRunner().invoke(cli, ["unit", "--user", "operator"])
    assert printed.exit_code == 0, printed.output
    assert "\nUser=operator\n" in printed.stdout
    assert "@" not in printed.stdout.replace("@system-service", "")
    return printed.stdout


@pytest.mark.parametrize("value", ["/var/lib/my data", "/srv/100%", "/srv/a\nExecStart=b"])
def test_a_unit_has_no_path_that_means_something_else(value):
    done = CliRunner().invoke(cli, ["unit", "--data-dir", value])
    assert (done.exit_code, done.stdout) == (USAGE, "")


@pytest.mark.parametrize("name", UNITS)
def test_services_are_restarted_however_often_they_end(name):
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(unit_of(name))
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program, env = shutil.which("systemd-analyze"), dict(os.environ)
    if program is None:
        systemd, library = unpacked("systemd"), unpacked("libsystemd-shared")
        if systemd is None or library is None:
            pytest.skip("no systemd-analyze, and none by apt-get")
        program = str(systemd / "usr" / "bin" / "systemd-analyze")
        env["LD_LIBRARY_PATH"] = str(next(library.rglob("libsystemd-shared-*.so")).parent)
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=120, check=False, env=env
    )


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path, name):
    # the programs are not installed here, and their paths are all that may differ
    programs = r"^(Exec\w+=)/\S+(?= serve)|^(Exec\w+=)/opt/\S+"
    text = re.sub(programs, r"\1\2/bin/true", unit_of(name), flags=re.MULTILINE)
    path = tmp_path / f"{name}.service"
    path.write_text(text)
    done = systemd_analyze("verify", str(path))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    exposure_max = 2.0 if name.startswith("headrace") else 3.5  # of 10
    options = "--offline=true", f"--threshold={exposure_max * 10:.0f}", "--no-pager"
    done = systemd_analyze("security", *options, str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_container_serves_beyond_itself_as_another_user_than_root():
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    found = dict(re.findall(r"(HEADRACE_\w+)=(\S+)", text.partition("ENV ")[2].partition("\n")[0]))
    assert found["HEADRACE_KAFKA"] == "0.0.0.0:9092"
    assert found["HEADRACE_ADMIN_ADDRESS"] == "0.0.0.0:9181"
    assert found["HEADRACE_HTTP"].startswith("127.0.0.1:")
    assert "0.0.0.0" not in found["HEADRACE_ADVERTISE"]
    (user,) = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert int(user) > 0
    (check,) = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", text, re.MULTILINE)
    assert json.loads(check)[:2] == ["headrace", "health"]
    for name in found:
        assert any(one.variable == name for one in SETTINGS.values()), name


def test_the_compose_file_publishes_what_the_container_listens_on_to_this_machine_alone():
    (broker,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    text = (DEPLOY / "Containerfile").read_text()
    (exposed,) = re.findall(r"^EXPOSE (.+)$", text, re.MULTILINE)
    assert [f"127.0.0.1:{port}:{port}" for port in exposed.split()] == broker["ports"]
    (volume,) = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
    assert [one.partition(":")[2] for one in broker["volumes"]] == [volume]
    assert (DEPLOY / broker["build"]["context"] / broker["build"]["dockerfile"]).exists()
    version = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["version"]
    assert broker["image"] == f"headrace:{version}"
    for name in broker["environment"]:
        assert any(one.variable == name for one in SETTINGS.values()), name
