"""`headrace user`: the users that log in by SASL and HTTP Basic.

Invariants: a password comes from a prompt, a file or standard input, or is generated and printed
once; it is never an option, which every user of the machine could see. Users are changed through a
broker, or, for the first one, in the metadata itself (`--data-dir`, `--zookeeper`).
"""

from __future__ import annotations

import secrets
import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.broker.security.logins import PASSWORD_LENGTH_MAX
from headrace.broker.security.users import check_name
from headrace.cli.cluster_options import CREDENTIAL, cluster_settings, tls_options, with_tls
from headrace.cli.failures import CONFLICT, NOT_FOUND, USAGE, CommandFailed
from headrace.cli.output import AS_JSON, confirm, print_json, print_table, tell
from headrace.cli.parameters import OF_TENANT, CommandGroup, number_option
from headrace.cli.user_places import BrokerUsers, StoredUsers, of_client, of_tenant
from headrace.errors import CredentialInvalid
from headrace.runtime.scram import HASHES, ITERATIONS, ITERATIONS_MAX, ITERATIONS_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.cli.session import CliSession
    from headrace.cli.user_places import UserPlace

_SESSION_TIMEOUT_MS: Final = 6_000
_GENERATED_BYTES: Final = 18
_LIST: Final = "List users: headrace user list"


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the users are; the command gets a UserPlace first."""

    @wraps(command)
    def placed(session: CliSession, /, **values: Any) -> None:
        command(_place(session, values), **values)

    taking = tls_options(click.pass_obj(placed))
    for option in (
        click.option(
            "--zookeeper-root",
            metavar="PATH",
            default="/headrace",
            show_default=True,
            help="With --zookeeper: the ZooKeeper path of the cluster.",
        ),
        click.option(
            "--zookeeper",
            metavar="HOST:PORT,...",
            help="Use the metadata of a cluster, without a broker.",
        ),
        CREDENTIAL,
        click.option(
            "--tenant",
            metavar="NAME",
            type=OF_TENANT,
            help="Users of a tenant's own. Clients of a tenant see these alone anyway.",
        ),
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path, file_okay=False),
            help="Use the metadata in the data directory of a stand-alone broker, running or not.",
        ),
    ):
        taking = option(taking)
    return taking


def _place(session: CliSession, values: dict[str, Any]) -> UserPlace:
    """Remove the options that say where the users are. Raises CommandFailed."""
    tls, tenant = values.pop("tls"), values.pop("tenant")
    data_dir, zookeeper = values.pop("data_dir"), values.pop("zookeeper")
    root, credential = values.pop("zookeeper_root"), values.pop("zookeeper_credential_file")
    if data_dir is not None and zookeeper is not None:
        raise CommandFailed("--data-dir and --zookeeper are mutually exclusive", "", USAGE)
    quorum = (3, 3, 2)  # nothing is written that would need another value
    cluster = cluster_settings(zookeeper, root, _SESSION_TIMEOUT_MS, quorum, credential)
    place = data_dir or with_tls(cluster, tls)
    if tenant is None:
        return of_client(session) if place is None else StoredUsers(place)
    return of_tenant(BrokerUsers(session) if place is None else StoredUsers(place), tenant)


def _password_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        number_option(
            "--iterations",
            ITERATIONS,
            ITERATIONS_MIN,
            "Iterations of the password hash.",
            high=ITERATIONS_MAX,
        ),
        click.option(
            "--mechanism",
            "mechanisms",
            type=click.Choice(tuple(HASHES)),
            multiple=True,
            help="SCRAM mechanisms that the user can log in by. Default: both. PLAIN and HTTP Basic"
            " need any of them.",
        ),
        click.option("--generate", is_flag=True, help="Generate a password and print it once."),
        click.option(
            "--password-file",
            type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
            help="Read the password from a file, or from standard input (-). Default: prompt.",
        ),
    ):
        command = option(command)
    return command


def generated_password() -> str:
    """A password that nobody can guess."""
    return secrets.token_urlsafe(_GENERATED_BYTES)


def _password(path: Path | None, *, generate: bool) -> str:
    """The new password. Raises CommandFailed."""
    if generate and path is not None:
        raise CommandFailed("--generate and --password-file are mutually exclusive", "", USAGE)
    if generate:
        return generated_password()
    if path is not None:
        try:
            is_input = str(path) == "-"
            data = sys.stdin.buffer.readline() if is_input else path.read_bytes()
            password = data.decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(
                f"the password cannot be read from {path} ({type(error).__name__}); nothing was"
                " changed"
            ) from error
    elif sys.stdin.isatty():
        password = str(
            click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        )
    else:
        raise CommandFailed(
            "no password was given; nothing was changed",
            "Add --generate, --password-file FILE, or --password-file - for standard input",
            USAGE,
        )
    if not password or "\0" in password or len(password) > PASSWORD_LENGTH_MAX:
        raise CommandFailed(
            f"a password has 1 to {PASSWORD_LENGTH_MAX} characters; nothing was changed", "", USAGE
        )
    return password


@click.group(cls=CommandGroup)
def user() -> None:
    """Add, list and remove the users of listeners with SASL, and change their passwords.

    \b
    Examples:
      headrace user add admin --generate --data-dir headrace-data   # before the first start
      headrace user add alice                                       # asks for the password
      headrace user rotate alice --password-file new-password
      headrace user list
      headrace user add alice --tenant acme                         # a user of the tenant's own
      headrace user remove alice --yes

    A user may do nothing until super.users names it, or ACLs allow it. Changing or removing a user
    closes the connections that it has open. See docs/SECURITY.md.
    """


@user.command()
@click.argument("name")
@_password_options
@AS_JSON
@_place_options
def add(place: UserPlace, /, name: str, **options: Any) -> None:
    """Add a user."""
    _check_name(name)
    if name in place.find():
        raise CommandFailed(
            f"user {name!r} exists; nothing was changed",
            f"To change its password: headrace user rotate {name}",
            CONFLICT,
        )
    _set(place, name, "added", {}, **options)


@user.command()
@click.argument("name")
@_password_options
@click.option(
    "--if-changed",
    is_flag=True,
    help="Change nothing, and close no connections, if the user has this password, these mechanisms"
    " and iterations already. Needs --data-dir or --zookeeper.",
)
@AS_JSON
@_place_options
def rotate(place: UserPlace, /, name: str, if_changed: bool, **options: Any) -> None:
    """Change a user's password. Its open connections are closed."""
    found = place.find().get(name)
    if found is None:
        raise CommandFailed(f"no user {name!r}; nothing was changed", _LIST, NOT_FOUND)
    _set(place, name, "changed", found, if_changed=if_changed, **options)


def _check_name(name: str) -> None:
    try:
        check_name(name)
    except CredentialInvalid as error:
        raise CommandFailed(f"{error}; nothing was changed", "", USAGE) from error


def _set(
    place: UserPlace,
    name: str,
    done: str,
    stored: Mapping[str, int],
    *,
    password_file: Path | None,
    generate: bool,
    mechanisms: tuple[str, ...],
    iterations: int,
    as_json: bool,
    if_changed: bool = False,
) -> None:
    """`stored`: the iterations by mechanism that the user has. Mechanisms that are not chosen are
    taken away: the old password must not remain valid by one. `if_changed`: the same password, with
    the same mechanisms and iterations, is not set again."""
    password = _password(password_file, generate=generate)
    chosen = sorted(mechanisms) or list(HASHES)
    is_alike = if_changed and stored == dict.fromkeys(chosen, iterations)
    if if_changed and place.is_password(name, password) and is_alike:
        done = "unchanged"
    else:
        try:
            place.set_password(name, password, chosen, iterations, sorted({*stored} - {*chosen}))
        except CommandFailed as error:
            # The change may have been stored although no answer came.
            if generate and not error.is_refusal:
                tell(f"password, if it was set all the same: {password}", err=True)
            raise
    if as_json:
        shown = {"password": password} if generate else {}
        print_json({"user": name, "mechanisms": chosen, "iterations": iterations, **shown})
        return
    tell(f"user {name} {done} ({', '.join(chosen)})")
    if generate:
        tell(f"password: {password}")


@user.command("list")
@AS_JSON
@_place_options
def list_(place: UserPlace, /, as_json: bool) -> None:
    """List users with their mechanisms and iterations."""
    found = place.find()
    if as_json:
        users = [{"user": name, "mechanisms": of} for name, of in found.items()]
        print_json({"users": users}, is_written=True)
        return
    print_table(
        ["user", "mechanism", "iterations"],
        [
            [name, mechanism, iterations]
            for name, of in found.items()
            for mechanism, iterations in of.items()
        ],
        empty="no users: headrace user add NAME makes one"
        + (
            " (at a listener of the tenant itself, leave --tenant out)"
            if click.get_current_context().params.get("tenant")
            else ""
        ),
    )


@user.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_place_options
def remove(place: UserPlace, /, name: str, yes: bool) -> None:
    """Remove a user, and close its connections."""
    found = place.find().get(name)
    if not found:
        raise CommandFailed(f"no user {name!r}; nothing was changed", _LIST, NOT_FOUND)
    confirm(f"Remove user {name}?", is_sure=yes)
    place.delete(name, sorted(found))
    tell(f"user {name} removed")
