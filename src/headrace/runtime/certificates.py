"""X.509 certificates: names and dates.

Invariants: reads bytes; no files, no sockets. Names come from the DER encoding, not from what
`ssl.getpeercert` makes of it, which does not tell one multi-valued RDN from several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.x509.name import NameAttribute

_KEYWORDS: Final = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
"""The types that RFC 2253 names; Java writes all others as numbers."""
_TEXTS: Final = frozenset(
    {
        _ASN1Type.UTF8String,
        _ASN1Type.PrintableString,
        _ASN1Type.IA5String,
        _ASN1Type.T61String,
    }
)
"""Other string types are written as their encoding. (Java reads the UTF-16 of a BMPString as
UTF-8.)"""
_ESCAPED: Final = frozenset(',=+<>#;"\\')


def distinguished_name(certificate: bytes) -> str:
    """The subject of a certificate (DER) as Java's `X500Principal.getName()` writes it, which is
    what Kafka's rules are written for (RFC 2253). Raises ValueError."""
    return written(x509.load_der_x509_certificate(certificate).subject)


def written(name: x509.Name) -> str:
    """A name as Java writes it: the most specific part first."""
    return ",".join("+".join(map(_attribute, part)) for part in reversed(name.rdns))


def _attribute(attribute: NameAttribute[Any]) -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    value = attribute.value
    if keyword is None or not isinstance(value, str) or attribute._type not in _TEXTS:  # noqa: SLF001 - no other way
        return f"{keyword or attribute.oid.dotted_string}=#{_der(attribute).hex()}"
    escaped = "".join(
        f"\\{one}" if one in _ESCAPED else "\\00" if one == "\0" else one for one in value
    )
    lead = len(escaped) - len(escaped.lstrip(" \r"))
    trail = len(escaped.rstrip(" \r"))
    return f"{keyword}=" + "".join(
        f"\\{one}" if not lead <= at < trail else one for at, one in enumerate(escaped)
    )


def _der(attribute: NameAttribute[Any]) -> bytes:
    """The value's encoding: the last element of a name of this attribute alone."""
    content = x509.Name([attribute]).public_bytes()
    value = attribute.value if isinstance(attribute.value, bytes) else None
    if value is not None:
        return value
    # SEQUENCE { SET { SEQUENCE { type, value } } }: skip three headers and the type.
    for _ in range(3):
        content = _inside(content)
    return content[len(content) - len(_inside(content, skip_first=True)) :]


def _inside(der: bytes, *, skip_first: bool = False) -> bytes:
    """The contents of the first element of `der`; or what follows it."""
    length, at = der[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(der[2:at])
    return der[at + length :] if skip_first else der[at : at + length]


def expiry_s(certificates: bytes) -> int:
    """When the first of the certificates (PEM) to expire does: seconds since 1970. Raises
    RequestInvalid."""
    return min(int(one.not_valid_after_utc.timestamp()) for one in _loaded(certificates))


def expiries(certificates: bytes) -> Sequence[tuple[int, str]]:
    """When each of the certificates (PEM) expires, and whose it is, the first one first. Raises
    RequestInvalid."""
    return sorted(
        (int(one.not_valid_after_utc.timestamp()), written(one.subject))
        for one in _loaded(certificates)
    )


def _loaded(certificates: bytes) -> Sequence[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(certificates)
    except ValueError as error:
        raise RequestInvalid(f"no PEM certificates ({error})") from error
