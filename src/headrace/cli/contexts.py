"""Contexts: named ways to reach a cluster, in a file that only its owner can read.

Invariants: a context holds addresses, names of files and a user; no password and no key. Passwords
come from a file, a keyring, the environment or a prompt, never from an argument, which `ps` shows.
A context that was not asked for by name is not used for another cluster: its credentials stay with
its addresses.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.failures import NOT_FOUND, USAGE, CommandFailed
from headrace.runtime.access import (
    CA,
    CERTIFICATE,
    KEY,
    KEY_PASSWORD,
    MECHANISM,
    PASSWORD,
    PROTOCOL,
    USER,
)
from headrace.runtime.child_process import HELPER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSWORD_VARIABLE: Final = "HEADRACE_PASSWORD"  # noqa: S105 - a name
KEY_PASSWORD_VARIABLE: Final = "HEADRACE_KEY_PASSWORD"  # noqa: S105 - a name
MECHANISM_DEFAULT: Final = "SCRAM-SHA-512"
FILE_BYTES_MAX: Final = 1024 * 1024
_PASSWORD_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Context:
    """How to reach one cluster."""

    bootstrap: str
    http: str | None = None
    tls: bool = False
    """Whether connections are encrypted; `ca` and `cert` imply it."""
    ca: str | None = None
    """File with the CA certificates that servers' certificates must descend from; None: the
    operating system's."""
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    mechanism: str | None = None
    """The SASL mechanism of `user`."""
    password_file: str | None = None
    keyring: str | None = None
    """The service under which the operating system's keyring has the password of `user`."""

    def settings(self) -> dict[str, str]:
        """The settings of a client, in librdkafka's names. Asks for a password if one is needed and
        neither file nor environment has it. Raises CommandFailed."""
        is_encrypted = self.tls or self.ca is not None or self.cert is not None
        kind = ("SASL_SSL" if is_encrypted else "SASL_PLAINTEXT") if self.user else None
        found = {PROTOCOL: kind or ("SSL" if is_encrypted else "PLAINTEXT")}
        for name, path in ((CA, self.ca), (CERTIFICATE, self.cert), (KEY, self.key)):
            if path is not None:
                found[f"{name}.location"] = path
        if self.cert is not None and self.key is None:
            found[f"{KEY}.location"] = self.cert  # librdkafka wants it named
        if self.key is not None and KEY_PASSWORD_VARIABLE in os.environ:
            found[KEY_PASSWORD] = os.environ[KEY_PASSWORD_VARIABLE]
        if self.user is not None:
            found[USER] = self.user
            found[MECHANISM] = self.mechanism or MECHANISM_DEFAULT
            found[PASSWORD] = self._password(self.user)
        return found

    def _password(self, user: str) -> str:
        if self.password_file is not None:
            return read_password(Path(self.password_file))
        if self.keyring is not None:
            return password_in_keyring(self.keyring, user)
        if password := os.environ.get(PASSWORD_VARIABLE):
            return password
        if not sys.stdin.isatty():
            raise CommandFailed(
                f"no password for user {user!r}: nothing was sent",
                f"Set {PASSWORD_VARIABLE}, or name a file with --password-file in the context, or a"
                " service of the keyring with --keyring",
                USAGE,
            )
        answer: str = click.prompt(f"Password of {user}", hide_input=True, err=True)
        return answer


def read_password(path: Path) -> str:
    """The first line of a file. Raises CommandFailed, without its contents."""
    try:
        with path.open("rb") as file:
            line = file.read(_PASSWORD_BYTES_MAX).partition(b"\n")[0]
        return line.decode().rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CommandFailed(
            f"the password file {path} cannot be read ({reason}): nothing was sent",
            "Check its name and permissions",
            USAGE,
        ) from None


def password_in_keyring(service: str, user: str) -> str:
    """The password that the keyring has for a user of a service. Raises CommandFailed, without its
    contents."""
    try:
        import keyring
    except ImportError:
        raise CommandFailed(
            "the context takes its password from a keyring, and the library is not installed:"
            " nothing was sent",
            "Install it: pip install 'headrace[keyring]'",
            USAGE,
        ) from None
    try:
        found: str | None = keyring.get_password(service, user)
        reason = "it has none"
    except Exception as error:  # noqa: BLE001 - backends raise any, with texts of their own
        found, reason = None, type(error).__name__
    if found is None:
        storing = shlex.join(["keyring", "set", service, user])
        raise CommandFailed(
            f"the keyring gives no password of user {user!r} for service {service!r} ({reason}):"
            " nothing was sent",
            f"Store it with `{storing}`, or use --password-file",
            USAGE,
        )
    return found


class Contexts:
    """The file of contexts."""

    def __init__(self, path: Path | None = None) -> None:
        """Read it. Raises CommandFailed."""
        self.path = path or default_path()
        self.by_name: dict[str, Context] = {}
        self.current: str | None = None
        try:
            with self.path.open("rb") as file:
                stored = json.loads(file.read(FILE_BYTES_MAX))
            known = {field.name for field in fields(Context)}
            for name, values in stored["contexts"].items():
                own = {key: value for key, value in values.items() if key in known}
                self.by_name[name] = Context(**own)
            self.current = stored.get("current")
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandFailed(
                f"the contexts in {self.path} cannot be read ({error})",
                "Mend the file, or move it away and add the contexts again",
                USAGE,
            ) from None

    def named(self, name: str) -> Context:
        """One context. Raises CommandFailed (not found)."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise CommandFailed(
                f"there is no context {name!r}; nothing was sent",
                f"Known: {known}. Add it with `headrace context add {name} --bootstrap ...`",
                NOT_FOUND,
            )
        return self.by_name[name]

    def save(self) -> None:
        """Replace the file, readable by its owner only. Raises CommandFailed."""
        stored: dict[str, Any] = {
            "contexts": {
                name: {key: value for key, value in asdict(one).items() if value}
                for name, one in sorted(self.by_name.items())
            }
        }
        if self.current is not None:
            stored["current"] = self.current
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(stored, file, indent=2)
                file.write("\n")
            new.replace(self.path)
        except OSError as error:
            raise CommandFailed(
                f"{self.path} cannot be written ({error.strerror}); nothing was changed",
                "Set XDG_CONFIG_HOME to a folder of yours",
            ) from error


def default_path() -> Path:
    """The file of the user who runs the command."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "headrace" / "contexts.json"


def context_for(name: str | None, *, is_bootstrap_given: bool) -> Context | None:
    """The context of a command: the named one, or else the current one, unless other brokers are
    named. Raises CommandFailed."""
    if name is not None:
        return Contexts().named(name)
    if is_bootstrap_given:
        return None
    contexts = Contexts()
    return None if contexts.current is None else contexts.named(contexts.current)


def helper_settings() -> Mapping[str, str]:
    """The settings that the broker which has started this command gives it."""
    found: dict[str, str] = json.loads(os.environ.get(HELPER_VARIABLE, "{}"))
    return found
