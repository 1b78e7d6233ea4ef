"""Settings of the security of listeners. See `table`."""

from __future__ import annotations

from headrace.broker.security.listener import NONE, PROTOCOLS, REQUESTED, REQUIRED
from headrace.broker.settings.kinds import OneOf, ProtocolMap, Switch
from headrace.broker.settings.setting import BrokerSetting
from headrace.metadata.endpoints import PLAINTEXT

SECURITY = (
    BrokerSetting(
        "listener.security.protocol.map",
        ProtocolMap(),
        "Security protocol of each Kafka listener: NAME:PROTOCOL,... with PLAINTEXT, SSL,"
        " SASL_PLAINTEXT or SASL_SSL. A listener named like a protocol has that protocol. Default:"
        " PLAINTEXT for all others; if the map is set, it must name them.",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.http.security.protocol",
        OneOf(PROTOCOLS),
        "Security protocol of the HTTP listener: SSL serves https. In settings of one listener,"
        " its name is `http`.",
        PLAINTEXT,
        is_common=True,
    ),
    BrokerSetting(
        "headrace.insecure",
        Switch(),
        "Allow listeners that other machines can reach and whose clients are not authenticated:"
        " PLAINTEXT, or SSL without ssl.client.auth=required. Whoever can connect may then read,"
        " write and delete everything.",
        "false",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.open.to.network",
        Switch(),
        "Has no effect: a listener whose clients are authenticated may have any address, and"
        " others need --insecure. Accepted for scripts of earlier versions.",
        "false",
    ),
    BrokerSetting(
        "ssl.client.auth",
        OneOf((NONE, REQUESTED, REQUIRED)),
        "Whether clients of SSL and https listeners must show a certificate that"
        " `ssl.truststore.*` trusts (mutual TLS). With `requested`, clients without one are"
        " anonymous.",
        NONE,
    ),
)
