"""By default, only this machine reaches a broker, and only its user reads its files."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.broker.settings.kinds import Listener
from headrace.errors import RequestInvalid
from headrace.metadata.sqlite_file import SqliteFile
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import CREATE, SystemDisk
from headrace.runtime.security_protocols import PLAINTEXT, SASL_SSL, SSL
from headrace.server.assemble import start
from headrace.server.settings import (
    Settings,
    check_advertised,
    check_exposure,
    is_loopback,
    opened_to_network,
)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_this_machine_alone(host):
    assert is_loopback(host)
    check_exposure(Settings(Path(), (host, 1), (host, 2)))


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "0", "10.1.2.3", "127.evil.example", "localhost.evil.example", "", "::2"],
)
def test_any_other_address_must_be_allowed_explicitly(host):
    assert not is_loopback(host)
    for settings in (
        Settings(Path(), kafka=(host, 1)),
        Settings(Path(), http=(host, 1)),
        Settings(Path(), rocketmq=(host, 1)),
    ):
        with pytest.raises(RequestInvalid, match="--insecure"):
            check_exposure(settings)
        settings.is_insecure = True
        check_exposure(settings)


def test_the_admin_address_may_be_any_because_no_record_is_served_there():
    settings = Settings(Path(), admin=("0.0.0.0", 1))
    check_exposure(settings)
    settings.http = ("0.0.0.0", 2)
    with pytest.raises(RequestInvalid, match="HTTP listener"):
        check_exposure(settings)


def test_rocketmqs_clients_come_from_elsewhere_with_a_certificate():
    settings = Settings(Path(), rocketmq=("10.1.2.3", 1), rocketmq_protocol=SSL)
    with pytest.raises(RequestInvalid, match="RocketMQ listener"):
        check_exposure(settings)
    settings.given = {"listener.name.rocketmq.ssl.client.auth": "required"}
    check_exposure(settings)


def test_open_to_network_is_all_interfaces_and_refused_without_logins():
    admin, named = ("127.0.0.1", 3), ("10.1.2.3", 4)
    local = Settings(Path(), admin=admin, more_listeners=[Listener("INSIDE", *named)])
    local.protocols = {"INSIDE": SASL_SSL, "PLAINTEXT": PLAINTEXT}
    opened = opened_to_network(local)
    places = [(one.host, one.port) for one in opened.endpoints]
    assert places == [("0.0.0.0", 9092), named, ("0.0.0.0", 9180), admin]
    assert opened_to_network(Settings(Path(), kafka=("::1", 1))).kafka == ("::", 1)
    with pytest.raises(RequestInvalid, match="--insecure"):
        check_exposure(opened)
    secured = opened_to_network(Settings(Path(), kafka_listener=SASL_SSL, http_protocol=SASL_SSL))
    check_exposure(secured)
    with pytest.raises(RequestInvalid, match="--advertise"):
        check_advertised(secured)
    secured.advertised = {SASL_SSL: ("broker.example.com", 9092)}
    check_advertised(secured)


def test_encryption_alone_is_no_authentication():
    settings = Settings(Path(), kafka=("10.1.2.3", 1), kafka_listener="SSL")
    for client_auth in ("none", "requested"):
        settings.given = {"ssl.client.auth": client_auth}
        with pytest.raises(RequestInvalid, match=r"ssl\.client\.auth=required"):
            check_exposure(settings)
    settings.given = {"ssl.client.auth": "required"}
    check_exposure(settings)
    settings.given["listener.name.ssl.ssl.client.auth"] = "none"
    with pytest.raises(RequestInvalid, match="not authenticated"):
        check_exposure(settings)
    settings.given = {"ssl.client.auth": "required"}
    settings.http = ("10.1.2.3", 2)
    with pytest.raises(RequestInvalid, match="HTTP listener"):
        check_exposure(settings)
    settings.http_protocol = "SSL"
    check_exposure(settings)


def test_a_broker_open_to_the_network_without_authentication_does_not_start(tmp_path):
    settings = Settings(tmp_path / "data", kafka=("0.0.0.0", 0), http=("127.0.0.1", 0))
    with pytest.raises(RequestInvalid, match="not authenticated"):
        asyncio.run(start(settings))
    assert not (tmp_path / "data").exists(), "it was refused before anything was touched"


@pytest.mark.parametrize("more", [[], ["--workers", "2"]])
def test_the_command_says_what_to_do(tmp_path, more):
    arguments = ["serve", "--kafka", "0.0.0.0:0", "--http", "127.0.0.1:0", *more]
    arguments += ["--data-dir", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "--insecure" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("kafka", "advertised", "is_refused"),
    [
        ("0.0.0.0", {}, True),
        ("::", {}, True),
        ("", {}, True),
        ("0", {}, True),
        ("0x0", {}, True),
        ("::ffff:0.0.0.0", {}, True),
        ("127.0.0.1", {}, False),
        ("localhost", {}, False),
        ("0.0.0.0", {"PLAINTEXT": ("broker.example", 9092)}, False),
        ("0.0.0.0", {"PLAINTEXT": ("0.0.0.0", 9092)}, True),
    ],
)
def test_no_address_is_advertised_that_leads_nowhere(tmp_path, kafka, advertised, is_refused):
    settings = Settings(tmp_path / "data", kafka=(kafka, 0), http=("127.0.0.1", 0))
    settings.advertised = advertised
    if not is_refused:
        check_advertised(settings)
        return
    with pytest.raises(RequestInvalid, match="--advertise"):
        check_advertised(settings)


def test_files_and_folders_are_their_owners_alone(tmp_path):
    disk = SystemDisk()
    umask = os.umask(0)
    try:
        os.close(disk.open(str(tmp_path / "file"), CREATE))
        disk.make_folder(str(tmp_path / "folder"))
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["m.sqlite", "m.sqlite-wal", "m.sqlite-shm"])
def test_metadata_that_a_link_points_to_are_not_opened(tmp_path, name):
    (tmp_path / "others").write_text("precious")
    (tmp_path / name).symlink_to(tmp_path / "others")
    with pytest.raises(RequestInvalid, match="is a symbolic link"):
        SqliteFile(tmp_path / "m.sqlite", SystemClock(), 100)
    assert (tmp_path / "others").read_text() == "precious"


def test_a_link_in_a_files_place_is_not_followed(tmp_path):
    (tmp_path / "others").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "others")
    (tmp_path / "nowhere").symlink_to(tmp_path / "made")
    for name in ("link", "nowhere"):
        with pytest.raises(OSError, match="symbolic"):
            SystemDisk().open(str(tmp_path / name), CREATE)
    assert not (tmp_path / "made").exists()
