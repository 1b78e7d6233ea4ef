"""The certificates of a broker's listeners: read at the start, and again when their files change.

Invariants: a listener always has a complete set, certificate, key and trusted CAs of one reading; a
set that cannot be used is reported and leaves the one before in place. Connections keep what they
were made with. Keys and passwords are never logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.broker_config import ACL
from headrace.broker.security.listener import ListenerSecurity
from headrace.broker.security.principal_rules import parse_rules
from headrace.errors import RequestInvalid
from headrace.metadata.endpoints import ROCKETMQ
from headrace.records.tenant_names import TENANT
from headrace.runtime.access import CA, CERTIFICATE, KEY, KEY_PASSWORD, PROTOCOL
from headrace.runtime.fair_locks import FairLock
from headrace.runtime.figures import Figures
from headrace.runtime.security_protocols import SASL_SSL, SSL
from headrace.runtime.tasks import Tasks
from headrace.runtime.tls import (
    PEM_BYTES_MAX,
    CurrentContext,
    TlsMaterial,
    peer_context,
    report_handshakes,
    serve_names,
    server_context,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.metadata.endpoints import Endpoint
    from headrace.runtime.clock import Clock
    from headrace.server.settings import Settings

log = logging.getLogger(__name__)

WATCH_S: Final = 2.0
"""Between looks at the files."""
WARNING_S: Final = 30 * 24 * 3600
"""Certificates that expire sooner are reported, once a day."""
REPORT_S: Final = 24 * 3600
_LOCATIONS: Final = ("ssl.keystore.location", "ssl.truststore.location")
_Stamp = tuple[int, int, int]


class Expiry(NamedTuple):
    """When a certificate of a listener expires."""

    listener: str
    server_name: str
    """Whose certificate it is (`headrace.sni.certificates`); empty: the listener's own."""
    at_s: int
    """Seconds since 1970."""


class TrustExpiry(NamedTuple):
    """When the first of the CA certificates that a listener trusts expires."""

    listener: str
    subject: str
    at_s: int
    """Seconds since 1970."""


class ListenerTls:
    """The TLS contexts of one listener."""

    def __init__(self, settings: Settings, listener: str) -> None:
        """Read what the settings name. Raises RequestInvalid."""
        self._settings = settings
        self.listener = listener
        self._names = by_server_name(self._value("headrace.sni.certificates"))
        self._stamps = self._read_stamps()
        material = self.read()
        named = self._read_named(material)
        self.server = CurrentContext.of(self._server_context(material, named))
        self.peer: CurrentContext | None = None
        """For connections to this listener of other brokers; None without trusted CAs."""
        if material.trust:
            self.peer = CurrentContext.of(peer_context(material))
        self.expiries_s = _expiries_s({"": material, **named})
        """When each certificate expires, by server name; the listener's own is that of ""."""
        self.trust_expiry = _trust_expiry(listener, material)
        """None: it trusts no CA."""

    @property
    def has_changed(self) -> bool:
        """Whether a file differs from what was read last. Blocks."""
        return self._read_stamps() != self._stamps

    def reload(self) -> None:
        """Read the files again, for connections from now on. Raises RequestInvalid: nothing has
        changed then. Blocks."""
        self._stamps = self._read_stamps()
        material = self.read()
        named = self._read_named(material)
        server = self._server_context(material, named)
        peer = peer_context(material) if material.trust else None
        expiries_s = _expiries_s({"": material, **named})
        trust_expiry = _trust_expiry(self.listener, material)
        self.server.current = server
        if self.peer is not None and peer is not None:
            self.peer.current = peer
        self.expiries_s, self.trust_expiry = expiries_s, trust_expiry

    def _server_context(
        self, material: TlsMaterial, named: Mapping[str, TlsMaterial]
    ) -> ssl.SSLContext:
        context = server_context(material)
        report_handshakes(context, self.listener)
        if self._names or self._value("headrace.sni.tenants"):
            serve_names(context, {name: server_context(one) for name, one in named.items()})
        return context

    def _read_named(self, material: TlsMaterial) -> Mapping[str, TlsMaterial]:
        given = material._replace(key=b"")
        return {
            name: given._replace(chain=self._contents_of(path))
            for name, path in self._names.items()
        }

    def _contents_of(self, path: str) -> bytes:
        try:
            return _contents(path)
        except RequestInvalid as error:
            raise RequestInvalid(f"TLS of listener {self.listener}: {error}") from error

    def _value(self, name: str) -> str:
        return self._settings.of_listener(self.listener, name) or ""

    def read(self) -> TlsMaterial:
        """What the settings and files hold now. Raises RequestInvalid, naming the listener."""
        chain, key = self._value("ssl.keystore.certificate.chain"), self._value("ssl.keystore.key")
        trust = self._value("ssl.truststore.certificates")
        keystore, truststore = map(self._value, _LOCATIONS)
        try:
            if keystore and (chain or key):
                raise RequestInvalid(
                    "ssl.keystore.location and ssl.keystore.certificate.chain or ssl.keystore.key"
                    " are both set: remove one"
                )
            if truststore and trust:
                raise RequestInvalid(
                    "ssl.truststore.location and ssl.truststore.certificates are both set: remove"
                    " one"
                )
            material = TlsMaterial(
                _contents(keystore) if keystore else chain.encode(),
                key.encode(),
                self._value("ssl.key.password"),
                _contents(truststore) if truststore else trust.encode(),
                self._value("ssl.client.auth"),
                tuple(self._value("ssl.enabled.protocols").split(",")),
            )
            if not material.chain:
                raise RequestInvalid(
                    "it has no certificate: set ssl.keystore.location to a PEM file with the"
                    " private key and the certificate (`headrace cert dev` makes one for trying"
                    " it out)"
                )
        except RequestInvalid as error:
            raise RequestInvalid(f"TLS of listener {self.listener}: {error}") from error
        return material

    def _read_stamps(self) -> list[_Stamp | None]:
        paths = [path for name in _LOCATIONS if (path := self._value(name))]
        return [_stamp(path) for path in (*paths, *self._names.values())]


def by_server_name(text: str) -> Mapping[str, str]:
    """What is set for each server name: `acme.example.com=acme;beta.example.com=beta`. Raises
    RequestInvalid."""
    found: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in text.split(";"))):
        name, value = (one.strip() for one in part.partition("=")[::2])
        if not name or not value or name.lower() in found:
            raise RequestInvalid(
                f"{part[:60]!r} in headrace.sni.certificates or headrace.sni.tenants is not"
                " NAME=VALUE with a name of its own; nothing was started"
            )
        found[name.lower()] = value
    return found


def check_bound(tenant: str, listener: str, config: BrokerConfig, *, is_possible: bool) -> None:
    """Raise RequestInvalid unless a listener can be bound to a tenant."""
    if re.fullmatch(TENANT, tenant) is None:
        problem = "is not a valid tenant name: use 1 to 32 of a-z 0-9 and -, but not - first"
    elif config.authorizer != ACL:
        problem = "needs headrace.authorizer=acl"
    elif not is_possible:
        problem = "is not possible: RocketMQ's clients are of the tenant of their access key"
    else:
        return
    raise RequestInvalid(
        f"the tenant {tenant!r} of listener {listener} (headrace.tenant, headrace.sni.tenants)"
        f" {problem}; nothing was started"
    )


def _contents(path: str) -> bytes:
    """A whole file. Raises RequestInvalid."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise RequestInvalid(f"{path} cannot be read ({error.strerror})") from error
    if len(data) > PEM_BYTES_MAX or b"-----BEGIN " not in data:
        raise RequestInvalid(
            f"{path} holds no PEM (-----BEGIN ...): convert a keystore with `openssl pkcs12 -nodes`"
        )
    return data


def _stamp(path: str) -> _Stamp | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _expiries_s(materials: Mapping[str, TlsMaterial]) -> Mapping[str, int]:
    from headrace.runtime.certificates import expiry_s

    return {name: expiry_s(one.chain) for name, one in materials.items()}


def _trust_expiry(listener: str, material: TlsMaterial) -> TrustExpiry | None:
    from headrace.runtime.certificates import expiries

    if not material.trust:
        return None
    at_s, subject = expiries(material.trust)[0]
    return TrustExpiry(listener, subject, at_s)


class Certificates:
    """The security of all listeners of one broker."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Raises RequestInvalid if a certificate, key or rule cannot be used."""
        self._settings = settings
        self._clock = clock
        self._reported_ms: dict[str, int] = {}
        self._reading = FairLock()
        self._tasks = Tasks()
        self.tls: dict[str, ListenerTls] = {
            one.listener: ListenerTls(settings, one.listener)
            for one in settings.endpoints
            if one.security in {SSL, SASL_SSL}
        }
        self.listeners = {one.listener: self._listener(one) for one in settings.endpoints}
        """The security of each listener, by name."""
        self.peers = self._peers()
        """For connections to other brokers; None: their listener is not encrypted."""

    def _listener(self, endpoint: Endpoint) -> ListenerSecurity:
        name = endpoint.listener
        found = self.tls.get(name)
        of_listener = self._settings.of_listener
        tenant = of_listener(name, "headrace.tenant") or ""
        names = by_server_name(of_listener(name, "headrace.sni.tenants") or "")
        for one in filter(None, (tenant, *names.values())):
            check_bound(
                one, name, is_possible=endpoint.face != ROCKETMQ, config=self._settings.broker
            )
        if found is None:
            return ListenerSecurity(name, endpoint.security, tenant=tenant)
        rules = parse_rules(of_listener(name, "ssl.principal.mapping.rules") or "")
        return ListenerSecurity(name, endpoint.security, found.server, rules, tenant, names)

    def _peers(self) -> ssl.SSLContext | None:
        """Raises RequestInvalid if there may be other brokers, and no CAs that their certificates
        descend from."""
        name = self._settings.inter_broker_listener
        found = self.tls.get(name)
        if found is None:
            return None
        if found.peer is None and self._settings.has_peers:
            raise RequestInvalid(
                f"brokers connect to each other at listener {name}, over TLS, and would trust any"
                " certificate: set ssl.truststore.location to the CA of the brokers' certificates;"
                " nothing was started"
            )
        return found.peer

    def helper_settings(self) -> Mapping[str, str]:
        """What commands that this broker starts need for TLS with its inter-broker listener, in
        librdkafka's names. Holds the private key. Raises RequestInvalid."""
        found = self.tls.get(self._settings.inter_broker_listener)
        if found is None:
            return {}
        material = found.read()
        texts = {
            f"{CA}.pem": material.trust,
            f"{CERTIFICATE}.pem": material.chain,
            f"{KEY}.pem": material.key or material.chain,
            KEY_PASSWORD: material.password.encode(),
        }
        given = {name: text.decode() for name, text in texts.items() if text}
        return {PROTOCOL: SSL, **given}

    def figures(self) -> Iterable[Figures]:
        """See `runtime.figures`."""
        expiries = self.expiries()
        if expiries:
            now_s = self._clock.now_ms() / 1_000
            seconds = Figures("headrace_certificate_expires_seconds")
            for listener, server_name, at_s in expiries:
                seconds.add([listener, server_name], at_s - now_s)
            yield seconds
            of_trust = Figures("headrace_trusted_ca_expires_seconds")
            for one in self.trust_expiries():
                of_trust.add([one.listener], one.at_s - now_s)
            yield of_trust

    def expiries(self) -> Sequence[Expiry]:
        """When the certificates in use expire."""
        return [
            Expiry(listener, name, at_s)
            for listener, one in self.tls.items()
            for name, at_s in one.expiries_s.items()
        ]

    def trust_expiries(self) -> Sequence[TrustExpiry]:
        """When the first CA certificate that each listener trusts expires."""
        found = (one.trust_expiry for one in self.tls.values())
        return [one for one in found if one is not None]

    async def _watch(self) -> None:
        while True:
            self.report_expiries()
            await asyncio.sleep(WATCH_S)
            await self._reload_quietly(is_forced=False)

    async def _reload_quietly(self, *, is_forced: bool) -> None:
        with contextlib.suppress(RequestInvalid):  # it is logged
            await self.reload(is_forced=is_forced)

    def reload_soon(self) -> None:
        """Read all files again in a task."""
        self._tasks.spawn(self._reload_quietly(is_forced=True), "certificates")

    async def close(self) -> None:
        """Stop following the files."""
        await self._tasks.close()

    def start(self) -> None:
        """Follow the files, and report certificates that expire soon."""
        if self.tls:
            self._tasks.spawn(self._watch(), "certificates")

    async def reload(self, *, is_forced: bool = True) -> None:
        """Read the files of all listeners, if they have changed or `is_forced`.

        Raises RequestInvalid, and logs, if some cannot be used: the ones before stay.
        """
        loop = asyncio.get_running_loop()
        failed: RequestInvalid | None = None
        async with self._reading:
            for one in self.tls.values():
                try:
                    await loop.run_in_executor(None, _reload, one, is_forced)
                except RequestInvalid as error:
                    failed = error
                    log.error(  # noqa: TRY400 - the message says where
                        "the new certificates are not used, new connections get the ones before:"
                        " %s",
                        error,
                    )
        if failed is not None:
            raise failed

    def report_expiries(self) -> None:
        """Log certificates, and trusted CAs, that have expired or will do so soon."""
        for listener, name, at_s in self.expiries():
            which = f"{listener} for server name {name}" if name else listener
            self._report(f"the certificate of listener {which}", at_s, "replace its file")
        for listener, subject, at_s in self.trust_expiries():
            what = f"the CA {subject}, which listener {listener} trusts,"
            self._report(
                what,
                at_s,
                "certificates that it has signed are refused then: replace it in ssl.truststore.*",
            )

    def _report(self, what: str, at_s: int, next_step: str) -> None:
        """Log this if it has expired or will do so soon, once a day."""
        now_ms = self._clock.now_ms()
        left_s = at_s - now_ms // 1000
        last_ms = self._reported_ms.get(what)
        is_due = last_ms is None or now_ms - last_ms >= REPORT_S * 1000
        if left_s > WARNING_S or not is_due:
            return
        self._reported_ms[what] = now_ms
        if left_s <= 0:
            log.error("%s has expired: %s", what, next_step)
        else:
            log.warning("%s expires in %d days: %s", what, left_s // 86_400, next_step)


def _reload(tls: ListenerTls, is_forced: bool) -> None:
    if not is_forced and not tls.has_changed:
        return
    tls.reload()
    log.info("listener %s has read its certificates again", tls.listener)
