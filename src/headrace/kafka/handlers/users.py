"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

Invariants: a request carries salted passwords, from which keys are derived here; neither is logged.
The result is reported for each user: all its changes, or none. Error codes are those of Kafka's
`ScramControlManager`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, cast

from headrace.broker.security.users import CredentialChange
from headrace.broker.services.tenant_view import view_of
from headrace.broker.services.user_administration import is_hidden
from headrace.errors import (
    CredentialDuplicate,
    CredentialInvalid,
    CredentialUnknown,
    HeadraceError,
    MechanismUnsupported,
)
from headrace.kafka import apis
from headrace.kafka.error_codes import NONE, code_of, message_of
from headrace.runtime.scram import SHA_256, SHA_512, credential_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire import messages
    from headrace.kafka.wire.schema import Answer

    _Item = (
        messages.AlterUserScramCredentialsRequest_ScramCredentialDeletion
        | messages.AlterUserScramCredentialsRequest_ScramCredentialUpsertion
    )

MECHANISM_IDS: Final[Mapping[str, int]] = {SHA_256: 1, SHA_512: 2}
"""Kafka's `ScramMechanism.type`. Do not change: on the wire."""
_MECHANISMS: Final = {number: name for name, number in MECHANISM_IDS.items()}
_KEY_BYTES: Final[Mapping[str, int]] = {SHA_256: 32, SHA_512: 64}


async def describe_user_scram_credentials(
    node: Node, request: messages.DescribeUserScramCredentialsRequest, context: Context
) -> Answer:
    """DescribeUserScramCredentials: mechanisms and iterations; all users for an empty list."""
    users = node.services.users
    asked = Counter(one.name for one in request.users or ())
    results = []
    prefix = view_of(node.services, context.session).prefix
    for name in asked or users.names(prefix):
        error: HeadraceError | None = None
        found: Mapping[str, int] = {}
        try:
            if asked and asked[name] > 1:
                raise CredentialDuplicate(f"the request names user {name!r} twice")
            found = users.described(name, prefix)
        except HeadraceError as refused:
            error = refused
        results.append(
            {
                "user": name,
                "error_code": code_of(error),
                "error_message": message_of(error),
                "credential_infos": [
                    {"mechanism": MECHANISM_IDS[mechanism], "iterations": iterations}
                    for mechanism, iterations in found.items()
                ],
            }
        )
    return {
        "throttle_time_ms": 0,
        "error_code": NONE,
        "error_message": None,
        "results": results,
    }


async def alter_user_scram_credentials(
    node: Node, request: messages.AlterUserScramCredentialsRequest, context: Context
) -> Answer:
    """AlterUserScramCredentials: sets and deletes credentials."""
    results: dict[str, HeadraceError | None] = {}
    changes: dict[tuple[str, int], CredentialChange] = {}
    prefix = view_of(node.services, context.session).prefix
    items: list[_Item] = [*request.deletions, *request.upsertions]
    for item in items:
        results.setdefault(item.name, None)
        try:
            if (item.name, item.mechanism) in changes:
                raise CredentialDuplicate("a credential cannot be changed twice in one request")
            changes[item.name, item.mechanism] = change = _change(item)
            if change.credential is None and is_hidden(item.name, prefix):
                raise CredentialUnknown(f"there is no user {item.name!r}")
            if change.credential is not None:
                node.services.users.check_tenant(item.name)
        except HeadraceError as error:
            results[item.name] = error
    accepted = [one for one in changes.values() if results[one.user] is None]
    request_name = apis.APIS[context.api_key].name
    results.update(await node.services.users.change(context.session, request_name, accepted))
    return {
        "throttle_time_ms": 0,
        "results": [
            {"user": user, "error_code": code_of(error), "error_message": message_of(error)}
            for user, error in results.items()
        ],
    }


def _change(item: _Item) -> CredentialChange:
    """Raises MechanismUnsupported, CredentialInvalid."""
    mechanism = _MECHANISMS.get(item.mechanism)
    if mechanism is None:
        raise MechanismUnsupported(f"unknown SCRAM mechanism {item.mechanism}")
    salted = getattr(item, "salted_password", None)
    if salted is None:
        return CredentialChange(item.name, mechanism, None)
    if len(salted) != _KEY_BYTES[mechanism]:
        raise CredentialInvalid(
            f"a salted password for {mechanism} has {_KEY_BYTES[mechanism]} bytes"
        )
    upsertion = cast("messages.AlterUserScramCredentialsRequest_ScramCredentialUpsertion", item)
    credential = credential_of(
        mechanism, bytes(salted), bytes(upsertion.salt), upsertion.iterations
    )
    return CredentialChange(item.name, mechanism, credential)


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    apis.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
}
