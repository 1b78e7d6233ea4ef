"""New certificates of Headrace's own: an authority, and what it signs.

Invariants: makes PEM in memory; no files. ECDSA on P-256, SHA-256, as RFC 5280 wants it (Python
3.13 and Java verify strictly). An authority's key is not encrypted, and nothing is revoked.
"""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

_DAY: Final = datetime.timedelta(days=1)
_SKEW: Final = datetime.timedelta(minutes=5)
"""Clocks of other machines may be behind."""


class Pem(NamedTuple):
    """A certificate and its private key."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Pem(...)"  # never a key in a log


class Certified(NamedTuple):
    """What a certificate says, and a renewed one says again."""

    subject: x509.Name
    hosts: Sequence[str]
    """The names and addresses of a server; of a client, none."""


def _said(certificate: x509.Certificate) -> Certified:
    """Raises ValueError if an Authority makes no such certificate, so that another one in its place
    would not say the same."""
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound as error:
        raise ValueError("it does not say what it is for") from error
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return Certified(certificate.subject, ())
    are_hosts = all(isinstance(one, x509.DNSName | x509.IPAddress) for one in found)
    if not are_hosts or ExtendedKeyUsageOID.SERVER_AUTH not in usages:
        raise ValueError("it has names of other kinds than a broker's")
    return Certified(certificate.subject, [str(one.value) for one in found])


class Authority:
    """A CA: a new one, or one whose certificate and key were kept."""

    def __init__(self, name: str, now_ms: int, days: int = 365, kept: Pem | None = None) -> None:
        """Raises ValueError if what was kept is not the certificate and key of such a CA."""
        self._now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
        if kept is not None:
            self._certificate, self._key = _read(kept)
            self._name = self._certificate.subject
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _common_name(name)
        key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = (
            self._builder(self._name, self._key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_ca=True), critical=True)
            .add_extension(key_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """The CA's certificate in PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The CA's private key in PEM, not encrypted."""
        return _key_text(self._key)

    @property
    def days_left(self) -> int:
        """For how many whole days the CA is valid: nothing that it signs is accepted after that."""
        return (self._certificate.not_valid_after_utc - self._now) // _DAY

    def certified(self, pem: bytes, keys: bytes, name: str) -> Certified:
        """What the first certificate of a file says. Raises ValueError unless this CA issued it,
        and that for `name` or for who has `keys`: the file may be another's, and certificates are
        public, so that anybody can put any into it."""
        certificate = x509.load_pem_x509_certificate(pem)
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, TypeError, ValueError) as error:
            raise ValueError("this CA did not issue it") from error
        found = _said(certificate)
        if found.subject != _common_name(name):
            _check_pair(certificate, keys, f"it is for {found.subject.rfc4514_string()}, whose key")
        return found

    def sign(
        self, name: str | x509.Name, hosts: Sequence[str] = (), days: int = 365, password: str = ""
    ) -> Pem:
        """A new key and its certificate, for a client, or for a server that is called `hosts`.

        `days`: of validity from now; negative: it has expired. `password`: encrypts the key.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = name
        if isinstance(subject, str):
            subject = _common_name(subject)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]  # brokers are each other's clients
        if hosts:
            usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            self._builder(subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(authority_id, critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pem(certificate.public_bytes(serialization.Encoding.PEM), _key_text(key, password))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
    ) -> x509.CertificateBuilder:
        end = self._now + days * _DAY
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(self._now, end - _DAY) - _SKEW)
            .not_valid_after(end)
        )


def _key_text(key: ec.EllipticCurvePrivateKey, password: str = "") -> bytes:
    encryption = (
        serialization.BestAvailableEncryption(password.encode())
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def _read(kept: Pem) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Raises ValueError."""
    certificate = x509.load_pem_x509_certificate(kept.certificate)
    return certificate, _check_pair(certificate, kept.key, "the key of the CA")


def _check_pair(certificate: x509.Certificate, pem: bytes, what: str) -> ec.EllipticCurvePrivateKey:
    """The key of a certificate. Raises ValueError if the first key of a file is another."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except TypeError as error:
        raise ValueError(f"{what} is encrypted") from error
    except ValueError as error:
        raise ValueError(f"{what} is not there") from error
    is_curve = isinstance(key, ec.EllipticCurvePrivateKey)
    if not is_curve or key.public_key() != certificate.public_key():
        raise ValueError(f"{what} is another than its certificate's")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
