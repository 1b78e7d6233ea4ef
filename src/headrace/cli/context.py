"""`headrace context`: named ways to reach a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from headrace.broker.security.logins import MECHANISMS
from headrace.cli.contexts import PASSWORD_VARIABLE, Context, Contexts
from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.output import print_table, say
from headrace.cli.parameters import CommandGroup

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)
_NEEDED = {"key": "cert", "mechanism": "user", "password_file": "user", "keyring": "user"}
"""Option of `add` -> the one without which it has no effect."""


@click.group(cls=CommandGroup)
def context() -> None:
    """Name clusters, and how to reach them.

    A context holds the addresses of a cluster, its CA, and a certificate or user. Commands use the
    current context, or the one named by --context or HEADRACE_CONTEXT, unless --bootstrap names
    other brokers.
    """


@context.command(
    epilog="Example:\n\n  headrace context add prod --bootstrap kafka.example:9093 --ca ca.pem"
    " --user alice"
)
@click.argument("name")
@click.option("--bootstrap", required=True, metavar="HOST[:PORT][,...]", help="Its brokers.")
@click.option(
    "--http",
    metavar="[https://]HOST:PORT",
    help="An HTTP address, if none is registered, or for a tenant's user.",
)
@click.option("--tls", is_flag=True, help="Encrypt, and trust the operating system's CAs.")
@click.option("--ca", type=_FILE, help="CA certificates of the brokers (PEM).")
@click.option("--cert", type=_FILE, help="Client certificate (PEM).")
@click.option("--key", type=_FILE, help="Its private key (PEM). Default: in the file of --cert.")
@click.option("--user", help="User of SASL.")
@click.option("--mechanism", type=click.Choice(MECHANISMS), help="Default: SCRAM-SHA-512.")
@click.option(
    "--password-file",
    type=_FILE,
    help=f"File with the user's password. Default: {PASSWORD_VARIABLE}, or a prompt.",
)
@click.option(
    "--keyring",
    metavar="SERVICE",
    help="Service under which the keyring has the user's password (keyring set SERVICE USER).",
)
def add(name: str, **values: Any) -> None:
    """Add a context, or replace it. The first one becomes the current one."""
    if not _NAME.fullmatch(name):
        raise CommandFailed(
            f"{name!r} is not a name of a context; nothing was changed",
            "Use letters, digits, dots, dashes and underscores",
            USAGE,
        )
    if values["keyring"] is not None and values["password_file"] is not None:
        raise CommandFailed(
            "--keyring and --password-file exclude each other; nothing was changed", exit_code=USAGE
        )
    for option, needed in _NEEDED.items():
        if values[option] is not None and values[needed] is None:
            raise CommandFailed(
                f"--{option.replace('_', '-')} has no effect without --{needed}; nothing was"
                " changed",
                exit_code=USAGE,
            )
    contexts = Contexts()
    contexts.by_name[name] = Context(**values)
    contexts.current = contexts.current or name
    contexts.save()
    say(f"context {name} is stored in {contexts.path}")


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Make a context the current one."""
    contexts = Contexts()
    contexts.named(name)
    contexts.current = name
    contexts.save()
    say(f"{name} is the current context")


@context.command("list")
def list_contexts() -> None:
    """List contexts; * marks the current one."""
    contexts = Contexts()
    rows = [
        (
            "*" if name == contexts.current else "",
            name,
            one.bootstrap,
            "yes" if one.tls or one.ca or one.cert else "no",
            one.user or (Path(one.cert).name if one.cert else ""),
        )
        for name, one in sorted(contexts.by_name.items())
    ]
    columns = ("", "name", "bootstrap", "tls", "user or certificate")
    print_table(
        columns, rows, empty="no contexts: headrace context add --help shows how to add one"
    )


@context.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a context."""
    contexts = Contexts()
    contexts.named(name)
    del contexts.by_name[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()
    say(f"context {name} is removed")
