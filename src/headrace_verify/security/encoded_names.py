"""Names of another tenant that a client of one writes in another encoding, in all protocols.

Invariants: as in `tenants`. Each form is asked for a topic that the victim has and for one that it
has not: only what the client wrote may differ in the answers.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes

from headrace.records.tenant_names import CLOSE, OPEN, prefix_of
from headrace_verify.security.access_keys import Signature, route_status
from headrace_verify.security.secured import MALLORY, VICTIM, Secured, basic
from headrace_verify.security.tenants import ABSENT, HELD, is_untouched, two_tenants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.wire.abuse import Abuse

_METADATA, _DESCRIBE_GROUPS = 3, 15
_KEY: Final = prefix_of(VICTIM).encode()
_WIDE: Final = 0xFEE0
"""From a letter to its full width, of which NFKC makes the letter."""


def _overlong(text: str) -> bytes:
    """Each character in one byte more than UTF-8 allows."""
    return b"".join(
        bytes((0xC0 | point >> 6, 0x80 | point & 63)) if point < 128
        else bytes((0xE0, 0x80 | point >> 6, 0x80 | point & 63))
        for point in map(ord, text)
    )  # fmt: skip


def _forms(name: str) -> Iterator[tuple[str, bytes]]:
    """What it is, and the bytes of the other tenant's name."""
    plain = name.encode()
    wide = "".join(chr(ord(one) + _WIDE) for one in VICTIM).encode()
    yield "a separator", f"{VICTIM}/{name}".encode()
    yield "an encoded separator", f"{VICTIM}%2F{name}".encode()
    yield "a path", f"../{VICTIM}/{name}".encode()
    yield "the marks", _KEY + plain
    yield "encoded marks", quote_from_bytes(_KEY).encode() + plain
    yield "twice encoded marks", quote_from_bytes(_KEY).replace("%", "%25").encode() + plain
    yield "marks in Latin 1", f"{OPEN}{VICTIM}{CLOSE}".encode("latin-1") + plain
    yield "overlong marks", _overlong(OPEN) + VICTIM.encode() + _overlong(CLOSE) + plain
    yield "an overlong separator", VICTIM.encode() + _overlong("/") + plain
    yield "NUL before the marks", b"\0" + _KEY + plain
    yield "NUL after the marks", _KEY + b"\0" + plain
    yield "NUL at the end", _KEY + plain + b"\0"
    yield "a tenant of full width", OPEN.encode() + wide + CLOSE.encode() + plain
    yield "a combining mark", _KEY + "\u0301".encode() + plain
    yield "a byte order mark", "\ufeff".encode() + _KEY + plain


def encoded_names_reach_no_other_tenant(abuse: Abuse) -> None:
    with two_tenants(abuse) as secured:
        mine = secured.ask("POST", "/v1/keys", basic(MALLORY), {"name": "encoded"}).json()
        for (what, held), (_, absent) in zip(_forms(HELD), _forms(ABSENT), strict=True):
            _ask_http(secured, abuse, f"Bearer {mine.get('key', '')}", what, held, absent)
            _ask_kafka(secured, abuse, what, held, absent)
        _ask_rocketmq(secured, abuse)
        secured.ask("DELETE", f"/v1/keys/{mine.get('id', '')}", basic(MALLORY))
        is_untouched(abuse, secured)


def _compare(abuse: Abuse, answers: list[object], what: str, protocol: str) -> None:
    is_same = all(one == answers[0] for one in answers)
    abuse.expect(is_same, f"{what} tells by {protocol} whether another tenant has it: {answers}")


_MOMENT: Final = re.compile(r'"\w+_ms": ?\d+|[0-9a-f]{8}-[0-9a-f-]{27}')


def _ask_http(
    secured: Secured, abuse: Abuse, login: str, what: str, held: bytes, absent: bytes
) -> None:
    for path in ("/v1/topics/{}", "/v1/topics/{}/messages", "/v1/groups/{}", "/v1/queues/q/{}"):
        found: list[object] = []
        for name, raw in ((HELD, held), (ABSENT, absent)):
            target = path.format(quote_from_bytes(raw, safe=""))
            answer = secured.ask("GET", target, {"Authorization": login})
            abuse.expect("of the victim" not in answer.text, f"{what} is read: {target}")
            found.append((answer.status, _MOMENT.sub("", answer.text).replace(name, "")))
        _compare(abuse, found, what, "HTTP")


def _ask_kafka(secured: Secured, abuse: Abuse, what: str, held: bytes, absent: bytes) -> None:
    # Metadata of version 4 creates no topics: created ones would look like those that are held.
    for api, version, end in ((_METADATA, 4, b"\0"), (_DESCRIBE_GROUPS, 0, b"")):
        found: list[object] = []
        for name, raw in ((HELD, held), (ABSENT, absent)):
            body = struct.pack(">ih", 1, len(raw)) + raw + end
            frame = struct.pack(">hhih", api, version, 7, 1) + b"x" + body
            with secured.logged_in(MALLORY) as peer:
                peer.send(struct.pack(">i", len(frame)) + frame)
                answer = peer.answer()
            abuse.checked += 1
            found.append(None if answer is None else answer.replace(name.encode(), b""))
        _compare(abuse, found, what, "Kafka")


def _ask_rocketmq(secured: Secured, abuse: Abuse) -> None:
    body = {"name": "encoded calls", "kind": "rocketmq"}
    key = secured.ask("POST", "/v1/keys", basic(MALLORY), body).json()
    abuse.expect("id" in key, f"a tenant's user gets no key for RocketMQ: {key}")
    headers = Signature(key.get("id", ""), key.get("secret", "")).headers
    for (what, held), (_, absent) in zip(_forms(HELD), _forms(ABSENT), strict=True):
        found: list[object] = []
        for name, raw in ((HELD, held), (ABSENT, absent)):
            status = route_status(secured, abuse, headers, raw)
            told = None if status is None else (status.code, status.message.replace(name, ""))
            found.append(told)
        _compare(abuse, found, what, "RocketMQ")
    secured.ask("DELETE", f"/v1/keys/{key.get('id', '')}", basic(MALLORY))
