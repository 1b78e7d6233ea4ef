"""Settings of the security of listeners. See `table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.listener import PROTOCOLS
from headrace.broker.settings.kinds import (
    Choices,
    OneOf,
    PathName,
    Pem,
    ProtocolMap,
    Switch,
    Text,
    UtcOffsets,
    Whole,
)
from headrace.broker.settings.setting import BrokerSetting, of_config
from headrace.runtime.security_protocols import PLAINTEXT
from headrace.runtime.tls import NONE, REQUESTED, REQUIRED, VERSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

SECURITY = (
    BrokerSetting(
        "listener.security.protocol.map",
        ProtocolMap(),
        "Security protocol of each Kafka listener: NAME:PROTOCOL,... with PLAINTEXT, SSL,"
        " SASL_PLAINTEXT or SASL_SSL. A listener named like a protocol has that protocol. Default:"
        " PLAINTEXT for all others; if the map names one of them, it must name all. HTTP listeners"
        " after the first (HTTP_2 ...) can be named, too.",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.http.security.protocol",
        OneOf(PROTOCOLS),
        "Security protocol of HTTP listeners: SSL serves https; SASL_SSL and SASL_PLAINTEXT"
        " authenticate clients, by Basic (the users of SASL) and, if OAUTHBEARER is enabled, by"
        " bearer tokens. In settings of one listener, its name is `http`.",
        PLAINTEXT,
        is_common=True,
    ),
    BrokerSetting(
        "headrace.admin.security.protocol",
        OneOf(PROTOCOLS),
        "Security protocol of --admin-address, as that of the HTTP listener. In settings of one"
        " listener, its name is `http_admin`.",
        PLAINTEXT,
    ),
    BrokerSetting(
        "headrace.rocketmq.security.protocol",
        OneOf(PROTOCOLS),
        "Security protocol of the RocketMQ listener. SASL_SSL and SASL_PLAINTEXT authenticate"
        " clients by access keys (`headrace key create --for rocketmq`). PLAINTEXT and"
        " SASL_PLAINTEXT also take clients with TLS, which is the default of some, by a"
        " certificate that no known CA has signed; the others take TLS alone, and SSL with"
        " ssl.client.auth=required gives each client the principal of its certificate. Beyond"
        " loopback, access keys need SASL_SSL. In settings of one listener, its name is"
        " `rocketmq`.",
        PLAINTEXT,
    ),
    of_config(
        "headrace.rocketmq.signature.window.ms",
        "signature_window_ms",
        Whole(1_000, 3_600_000),
        "How far the time that a RocketMQ client signs with its access key may be from the"
        " broker's. Whoever sees a signature can use it for so long.",
    ),
    of_config(
        "headrace.rocketmq.signature.utc.offsets",
        "signature_offsets_s",
        UtcOffsets(),
        "Time zones of RocketMQ clients that sign, as differences from UTC: Java's, Go's and"
        " Python's clients send their local time as if it were UTC. UTC and the broker's own time"
        " zone always count; each further one is a further time at which a signature holds.",
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
        "Listen on all interfaces, in place of loopback: at Kafka's, HTTP and RocketMQ listeners,"
        " not at --admin-address. Refused unless their clients are authenticated, as by the"
        " configuration of `headrace init --secure`, or --insecure is given. Name the address that"
        " clients reach with --advertise.",
        "false",
    ),
    BrokerSetting(
        "inter.broker.listener.name",
        Text("NAME"),
        "The Kafka listener at which brokers and workers reach each other, with its security"
        " protocol and certificates. Default: the first one.",
    ),
)

OF_ONE_LISTENER: Final[Mapping[str, Any]] = {"can_differ": True}
"""`listener.name.<name in lower case>.` before the setting's name sets it for one listener."""

TLS_OF_LISTENERS = (
    BrokerSetting(
        "headrace.tenant",
        Text("TENANT"),
        "The tenant that a listener is for, as listener.name.<name>.headrace.tenant. Principals of"
        " another tenant have no rights there. Without logins (PLAINTEXT, SSL) those of no tenant"
        " are of this one there; with logins they have no rights.",
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "headrace.sni.certificates",
        Text("NAME=PATH;..."),
        "Certificates of TLS listeners by the server name that clients ask for (SNI): PEM files"
        " with key and certificate, as ssl.keystore.location, which others get. Read again when"
        " they change.",
        is_sensitive=True,
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "headrace.sni.tenants",
        Text("NAME=TENANT;..."),
        "The tenants that connections are for, by the server name that clients ask for (SNI):"
        " principals that are not of that tenant have no rights there.",
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.client.auth",
        OneOf((NONE, REQUESTED, REQUIRED)),
        "Whether clients of SSL and https listeners must show a certificate that"
        " `ssl.truststore.*` trusts (mutual TLS). With `requested`, clients without one are"
        " anonymous.",
        NONE,
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.enabled.protocols",
        Choices(tuple(VERSIONS)),
        "TLS versions that clients may use.",
        ",".join(VERSIONS),
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.keystore.type",
        OneOf(("PEM",)),
        "Format of the certificate and key: convert others with `openssl pkcs12 -nodes`.",
        "PEM",
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.keystore.location",
        PathName(),
        "PEM file with the private key and the certificate of TLS listeners, followed by its"
        " intermediate certificates. Read again when it changes.",
        is_sensitive=True,
        is_common=True,
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.keystore.certificate.chain",
        Pem(),
        "The certificate of TLS listeners and its intermediate certificates, instead of"
        " ssl.keystore.location.",
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.keystore.key",
        Pem(),
        "The private key of ssl.keystore.certificate.chain.",
        is_sensitive=True,
        is_secret=True,
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.key.password",
        Text(),
        "Password of an encrypted private key.",
        is_sensitive=True,
        is_secret=True,
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.truststore.type",
        OneOf(("PEM",)),
        "Format of the trusted CA certificates.",
        "PEM",
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.truststore.location",
        PathName(),
        "PEM file with the CA certificates that the certificates of clients, and of other brokers,"
        " must descend from. Read again when it changes.",
        is_sensitive=True,
        is_common=True,
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.truststore.certificates",
        Pem(),
        "CA certificates, instead of ssl.truststore.location.",
        **OF_ONE_LISTENER,
    ),
    BrokerSetting(
        "ssl.principal.mapping.rules",
        Text("RULES"),
        "How the distinguished name of a client's certificate becomes the name of its principal:"
        " rules separated by commas, DEFAULT (the whole name) or RULE:pattern/replacement/ with L"
        " or U for lower or upper case. The first whose pattern matches the whole name decides; a"
        " client that none fits is refused.",
        "DEFAULT",
        **OF_ONE_LISTENER,
    ),
)
