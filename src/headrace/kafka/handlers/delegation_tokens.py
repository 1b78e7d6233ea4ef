"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken.

Invariants: errors and their order are those of Kafka's KafkaApis and DelegationTokenControlManager
(KIP-48, KIP-373). Requests are taken from clients that were authenticated, and not by a token.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.delegation_tokens import TOKEN_MECHANISM, DelegationToken
from headrace.broker.security.principal import ANONYMOUS, USER, Principal
from headrace.errors import (
    DelegationTokenDisabled,
    DelegationTokenRequestForbidden,
    DelegationTokenUnauthorized,
    HeadraceError,
    PrincipalTypeInvalid,
)
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.node import Node
    from headrace.broker.security.delegation_tokens import DelegationTokens
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire import messages
    from headrace.kafka.wire.schema import Answer

_NONE_MS = -1
SEEN_AT_ONCE: Final = 100


def _client(context: Context) -> Principal:
    """The client. Raises DelegationTokenRequestForbidden."""
    principal = context.session.principal
    if principal is None or principal == ANONYMOUS or principal.mechanism == TOKEN_MECHANISM:
        raise DelegationTokenRequestForbidden(
            "tokens are for clients that have authenticated by something else than a token"
        )
    return principal


def _tokens(node: Node) -> DelegationTokens:
    """Raises DelegationTokenDisabled."""
    tokens = node.services.issuers.tokens
    if not tokens.is_enabled:
        raise DelegationTokenDisabled("no listener authenticates its clients")
    return tokens


def _may(node: Node, context: Context, operation: Operation, owner: Principal) -> bool:
    kind, session, name = ResourceType.USER, context.session, str(owner)
    services = node.services
    return services.authorizer.allows(session, operation, kind, name) and (
        services.users.super_users.may_change(session, name)
    )


async def create_delegation_token(
    node: Node, request: messages.CreateDelegationTokenRequest, context: Context
) -> Answer:
    """CreateDelegationToken."""
    requester = context.session.principal or ANONYMOUS
    owner = requester
    try:
        _client(context)
        name = getattr(request, "owner_principal_name", None)
        if name:
            owner = Principal(name, request.owner_principal_type or USER)
        if owner[:2] != requester[:2] and not _may(node, context, Operation.CREATE_TOKENS, owner):
            audit, kind = node.services.audit, ResourceType.USER
            request_name = apis.APIS[context.api_key].name
            audit.denied(context.session, Operation.CREATE_TOKENS, kind, str(owner), request_name)
            raise DelegationTokenUnauthorized(f"{requester} may not create tokens of {owner}")
        renewers = [Principal(one.principal_name, one.principal_type) for one in request.renewers]
        if any(one.type != USER for one in (owner, *renewers)):
            raise PrincipalTypeInvalid("owners and renewers are principals of the type User")
        tokens = _tokens(node)
        token = await tokens.create(owner, requester, renewers, request.max_lifetime_ms)
    except HeadraceError as error:
        return _created(owner, requester, None, b"", code_of(error))
    return _created(owner, requester, token, tokens.hmac_of(token.id), 0)


def _created(
    owner: Principal,
    requester: Principal,
    token: DelegationToken | None,
    secret: bytes,
    error_code: int,
) -> Answer:
    return {
        "error_code": error_code,
        "principal_type": owner.type,
        "principal_name": owner.name,
        "token_requester_principal_type": requester.type,
        "token_requester_principal_name": requester.name,
        "issue_timestamp_ms": _NONE_MS if token is None else token.created_ms,
        "expiry_timestamp_ms": _NONE_MS if token is None else token.expires_ms,
        "max_timestamp_ms": _NONE_MS if token is None else token.max_ms,
        "token_id": "" if token is None else token.id,
        "hmac": secret,
        "throttle_time_ms": 0,
    }


async def _expiry(node: Node, context: Context, hmac: bytes, change: Callable[..., Any]) -> Answer:
    """The answer to a change of a token's expiry."""
    expires_ms, failure = _NONE_MS, None
    named: list[str] = []
    try:
        client = _client(context)
        tokens = _tokens(node)
        token = tokens.find(hmac, client)
        named = [token.id]
        expires_ms = await change(tokens, token)
    except HeadraceError as error:
        failure = error
    request = apis.APIS[context.api_key].name
    audit = node.services.audit
    note = audit.changed if named else audit.changed_frequently  # any client names what is not
    note(context.session, request, named, int(failure is not None))
    return {
        "error_code": code_of(failure),
        "expiry_timestamp_ms": expires_ms,
        "throttle_time_ms": 0,
    }


async def renew_delegation_token(
    node: Node, request: messages.RenewDelegationTokenRequest, context: Context
) -> Answer:
    """RenewDelegationToken."""

    async def change(tokens: DelegationTokens, token: DelegationToken) -> int:
        return await tokens.renew(token, request.renew_period_ms)

    return await _expiry(node, context, bytes(request.hmac), change)


async def expire_delegation_token(
    node: Node, request: messages.ExpireDelegationTokenRequest, context: Context
) -> Answer:
    """ExpireDelegationToken."""

    async def change(tokens: DelegationTokens, token: DelegationToken) -> int:
        return await tokens.expire(token, request.expiry_time_period_ms)

    return await _expiry(node, context, bytes(request.hmac), change)


async def describe_delegation_token(
    node: Node, request: messages.DescribeDelegationTokenRequest, context: Context
) -> Answer:
    """DescribeDelegationToken: the client's own tokens, and others that it may see."""
    found: list[dict[str, Any]] = []
    failure = None
    try:
        client = _client(context)
        tokens = _tokens(node)
        owners = None
        if request.owners is not None:
            owners = {(one.principal_name, one.principal_type) for one in request.owners}
        for count, token in enumerate(tokens.all(), 1):
            # As in Kafka, "owners" are those who requested a token and may renew it, too.
            is_asked = owners is None or not owners.isdisjoint(token.known_to)
            if is_asked and _may_see(node, context, client, token):
                found.append(_described(token, _password(node, context, token)))
            if count % SEEN_AT_ONCE == 0:
                await asyncio.sleep(0)  # there may be thousands, with a hundred renewers each
    except HeadraceError as error:
        failure = error
    return {"error_code": code_of(failure), "tokens": found, "throttle_time_ms": 0}


def _may_see(node: Node, context: Context, client: Principal, token: DelegationToken) -> bool:
    if token.is_known_to(client):
        return True
    kind, session = ResourceType.DELEGATION_TOKEN, context.session
    describe = Operation.DESCRIBE
    if node.services.authorizer.allows(session, describe, kind, token.id):
        return node.services.users.super_users.may_change(session, str(token.owner))
    return _may(node, context, Operation.DESCRIBE_TOKENS, token.owner)


def _password(node: Node, context: Context, token: DelegationToken) -> bytes:
    """A token's HMAC. A renewer of a super user's token gets none here: with it, it could log in as
    the super user, and to renew the token it needs to have been given it."""
    may_change = node.services.users.super_users.may_change(context.session, str(token.owner))
    return node.services.issuers.tokens.hmac_of(token.id) if may_change else b""


def _described(token: DelegationToken, secret: bytes) -> dict[str, Any]:
    return {
        "principal_type": token.owner.type,
        "principal_name": token.owner.name,
        "token_requester_principal_type": token.requester.type,
        "token_requester_principal_name": token.requester.name,
        "issue_timestamp": token.created_ms,
        "expiry_timestamp": token.expires_ms,
        "max_timestamp": token.max_ms,
        "token_id": token.id,
        "hmac": secret,
        "renewers": [
            {"principal_type": one.type, "principal_name": one.name} for one in token.renewers
        ],
    }


HANDLERS: dict[int, Handler] = {
    apis.CREATE_DELEGATION_TOKEN: create_delegation_token,
    apis.RENEW_DELEGATION_TOKEN: renew_delegation_token,
    apis.EXPIRE_DELEGATION_TOKEN: expire_delegation_token,
    apis.DESCRIBE_DELEGATION_TOKEN: describe_delegation_token,
}
