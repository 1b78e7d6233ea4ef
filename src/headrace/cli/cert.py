"""`headrace cert`: certificates of Headrace's own CAs.

Invariants: a CA's key lies beside its certificate, for its owner alone, or is written nowhere. No
file is written over unless that was asked for, and then all at once, by one for the same owner. A
renewed certificate says what the one before said, and possibly more, if the same CA had issued it.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.output import say, tell
from headrace.cli.parameters import CommandGroup
from headrace.runtime.disk import SystemDisk
from headrace.runtime.new_certificates import Authority, Certified, Pem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

OWNER_ONLY, _ALL_READ = 0o600, 0o644
CA, CA_KEY = "ca.pem", "ca.key"
CA_DAYS: Final = 3_650
"""Of a new CA: so long it can sign for others."""
_FILE_NAME: Final = re.compile(r"(?!(?i:ca)$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
discards_ca_key: Final[Callable[[Callable[..., None]], Callable[..., None]]] = click.option(
    "--discard-ca-key", is_flag=True, help="Do not keep the CA's key: it can sign no more."
)


@click.group(cls=CommandGroup)
def cert() -> None:
    """Make certificates, signed by a CA of your own."""


@cert.command(
    epilog="Example:\n\n  headrace cert dev ./certificates\n\nNot for production: the keys are not"
    " encrypted, and anyone who can read the folder can act as any client."
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--host", "hosts", multiple=True, help="Another name or address of the broker.")
@click.option("--client", default="client", show_default=True, help="Name of the client.")
@click.option("--days", type=click.IntRange(1, 3650), default=90, show_default=True)
@discards_ca_key
def dev(
    folder: Path, *, hosts: tuple[str, ...], client: str, days: int, discard_ca_key: bool
) -> None:
    """Make a CA, a broker's certificate and a client's certificate.

    Writes them into FOLDER, and prints how to start a broker and how clients connect. The broker is
    localhost, 127.0.0.1, ::1 and this machine's name. `headrace cert issue` makes more with the
    CA's key.
    """
    name = "Headrace development CA"
    write_new(folder, new_files(name, hosts, days, client, keeps_key=not discard_ca_key))
    ca, server = (shlex.quote(str(folder / name)) for name in ("ca.pem", "broker.pem"))
    cert_file, key_file = (shlex.quote(str(folder / name)) for name in ("client.pem", "client.key"))
    tell(
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


@cert.command(
    epilog="Examples:\n\n  headrace cert issue ./broker broker-2 --host 10.0.0.6\n\n"
    "  headrace cert issue ./broker alice\n\n"
    "  headrace cert issue ./broker broker --replace"
)
@click.argument("folder", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.argument("name")
@click.option("--host", "hosts", multiple=True, help="A name or address of a broker.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the new files. Default: FOLDER.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace files that exist, to renew a certificate: with its names, and --host besides.",
)
def issue(
    folder: Path, *, name: str, hosts: tuple[str, ...], days: int, out: Path | None, replace: bool
) -> None:
    """Make another certificate with the CA in FOLDER (ca.pem, ca.key).

    With --host, it is a broker's: NAME.pem holds its key, too, as ssl.keystore.location wants it.
    Otherwise it is a client's, NAME.pem and NAME.key, whose principal is User:CN=NAME. With
    --replace, what exists decides: a broker's stays a broker's, with its names, and owner and mode
    of the files stay as they are. A broker that runs reads replaced files by itself.
    """
    if _FILE_NAME.fullmatch(name) is None:
        raise CommandFailed(
            f"{name[:60]!r} cannot be the name of a file; nothing was written",
            "Use letters, digits, and . _ - (but not ca, which is the CA's)",
            USAGE,
        )
    target = out or folder
    try:
        kept = Pem((folder / CA).read_bytes(), (folder / CA_KEY).read_bytes())
        authority = Authority("", time.time_ns() // 1_000_000, kept=kept)
        if days > authority.days_left:
            raise ValueError(f"the CA is valid for another {authority.days_left} days only")
        before = _replaced(authority, target, name, hosts) if replace else None
        subject = name if before is None else before.subject
        all_hosts = [*dict.fromkeys([*(() if before is None else before.hosts), *hosts])]
        made = authority.sign(subject, all_hosts, days)
    except OSError as error:
        raise CommandFailed(
            f"{error.filename} cannot be read ({error.strerror}); nothing was written",
            "Name the folder with ca.pem and ca.key. A CA whose key was not kept signs no more:"
            " begin with a new one",
        ) from error
    except ValueError as error:
        raise CommandFailed(
            f"no certificate can be made ({error}); nothing was written",
            "Check ca.pem and ca.key, --host and --days",
            USAGE,
        ) from error
    files = (
        {f"{name}.pem": (made.key + made.certificate, OWNER_ONLY)}
        if all_hosts
        else {f"{name}.pem": (made.certificate, _ALL_READ), f"{name}.key": (made.key, OWNER_ONLY)}
    )
    write_new(target, files, is_replacing=replace)
    for file in files:
        tell(str(target / file))
    said = f"CN={name}" if before is None else before.subject.rfc4514_string()
    say(f"certified: {', '.join([said, *all_hosts])}")


def _replaced(
    authority: Authority, folder: Path, name: str, hosts: Sequence[str]
) -> Certified | None:
    """What the certificate says that is to be replaced; None: there is none. Raises
    CommandFailed."""
    path, key = folder / f"{name}.pem", folder / f"{name}.key"
    try:
        data = path.read_bytes()
        has_key = b"PRIVATE KEY-----" in data
        keys = data if has_key or not key.exists() else key.read_bytes()
        before = authority.certified(data, keys, name)
        if bool(before.hosts) != has_key or b"ENCRYPTED" in data:
            raise ValueError("its key is not where `cert issue` puts it, or is encrypted")
        if hosts and not has_key:
            raise ValueError("it is a client's, and --host is for a broker's")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandFailed(
            f"{error.filename} cannot be read ({error.strerror}); nothing was written",
            "Run as the user whose file it is",
        ) from error
    except ValueError as error:
        raise CommandFailed(
            f"{path} cannot be renewed ({error}); nothing was written",
            "Choose another name, or move the file away",
            USAGE,
        ) from error
    return before


def new_files(
    authority_name: str,
    hosts: Iterable[str],
    days: int,
    client: str | None = None,
    *,
    keeps_key: bool,
) -> dict[str, tuple[bytes, int]]:
    """A CA's certificate and its key (`keeps_key`), a broker's certificate with its key, and a
    client's if one is named: contents and modes, by file name. The broker is `hosts`, and this
    machine by its usual names.

    Raises CommandFailed.
    """
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *hosts]
    try:
        ca_days = CA_DAYS if keeps_key else days
        authority = Authority(authority_name, time.time_ns() // 1_000_000, ca_days)
        broker = authority.sign("broker", list(dict.fromkeys(names)), days)
        user = None if client is None else authority.sign(client, days=days)
    except ValueError as error:
        raise CommandFailed(
            f"no certificate can be made ({error}); nothing was written",
            "Check --host" if client is None else "Check --host and --client",
            USAGE,
        ) from error
    files = {
        CA: (authority.certificate, _ALL_READ),
        "broker.pem": (broker.key + broker.certificate, OWNER_ONLY),
    }
    if keeps_key:
        files[CA_KEY] = authority.key, OWNER_ONLY
    if user is not None:
        files["client.pem"] = user.certificate, _ALL_READ
        files["client.key"] = user.key, OWNER_ONLY
    return files


def write_new(
    folder: Path, files: dict[str, tuple[bytes, int]], *, is_replacing: bool = False
) -> None:
    """Raises CommandFailed if one of the files exists, unless `is_replacing`.

    Of several that are replaced, each is written before the first one takes its place. A crash
    between two of them leaves a key and a certificate that do not fit, which TLS refuses: the next
    `--replace` makes both again.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        present = [name for name in files if (folder / name).exists()]
        if present and not is_replacing:
            raise CommandFailed(
                f"{folder / present[0]} exists; nothing was written",
                "Name another folder, or remove the files first",
                USAGE,
            )
        for name, (data, mode) in files.items():
            _write(
                folder / (f".{name}.new" if name in present else name), data, mode, folder / name
            )
        for name in present:
            (folder / f".{name}.new").replace(folder / name)
        SystemDisk().sync_folder(str(folder))  # the names are as durable as the contents
    except OSError as error:
        raise CommandFailed(
            f"{folder} cannot be written ({error.strerror})",
            "Name another folder, or run as the user whose files these are",
        ) from error


def _write(path: Path, data: bytes, mode: int, target: Path) -> None:
    """Write a new file, which is to take the place of `target` if that is another: for the same
    owner, with the same mode. Raises OSError."""
    before = None
    if path != target:
        path.unlink(missing_ok=True)  # of a command that was killed
        before = target.lstat()
        if not stat.S_ISREG(before.st_mode):
            raise OSError(0, f"{target.name} is no ordinary file")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, mode if before is None else OWNER_ONLY), "wb") as file:
        try:
            if before is not None:
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), before.st_mode & 0o777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            path.unlink()
            raise
