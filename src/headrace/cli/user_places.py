"""Where `headrace user` finds and changes users: at a broker, or in the metadata itself.

Invariants: two places with the same operations. Passwords are hashed here; what is sent to a
broker or stored are SCRAM keys.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.broker.security.users import CredentialChange
from headrace.cli.client import kafka_admin
from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.names import key_in, written_by
from headrace.errors import HeadraceError, Rejected
from headrace.records.tenant_names import name_in, prefix_of
from headrace.runtime.access import Right
from headrace.runtime.scram import (
    HASHES,
    SALT_BITS,
    ScramCredential,
    is_password,
    new_credential,
    salt_text,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from headrace.administration.cluster_settings import ClusterSettings
    from headrace.broker.security.users import Users
    from headrace.cli.session import CliSession

Found = dict[str, dict[str, int]]
"""Iterations by mechanism, by user."""
_IDS: Final[Mapping[str, int]] = {name: number for number, name in enumerate(HASHES, 1)}
"""Kafka's `ScramMechanism.type`."""
_NAMES: Final = {number: name for name, number in _IDS.items()}
_OWNER_ONLY_UMASK: Final = 0o077


def _new_salt() -> bytes:
    return salt_text(secrets.randbits(SALT_BITS))


class UserPlace(Protocol):
    """Users that can be listed and changed. Every method raises CommandFailed."""

    def find(self) -> Found:
        """All users."""
        ...

    def is_password(self, user: str, password: str) -> bool:
        """Whether it is the user's password by all mechanisms that the user has."""
        ...

    def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Sequence[str],
        iterations: int,
        dropped: Sequence[str] = (),
    ) -> None:
        """Give a user this password for these mechanisms, and take the `dropped` ones away, all at
        once."""
        ...

    def delete(self, user: str, mechanisms: Sequence[str]) -> None:
        """Take a user's credentials for these mechanisms away."""
        ...


class NamedUsers:
    """Users whose names are written in another way than their keys."""

    def __init__(
        self, place: UserPlace, key: Callable[[str], str], name: Callable[[str], str | None]
    ) -> None:
        """`name`: of a key; None: of a user that is not shown."""
        self._place, self._key, self._name = place, key, name

    def find(self) -> Found:
        """See UserPlace."""
        named = ((self._name(key), of) for key, of in self._place.find().items())
        return {name: of for name, of in named if name is not None}

    def is_password(self, user: str, password: str) -> bool:
        """See UserPlace."""
        return self._place.is_password(self._key(user), password)

    def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Sequence[str],
        iterations: int,
        dropped: Sequence[str] = (),
    ) -> None:
        """See UserPlace."""
        self._place.set_password(self._key(user), password, mechanisms, iterations, dropped)

    def delete(self, user: str, mechanisms: Sequence[str]) -> None:
        """See UserPlace."""
        self._place.delete(self._key(user), mechanisms)


def of_tenant(place: UserPlace, tenant: str) -> UserPlace:
    """The users of a tenant's own, by their names within the tenant."""
    prefix = prefix_of(tenant)
    return NamedUsers(
        place,
        lambda name: prefix + name,
        lambda key: name_in(key) if key.startswith(prefix) else None,
    )


def of_client(session: CliSession) -> UserPlace:
    """The users of a broker as the session's client writes them."""
    return NamedUsers(BrokerUsers(session), partial(key_in, session), partial(written_by, session))


class StoredUsers:
    """Users in a metadata store, which is opened without a broker."""

    def __init__(self, place: Path | ClusterSettings) -> None:
        self._place = place

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Users]:
        from headrace.administration.stored_users import open_users

        before = os.umask(_OWNER_ONLY_UMASK)  # as the broker that will use the files
        try:
            async with open_users(self._place) as users:
                yield users
        except HeadraceError as error:
            failed = CommandFailed(f"{str(error).rstrip('.')}; nothing was changed")
            failed.is_refusal = isinstance(error, Rejected)
            raise failed from error
        finally:
            os.umask(before)

    def find(self) -> Found:
        """See UserPlace."""

        async def found() -> Found:
            async with self._open() as users:
                return {name: dict(users.described(name)) for name in users.names()}

        return asyncio.run(found())

    def is_password(self, user: str, password: str) -> bool:
        """See UserPlace."""

        async def compare() -> bool:
            async with self._open() as users:
                own = {one: users.credential(user, one) for one in users.described(user)}
            return bool(own) and all(
                stored is not None and is_password(one, stored, password)
                for one, stored in own.items()
            )

        return asyncio.run(compare())

    def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Sequence[str],
        iterations: int,
        dropped: Sequence[str] = (),
    ) -> None:
        """See UserPlace."""
        made = {one: new_credential(one, password, _new_salt(), iterations) for one in mechanisms}
        changes: dict[str, ScramCredential | None] = {**made, **dict.fromkeys(dropped)}
        self._change(CredentialChange(user, *one) for one in changes.items())

    def delete(self, user: str, mechanisms: Sequence[str]) -> None:
        """See UserPlace."""
        self._change(CredentialChange(user, one, None) for one in mechanisms)

    def _change(self, changes: Any) -> None:
        async def change() -> None:
            async with self._open() as users:
                for error in (await users.change(list(changes))).values():
                    if error is not None:
                        raise error

        asyncio.run(change())


class BrokerUsers:
    """Users that a broker lists and changes (KIP-554)."""

    def __init__(self, session: CliSession) -> None:
        self._session = session

    def find(self) -> Found:
        """See UserPlace."""
        future = self._session.admin().describe_user_scram_credentials(
            request_timeout=self._session.timeout_s
        )
        described: Any = self._session.answer(future, "list users", Right("describe", "cluster"))
        return {
            name: {
                _NAMES[info.mechanism.value]: info.iterations for info in one.scram_credential_infos
            }
            for name, one in sorted(described.items())
        }

    def is_password(self, user: str, password: str) -> bool:
        """See UserPlace; a broker does not show what is stored."""
        raise CommandFailed(
            "--if-changed compares with what is stored; nothing was changed",
            "Add --data-dir or --zookeeper",
            USAGE,
        )

    def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Sequence[str],
        iterations: int,
        dropped: Sequence[str] = (),
    ) -> None:
        """See UserPlace."""
        admin: Any = kafka_admin()
        made = [
            admin.UserScramCredentialUpsertion(
                user,
                admin.ScramCredentialInfo(admin.ScramMechanism(_IDS[one]), iterations),
                password.encode(),
                _new_salt(),
            )
            for one in mechanisms
        ]
        self._alter(user, [*made, *_deletions(user, dropped)])

    def delete(self, user: str, mechanisms: Sequence[str]) -> None:
        """See UserPlace."""
        self._alter(user, _deletions(user, mechanisms))

    def _alter(self, user: str, alterations: Sequence[Any]) -> None:
        futures = self._session.admin().alter_user_scram_credentials(
            list(alterations), request_timeout=self._session.timeout_s
        )
        self._session.answer(futures[user], f"change user {user!r}", Right("alter", "cluster"))


def _deletions(user: str, mechanisms: Sequence[str]) -> list[Any]:
    admin: Any = kafka_admin()
    kind = admin.UserScramCredentialDeletion
    return [kind(user, admin.ScramMechanism(_IDS[one])) for one in mechanisms]
