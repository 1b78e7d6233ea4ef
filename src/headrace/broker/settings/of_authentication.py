"""Settings of authentication by SASL. See `table`."""

from __future__ import annotations

from headrace.broker.security.logins import MECHANISMS
from headrace.broker.settings.kinds import Choices, Text, Whole
from headrace.broker.settings.setting import DURATION, BrokerSetting, of_config
from headrace.broker.topics.topic_config import INT64_MAX
from headrace.runtime.scram import SHA_256, SHA_512

AUTHENTICATION = (
    BrokerSetting(
        "sasl.enabled.mechanisms",
        Choices(MECHANISMS),
        "SASL mechanisms of listeners with the protocol SASL_PLAINTEXT or SASL_SSL: PLAIN,"
        " SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Users come from `headrace user` or"
        " kafka-configs.sh.",
        f"{SHA_256},{SHA_512}",
        is_common=True,
        can_differ=True,
    ),
    BrokerSetting(
        "connections.max.reauth.ms",
        DURATION,
        "After how long a client has to authenticate again, at the latest when its token expires"
        " (KIP-368). Its first other request after that closes the connection. 0: only when its"
        " token expires.",
        "0",
        can_differ=True,
    ),
    of_config(
        "delegation.token.max.lifetime.ms",
        "token_lifetime_ms_max",
        Whole(1, INT64_MAX),
        "How long a delegation token can be renewed.",
    ),
    of_config(
        "delegation.token.expiry.time.ms",
        "token_expiry_ms",
        Whole(1, INT64_MAX),
        "When a delegation token expires unless it is renewed.",
    ),
    of_config(
        "headrace.http.session.lifetime.ms",
        "browser_session_lifetime_ms",
        DURATION,
        "After how long a browser session ends, and its user has to sign in again.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.jwks.endpoint.url",
        Text("URL"),
        "OAUTHBEARER: the public keys of the token issuer, as https://HOST/PATH or file:///PATH."
        " Read before the port opens, every hour, and when a token names an unknown key.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.expected.issuer",
        Text("NAME"),
        "OAUTHBEARER: the `iss` that every token must have. Required.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.expected.audience",
        Text("NAME,..."),
        "OAUTHBEARER: the audiences of which every token must have one as `aud`. Required.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.sub.claim.name",
        Text("NAME"),
        "OAUTHBEARER: the claim that names the user.",
        "sub",
    ),
    BrokerSetting(
        "sasl.oauthbearer.clock.skew.seconds",
        Whole(0, 300),
        "OAUTHBEARER: how far the clocks of issuer and broker may differ.",
        "30",
    ),
)
