"""Sets up the authentication of clients as the settings say.

Invariants: before any port is open. A setting that is missing refuses to start: a listener never
accepts more than was asked for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace.broker.security.oauthbearer import OAUTHBEARER
from headrace.broker.security.plain import PLAIN
from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.settings.table import SETTINGS
from headrace.errors import ConfigInvalid
from headrace.metadata.endpoints import ROCKETMQ
from headrace.runtime.security_protocols import SASL_PLAINTEXT, SASL_SSL, SSL
from headrace.runtime.tls import REQUESTED, REQUIRED
from headrace.server.settings import is_authenticated, is_loopback

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headrace.broker.node import Node
    from headrace.broker.security.tokens import Tokens
    from headrace.metadata.endpoints import Endpoint
    from headrace.server.settings import Settings

log = logging.getLogger(__name__)

_SASL = frozenset({SASL_PLAINTEXT, SASL_SSL})

_JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
_ISSUER = "sasl.oauthbearer.expected.issuer"
_AUDIENCE = "sasl.oauthbearer.expected.audience"


def warn_of_lockout(
    settings: Settings, super_users: Collection[str], *, has_password: bool
) -> None:
    """Log that no super user can log in, where that is certain: a cluster with access control lists
    can then not be administered. `has_password`: whether a super user has one in the metadata."""

    def may_admit(one: Endpoint) -> bool:
        if one.security in _SASL:
            mechanisms = _of(settings, one.listener, "sasl.enabled.mechanisms")
            return has_password or (one.face != ROCKETMQ and OAUTHBEARER in mechanisms)
        if not is_authenticated(settings, one) and str(ANONYMOUS) in super_users:
            return True
        client_auth = settings.of_listener(one.listener, "ssl.client.auth")
        return one.security == SSL and client_auth in {REQUESTED, REQUIRED}

    if not super_users or not any(map(may_admit, settings.endpoints)):
        log.warning(
            "no super user can log in (super.users=%s), so that only principals whom rules allow it"
            " administer this cluster: restart the broker with --super-users, or give a super user"
            " a password (headrace user add NAME --generate, with --data-dir while the broker is"
            " stopped, or --zookeeper)",
            ";".join(sorted(super_users)),
        )


async def set_up_authentication(node: Node, settings: Settings) -> None:
    """Make the node authenticate clients. Raises ConfigInvalid, MetadataUnavailable."""
    sasl = [one for one in settings.endpoints if one.security in _SASL and one.face != ROCKETMQ]
    if node.access is not None:
        has_password = bool(node.services.users.super_users.with_password())
        warn_of_lockout(settings, node.access.super_users, has_password=has_password)
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
