"""`headrace init`: a folder with everything that a broker needs to be reached safely.

Invariants: writes into a new or empty folder only; the configuration comes last, so that a folder
that has one is complete. The password is printed once and stored nowhere.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Final

import click

from headrace.broker.security.users import check_name
from headrace.cli.cert import CA, CA_KEY, OWNER_ONLY, discards_ca_key, new_files, write_new
from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.parameters import Address, show_address
from headrace.cli.user import generated_password
from headrace.cli.user_places import StoredUsers
from headrace.errors import CredentialInvalid
from headrace.runtime.scram import HASHES, ITERATIONS
from headrace.server.settings import is_wildcard

_SECURE: Final = """\
# Made by `headrace init --secure`. Start the broker: headrace serve --config {path}
[serve]
data-dir = {data}
kafka = {kafka}
{advertise}http = {http}
http-security-protocol = "SASL_SSL"
ssl-keystore-location = {broker}
ssl-truststore-location = {ca}
# Access control lists are on, because clients are authenticated. These may do everything:
super-users = {super_users}
"""
_LOCAL: Final = """\
# Made by `headrace init`. Start the broker: headrace serve --config {path}
# Clients are not authenticated, so it listens on this machine alone.
[serve]
data-dir = {data}
kafka = {kafka}
http = {http}
"""
_TOLD: Final = """\
Start the broker:

  headrace serve --config {path}

The password of user {user}, which is not shown again:

  {password}

Reach it from this command line, on any machine that has ca.pem:

  headrace context add secure --bootstrap {bootstrap} --ca {ca} --user {admin}
  headrace --context secure info

Then add users, and say what each may do:

  headrace --context secure user add alice
  headrace --context secure acl add --help
{ca_key}"""
_CA_KEY: Final = """
The key of the CA is in {key}, for its owner alone. Whoever has it can make
certificates that all of your clients and brokers trust: keep it offline, and make more with it:

  headrace cert issue {folder} broker-2 --host ADDRESS"""
_NO_CA_KEY: Final = """
The key of the CA was not kept: it signs no other certificate."""


@click.command(
    epilog="Example:\n\n  headrace init --secure ./broker --kafka 10.0.0.5:9092"
    " --http 10.0.0.5:9180"
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--secure", is_flag=True, help="TLS, users, and access control lists.")
@click.option("--kafka", type=Address(), default="127.0.0.1:9092", show_default=True)
@click.option("--http", type=Address(), default="127.0.0.1:9180", show_default=True)
@click.option("--host", "hosts", multiple=True, help="Another name or address of the broker.")
@click.option("--admin", default="admin", show_default=True, help="Name of the first user.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The broker's data directory, which must be new or empty. Default: FOLDER/data.",
)
@discards_ca_key
def init(
    folder: Path,
    *,
    secure: bool,
    kafka: tuple[str, int],
    http: tuple[str, int],
    hosts: tuple[str, ...],
    admin: str,
    days: int,
    data_dir: Path | None,
    discard_ca_key: bool,
) -> None:
    """Write the configuration of a broker into a new FOLDER.

    With --secure: a certificate, a first user who may do everything and whose password is printed
    once, and listeners that accept only users over TLS. The certificate is signed by a CA that is
    made for it, and whose key is kept beside it (ca.key) for further brokers and clients.
    """
    if not secure and (hosts or admin != "admin" or days != 365 or discard_ca_key):
        raise CommandFailed(
            "--host, --admin, --days and --discard-ca-key have an effect with --secure only;"
            " nothing was written",
            "",
            USAGE,
        )
    listening = [kafka[0], http[0]]
    wildcard = next(filter(is_wildcard, listening), "")
    if wildcard and not hosts:
        raise CommandFailed(
            f"clients cannot connect to {wildcard}, which stands for every address; nothing was"
            " written",
            "Name the address that they reach with --host, or listen on it",
            USAGE,
        )
    try:
        check_name(admin)
    except CredentialInvalid as error:
        raise CommandFailed(f"{error}; nothing was written", "Check --admin", USAGE) from error
    folder = folder.absolute()
    path, data = folder / "headrace.toml", (data_dir or folder / "data").absolute()
    _require_empty(folder)
    _require_empty(data)
    if not secure:
        _write_local(path, data, show_address(kafka), show_address(http))
        return
    named = [one for one in listening if not is_wildcard(one)]
    keeps = not discard_ca_key
    write_new(folder, new_files("Headrace CA", [*hosts, *named], days, keeps_key=keeps))
    StoredUsers(data).set_password(admin, password := generated_password(), [*HASHES], ITERATIONS)
    bound = show_address(kafka)
    told = show_address((hosts[0], kafka[1])) if is_wildcard(kafka[0]) else bound
    advertise = f"advertise = {_quoted(f'SASL_SSL://{told}')}\n" if told != bound else ""
    text = _SECURE.format(
        path=path,
        data=_quoted(data),
        kafka=_quoted(f"SASL_SSL://{bound}"),
        advertise=advertise,
        http=_quoted(show_address(http)),
        broker=_quoted(folder / "broker.pem"),
        ca=_quoted(folder / CA),
        super_users=_quoted(f"User:{admin}"),
    )
    write_new(folder, {path.name: (text.encode(), OWNER_ONLY)})
    click.echo(
        _TOLD.format(
            path=shlex.quote(str(path)),
            user=admin,
            password=password,
            bootstrap=told,
            ca=shlex.quote(str(folder / CA)),
            admin=shlex.quote(admin),
            ca_key=(_CA_KEY if keeps else _NO_CA_KEY).format(
                key=folder / CA_KEY, folder=shlex.quote(str(folder))
            ),
        )
    )


def _require_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise CommandFailed(
            f"{folder} is not empty; nothing was written", "Name another folder", USAGE
        )


def _write_local(path: Path, data: Path, kafka: str, http: str) -> None:
    shown = {"data": _quoted(data), "kafka": _quoted(kafka), "http": _quoted(http)}
    text = _LOCAL.format(path=path, **shown)
    write_new(path.parent, {path.name: (text.encode(), OWNER_ONLY)})
    click.echo(f"Start the broker:\n\n  headrace serve --config {shlex.quote(str(path))}")


def _quoted(value: object) -> str:
    """A TOML string: JSON's escapes are TOML's, too."""
    return json.dumps(str(value))
