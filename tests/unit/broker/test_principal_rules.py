"""From a certificate to a principal's name, as Kafka does it."""

from __future__ import annotations

import time

import pytest
from cryptography import x509
from cryptography.x509 import NameAttribute, RelativeDistinguishedName
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier

from headrace.broker.security.listener import ListenerSecurity
from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.security.principal_rules import mapped_name, parse_rules
from headrace.errors import AuthenticationFailed, RequestInvalid
from headrace.runtime.certificates import distinguished_name, written
from headrace.runtime.new_certificates import Authority

CN = NameOID.COMMON_NAME
O = NameOID.ORGANIZATION_NAME  # noqa: E741 - the attribute's own name


def name(*parts: tuple[ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([NameAttribute(*part) for part in parts])


def multi_valued() -> x509.Name:
    both = [NameAttribute(CN, "alice"), NameAttribute(NameOID.USER_ID, "a1")]
    return x509.Name(
        [RelativeDistinguishedName([NameAttribute(O, "Acme")]), RelativeDistinguishedName(both)]
    )


@pytest.mark.parametrize(
    ("subject", "text"),
    [  # as Java 17 writes them
        (name((NameOID.COUNTRY_NAME, "DE"), (O, "Acme"), (CN, "alice")), "CN=alice,O=Acme,C=DE"),
        (multi_valued(), "CN=alice+UID=a1,O=Acme"),
        (name((O, "Acme, Inc"), (CN, "a,O=Evil")), r"CN=a\,O\=Evil,O=Acme\, Inc"),
        (name((CN, 'a"b\\c<d>e;f=g#h+i')), r"CN=a\"b\\c\<d\>e\;f\=g\#h\+i"),
        (name((CN, "alice"), (CN, "admin")), "CN=admin,CN=alice"),
        (name((CN, "  a b ")), r"CN=\ \ a b\ "),
        (name((CN, " ")), r"CN=\ "),
        (name((CN, "a\0b")), r"CN=a\00b"),
        (name((CN, "Zoë 東")), "CN=Zoë 東"),
        (
            name((NameOID.EMAIL_ADDRESS, "a@b.c"), (NameOID.SERIAL_NUMBER, "12"), (CN, "x")),
            "CN=x,2.5.4.5=#13023132,1.2.840.113549.1.9.1=#16056140622e63",
        ),
        (
            name((NameOID.TITLE, "x"), (ObjectIdentifier("1.2.3.4"), "v"), (CN, "x")),
            "CN=x,1.2.3.4=#0c0176,2.5.4.12=#0c0178",
        ),
        (
            name(
                (NameOID.DOMAIN_COMPONENT, "dc"),
                (NameOID.STREET_ADDRESS, "s"),
                (NameOID.STATE_OR_PROVINCE_NAME, "st"),
            ),
            "ST=st,STREET=s,DC=dc",
        ),
    ],
)
def test_names_are_written_as_java_writes_them(subject, text):
    assert written(subject) == text
    pem = Authority("ca", time.time_ns() // 1_000_000).sign(subject)
    der = x509.load_pem_x509_certificate(pem.certificate)
    from cryptography.hazmat.primitives.serialization import Encoding

    assert distinguished_name(der.public_bytes(Encoding.DER)) == text


def test_strings_of_other_kinds_are_written_as_their_bytes():
    bmp = x509.Name([NameAttribute(CN, "ab", _type=_ASN1Type.BMPString)])
    assert written(bmp) == "CN=#1e0400610062"


@pytest.mark.parametrize(
    ("rules", "subject", "expected"),
    [
        ("", "CN=a,O=b", "CN=a,O=b"),
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=svc,OU=ServiceUsers,O=U", "svc"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/L", "CN=Adm,OU=Eng,O=X", "adm@eng"),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "CN=duke,O=x", "DUKE"),
        ("RULE:^CN=(.*?)$/$1/,DEFAULT", "O=x", "O=x"),
        ("RULE:^CN=(.*?)$/$1/", "O=x", None),
        ("RULE:CN=a/x/", "CN=ab", None),  # the whole name must match
        ("RULE:CN=admin/admin/", "CN=admin,CN=alice", None),  # the second name does not help
        (r"RULE:CN=([^,]*),O=Acme/$1/", r"CN=a\,O\=Acme,O=Other", None),
        (r"RULE:CN=a\/b/x\/y/", "CN=a/b", "x/y"),
        ("RULE:CN=(a)/$1$2/", "CN=a", "a$2"),
        ("RULE:.*/x/", "abc", "xx"),  # as Java's replaceAll
        ("RULE:CN=(.*)/$1/ , DEFAULT", "CN=a", "a"),
    ],
)
def test_the_first_rule_that_fits_the_whole_name_decides(rules, subject, expected):
    assert mapped_name(parse_rules(rules), subject) == expected


@pytest.mark.parametrize(
    "rules",
    [
        "RULE:abc",
        "DEFAULT,x",
        "RULE:(?=a)/b/",
        "RULE:(a/b/",
        "RULE:a/b/X",
        "default",
        r"RULE:(a)\1/b/",
    ],
)
def test_rules_that_cannot_be_used_are_refused(rules):
    with pytest.raises(RequestInvalid, match=r"ssl\.principal\.mapping\.rules"):
        parse_rules(rules)


def test_a_rule_runs_in_linear_time():
    (rule,) = parse_rules("RULE:(a+)+b/x/")
    begun = time.process_time()
    assert rule.apply("a" * 20_000) is None
    assert time.process_time() - begun < 1


def test_a_certificate_gives_a_principal_or_none_at_all():
    from cryptography.hazmat.primitives.serialization import Encoding

    pem = Authority("ca", time.time_ns() // 1_000_000).sign("alice")
    der = x509.load_pem_x509_certificate(pem.certificate).public_bytes(Encoding.DER)
    listener = ListenerSecurity("A", rules=parse_rules("RULE:CN=(a.*)/$1/"))
    principal = listener.principal_of(der)
    assert (str(principal), principal.mechanism) == ("User:alice", "SSL")
    assert listener.principal_of(None) == ANONYMOUS
    for rules in ("RULE:CN=(b.*)/$1/", "RULE:CN=(x?).*/$1/"):  # no rule fits; an empty name
        with pytest.raises(AuthenticationFailed, match="CN=alice"):
            ListenerSecurity("A", rules=parse_rules(rules)).principal_of(der)
    with pytest.raises(AuthenticationFailed, match="cannot be read"):
        listener.principal_of(b"\x30\x00")
