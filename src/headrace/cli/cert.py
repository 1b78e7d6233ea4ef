"""`headrace cert`: certificates for trying TLS out."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.failures import USAGE, CommandFailed
from headrace.runtime.new_certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterable

OWNER_ONLY, _ALL_READ = 0o600, 0o644


@click.group()
def cert() -> None:
    """Make certificates for trying TLS out."""


@cert.command(
    epilog="Example:\n\n  headrace cert dev ./certificates\n\nNot for production: the keys are not"
    " encrypted, and anyone who can read the folder can act as any client."
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--host", "hosts", multiple=True, help="Another name or address of the broker.")
@click.option("--client", default="client", show_default=True, help="Name of the client.")
@click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True)
def dev(folder: Path, hosts: tuple[str, ...], client: str, days: int) -> None:
    """Make a CA, a broker's certificate and a client's certificate.

    Writes them into FOLDER, and prints how to start a broker and how clients connect. The broker is
    localhost, 127.0.0.1, ::1 and this machine's name. The CA's key is not kept: to make more, begin
    with a new folder.
    """
    write_new(folder, new_files("Headrace development CA", hosts, days, client))
    ca, server = (shlex.quote(str(folder / name)) for name in ("ca.pem", "broker.pem"))
    cert_file, key_file = (shlex.quote(str(folder / name)) for name in ("client.pem", "client.key"))
    click.echo(
        f"""\
Start a broker that clients reach over mutual TLS:

  headrace serve --kafka SSL://127.0.0.1:9093 --http-security-protocol SSL \\
    --ssl-keystore-location {server} \\
    --ssl-truststore-location {ca} --ssl-client-auth required \\
    --super-users {shlex.quote(f"User:CN={client};User:CN=broker")}

Reach it from this command line:

  headrace context add dev --bootstrap 127.0.0.1:9093 \\
    --ca {ca} --cert {cert_file} --key {key_file}
  headrace --context dev info

Kafka clients (librdkafka's names):

  security.protocol=SSL
  ssl.ca.location={folder / "ca.pem"}
  ssl.certificate.location={folder / "client.pem"}
  ssl.key.location={folder / "client.key"}

Java clients:

  security.protocol=SSL
  ssl.truststore.type=PEM
  ssl.truststore.location={folder / "ca.pem"}
  ssl.keystore.type=PEM
  ssl.keystore.location=<file with client.key and client.pem, one after the other>

The client's principal is User:CN={client}, and the broker's User:CN=broker: --super-users
lets both do everything."""
    )
    sys.stdout.flush()


def new_files(
    authority_name: str, hosts: Iterable[str], days: int, client: str | None = None
) -> dict[str, tuple[bytes, int]]:
    """A CA's certificate, a broker's with its key, and a client's if one is named: contents and
    modes, by file name. The broker is `hosts`, and this machine by its usual names.

    Raises CommandFailed.
    """
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *hosts]
    try:
        authority = Authority(authority_name, time.time_ns() // 1_000_000, days)
        broker = authority.sign("broker", list(dict.fromkeys(names)), days)
        user = None if client is None else authority.sign(client, days=days)
    except ValueError as error:
        raise CommandFailed(
            f"no certificate can be made ({error}); nothing was written",
            "Check --host" if client is None else "Check --host and --client",
            USAGE,
        ) from error
    files = {
        "ca.pem": (authority.certificate, _ALL_READ),
        "broker.pem": (broker.key + broker.certificate, OWNER_ONLY),
    }
    if user is not None:
        files["client.pem"] = user.certificate, _ALL_READ
        files["client.key"] = user.key, OWNER_ONLY
    return files


def write_new(folder: Path, files: dict[str, tuple[bytes, int]]) -> None:
    """Raises CommandFailed if one of the files exists."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        present = [name for name in files if (folder / name).exists()]
        if present:
            raise CommandFailed(
                f"{folder / present[0]} exists; nothing was written",
                "Name another folder, or remove the files first",
                USAGE,
            )
        for name, (data, mode) in files.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(folder / name, flags, mode), "wb") as file:
                file.write(data)
    except OSError as error:
        raise CommandFailed(
            f"{folder} cannot be written ({error.strerror})", "Name another folder"
        ) from error
