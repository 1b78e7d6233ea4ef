"""Sets up the authentication of clients as the settings say.

Invariants: before any port is open. A setting that is missing refuses to start: a listener never
accepts more than was asked for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace.broker.security.oauthbearer import OAUTHBEARER
from headrace.broker.security.plain import PLAIN
from headrace.broker.settings.table import SETTINGS
from headrace.errors import ConfigInvalid
from headrace.metadata.endpoints import ROCKETMQ
from headrace.runtime.security_protocols import SASL_PLAINTEXT, SASL_SSL
from headrace.server.settings import is_authenticated, is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.node import Node
    from headrace.broker.security.tokens import Tokens
    from headrace.server.settings import Settings

log = logging.getLogger(__name__)

_JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
_ISSUER = "sasl.oauthbearer.expected.issuer"
_AUDIENCE = "sasl.oauthbearer.expected.audience"


async def set_up_authentication(node: Node, settings: Settings) -> None:
    """Make the node authenticate clients. Raises ConfigInvalid, MetadataUnavailable."""
    sasl = [
        one
        for one in settings.endpoints
        if one.security in {SASL_PLAINTEXT, SASL_SSL} and one.face != ROCKETMQ
    ]
    is_required = any(is_authenticated(settings, one) for one in settings.endpoints)
    if not is_required:
        return
    logins = node.services.authentication.logins
    await logins.secret.load()
    mechanisms: dict[str, Sequence[str]] = {}
    lifetimes: dict[str, int] = {}
    for one in sasl:
        mechanisms[one.listener] = _of(settings, one.listener, "sasl.enabled.mechanisms")
        lifetimes[one.listener] = _of(settings, one.listener, "connections.max.reauth.ms")
        is_clear = one.security == SASL_PLAINTEXT and PLAIN in mechanisms[one.listener]
        if is_clear and not is_loopback(one.host):
            log.warning(
                "listener %s takes passwords in clear text from other machines (PLAIN over"
                " SASL_PLAINTEXT): use SASL_SSL",
                one.listener,
            )
    if any(OAUTHBEARER in enabled for enabled in mechanisms.values()):
        logins = logins.with_tokens(await _tokens(node, settings))
    node.services.authentication.protect(
        logins,
        mechanisms,
        lifetimes,
        settings.inter_broker_listener,
        is_required=is_required,
    )


def _of(settings: Settings, listener: str, name: str) -> Any:
    """The value of a setting for one listener. Raises ConfigInvalid."""
    return SETTINGS[name].parse(settings.of_listener(listener, name), f"listener {listener}")


async def _tokens(node: Node, settings: Settings) -> Tokens:
    """What judges bearer tokens. Raises ConfigInvalid."""
    from headrace.broker.security.tokens import Tokens, TokenSettings
    from headrace.runtime.documents import check_document_url

    given = settings.given
    for name in (_JWKS_URL, _ISSUER, _AUDIENCE):
        if not given.get(name):
            raise ConfigInvalid(
                f"OAUTHBEARER is enabled, and {name} is not set: tokens that were issued by others,"
                " or for others, would be accepted; nothing was started"
            )
    try:
        check_document_url(given[_JWKS_URL])
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{_JWKS_URL}: {error}; nothing was started") from error
    skew = "sasl.oauthbearer.clock.skew.seconds"
    subject = "sasl.oauthbearer.sub.claim.name"
    tokens = Tokens(
        TokenSettings(
            given[_JWKS_URL],
            given[_ISSUER],
            [one.strip() for one in given[_AUDIENCE].split(",") if one.strip()],
            given.get(subject) or SETTINGS[subject].default or "",
            int(given.get(skew) or SETTINGS[skew].default or 0),
        ),
        node.clock,
        node.services.authentication.logins.threads,
    )
    await tokens.load()
    return tokens
