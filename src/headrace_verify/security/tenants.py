"""Tenants of one cluster: what a client of one must not learn of another's, nor take from it.

Invariants: as in `logins`. The tenants of a case are deleted at its end: in other cases its client
has none.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from headrace.records.tenant_names import prefix_of
from headrace_verify.kafka_wire import CREATE_TOPICS, METADATA, answer_of
from headrace_verify.security.asking import request
from headrace_verify.security.secured import (
    ADMIN,
    MALLORY,
    TIMEOUT_S,
    TRENT,
    VICTIM,
    HttpAnswer,
    Secured,
    basic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.wire.abuse import Abuse, Peer

_ATTACKER: Final = "attacker"
HELD, ABSENT = "ledgerline", "absentline"
"""Of one length: no text has them by chance."""
_MADE: Final = "made-at-its-listener"
_TOPICS_MAX: Final = 2
_STORED_MAX: Final = 50_000
STORED: Final = 0
PLACES: Final = 64
"""For clients that follow topics."""
_WRITES_MAX: Final = 2_000
"""Each of 5 KB: they take far longer than the second in which a broker notices."""
_REQUESTS: Final[tuple[tuple[str, str, Any], ...]] = (
    ("GET", "/v1/topics/{}", None),
    ("GET", "/v1/topics/{}/config", None),
    ("GET", "/v1/topics/{}/records?partition=0", None),
    ("GET", "/v1/topics/{}/messages", None),
    ("GET", "/v1/topics/{}/export", None),
    ("GET", "/v1/topics/{}/trace?message_id=x", None),
    ("GET", "/v1/topics/{}/journal/0", None),
    ("GET", "/v1/topics/{}/objects/0", None),
    ("GET", "/v1/topics/{}/delayed", None),
    ("GET", "/v1/topics/{}/half", None),
    ("GET", "/v1/dead-letters/{}", None),
    ("GET", "/v1/groups/{}", None),
    ("GET", "/v1/groups/{}/offsets", None),
    ("GET", "/v1/queues/{0}/{0}", None),
    ("PATCH", "/v1/topics/{}", {"partitions": 9}),
    ("PATCH", "/v1/topics/{}/config", {"set": {"retention.ms": "1"}}),
    ("POST", "/v1/topics/{}/records", {"records": [{"value": "of the attacker"}]}),
    ("POST", "/v1/queues/{0}/{0}/receive", {}),
    ("DELETE", "/v1/topics/{}", None),
    ("DELETE", "/v1/groups/{}", None),
)
_LISTS: Final = ("/v1/topics?limit=1000", "/v1/groups?limit=1000", "/v1/dead-letters", "/v1/keys")
_OF_OPERATORS: Final = ("/metrics", "/v1/tenants", "/v1/connections", "/v1/overview", "/v1/acls")
_CHANGING: Final = re.compile(r'"\w+_ms": ?\d+|[0-9a-f]{8}-[0-9a-f-]{27}')


@contextmanager
def two_tenants(abuse: Abuse) -> Iterator[Secured]:
    """Mallory is a tenant's; another tenant has a topic with a record, and a group."""
    secured, admin = Secured.of(abuse), basic(ADMIN)
    made = {"name": _ATTACKER, "principals": [f"User:{MALLORY}"]}
    for body in (made, {"name": VICTIM}):
        secured.ask("POST", "/v1/tenants", admin, body)
    key = prefix_of(VICTIM) + HELD
    secured.make(key)
    records = {"records": [{"value": "of the victim"}]}
    status = secured.ask("POST", f"/v1/topics/{quote(key)}/records", admin, records).status
    abuse.expect(status == 200, f"an operator cannot write to a tenant's topic: {status}")
    secured.ask("POST", f"/v1/queues/{quote(key)}/{quote(key)}/receive", admin, {})
    try:
        yield secured
    finally:
        mine = secured.ask("GET", "/v1/topics?limit=1000", basic(MALLORY)).json()
        for one in mine.get("topics", ()):
            secured.ask("DELETE", f"/v1/topics/{quote(one['name'])}", basic(MALLORY))
        secured.ask("DELETE", f"/v1/topics/{quote(key)}", admin)
        for name in (_ATTACKER, VICTIM):
            secured.ask("DELETE", f"/v1/tenants/{name}?force=true", admin)


def another_tenants_names_cannot_be_told(abuse: Abuse) -> None:
    forms = [f"{prefix}{{}}" for prefix in ("", prefix_of(VICTIM), f"{VICTIM}/")]
    with two_tenants(abuse) as secured:
        # By a key: a password takes the broker longer to check than the request.
        key = secured.ask("POST", "/v1/keys", basic(MALLORY), {"name": "of a tenant"}).json()
        client = {"Authorization": f"Bearer {key.get('key', '')}"}
        for method, path, body in _REQUESTS:
            for form in forms:
                texts = set()
                for name in (HELD, ABSENT):
                    target = path.format(quote(form.format(name), safe=""))
                    answer = secured.ask(method, target, client, body)
                    text = _CHANGING.sub("", answer.text).replace(name, "")
                    texts.add((answer.status, text))
                    abuse.expect("of the victim" not in answer.text, f"{target} is read")
                    abuse.expect(answer.status not in {0, 401}, f"{target}: {answer.status}")
                abuse.expect(len(texts) == 1, f"{method} {path} of {form}: {texts}")
        for path in _LISTS:
            text = secured.ask("GET", path, client).text
            abuse.expect(HELD not in text, f"{path} names another tenant's: {text[:200]}")
        for path in _OF_OPERATORS:
            status = secured.ask("GET", path, client).status
            abuse.expect(status == 403, f"{path} is shown to a tenant: {status}")
        secured.ask("DELETE", f"/v1/keys/{key.get('id', '')}", basic(MALLORY))
        is_untouched(abuse, secured)


def is_untouched(abuse: Abuse, secured: Secured) -> None:
    """Check that the victim's topic is as it was."""
    path = f"/v1/topics/{quote(prefix_of(VICTIM) + HELD)}"
    topic = secured.ask("GET", path, basic(ADMIN)).json()
    partitions = topic.get("partitions", [])
    ends = sum(one.get("end_offset", 0) for one in partitions)
    is_same = ends == 1 and len(partitions) < 9 and topic.get("config") == {}
    abuse.expect(is_same, f"another tenant's topic was changed: {topic}")


def a_tenants_listener_is_its_own(abuse: Abuse) -> None:
    with two_tenants(abuse) as secured:
        admin = basic(ADMIN)
        added = secured.ask("PATCH", f"/v1/tenants/{VICTIM}", admin, {"add": [f"User:{TRENT}"]})
        abuse.expect(added.status == 200, f"a tenant gets no principal: {added}")
        peer, code = secured.at_team(MALLORY)
        with peer:
            abuse.expect(code != 0, "a user of another tenant logs in at a tenant's listener")
        peer, code = secured.at_team(TRENT)
        with peer:
            abuse.expect(code == 0, f"a tenant's user cannot log in at its listener: {code}")
            names = _names(abuse, peer)
            abuse.expect(names == {HELD}, f"a tenant's user sees as its topics {names}")
            made = {"name": _MADE, "num_partitions": 1, "replication_factor": 1}
            peer.send(request(CREATE_TOPICS, 5, topics=[made], timeout=5_000))
            peer.answer()
            names = _names(abuse, peer)
            abuse.expect(names == {HELD, _MADE}, f"with one more topic it sees {names}")
        path = f"/v1/topics/{quote(prefix_of(VICTIM) + _MADE)}"
        status = secured.ask("DELETE", path, admin).status
        abuse.expect(status == 200, f"what it makes there is not a topic of its tenant: {status}")
        is_untouched(abuse, secured)


_FOREIGN: Final = (
    *(prefix_of(VICTIM) + HELD, f"{VICTIM}/{HELD}", f"//{VICTIM}/{HELD}", prefix_of(VICTIM)),
    *(
        "*",
        "",
        "«",
        f"{prefix_of(_ATTACKER)}{prefix_of(VICTIM)}{HELD}",
        f"User:{prefix_of(VICTIM)}",
    ),
    *("kafka-cluster", f"{VICTIM}/kafka-cluster", f"{prefix_of(VICTIM)}kafka-cluster", "User:"),
)
"""Names of what others have, as somebody might write them in a rule."""


def people_of_a_tenant_make_no_rule_about_others(abuse: Abuse) -> None:
    admin, client = basic(ADMIN), basic(MALLORY)
    allow = {"permission": "allow", "principal": f"User:{MALLORY}", "operation": "ALL"}
    itself = f"{prefix_of(_ATTACKER)}kafka-cluster"
    with two_tenants(abuse) as secured:
        of_operators = [
            allow | {"resource": "cluster", "name": itself},
            allow | {"permission": "deny", "resource": "topic", "name": prefix_of(VICTIM) + HELD},
        ]
        for body in of_operators:
            status = secured.ask("POST", "/v1/acls", admin, body).status
            abuse.expect(status == 200, f"an operator cannot make a rule: {status}")
        kept = _rules(secured, admin)
        for resource in ("topic", "group", "transactional-id", "user", "cluster"):
            for name in _FOREIGN:
                for pattern in ("literal", "prefixed"):
                    for principal in (f"User:{MALLORY}", "User:*"):
                        body = allow | {"resource": resource, "name": name, "pattern": pattern}
                        body["principal"] = principal
                        answer = secured.ask("POST", "/v1/acls", client, body)
                        abuse.expect(answer.status in {200, 400, 403}, f"{body}: {answer}")
        made = _rules(secured, admin)
        for one, name in made.items():
            is_own = name.removeprefix("User:").startswith(f"{_ATTACKER}/")
            abuse.expect(one in kept or is_own, f"a tenant makes a rule about {name!r}")
        shown = secured.ask("GET", "/v1/acls?limit=1000", client).text
        abuse.expect(HELD not in shown.replace(f"{VICTIM}/{HELD}", ""), "rules of others are shown")
        for one in kept:
            status = secured.ask("DELETE", f"/v1/acls/{one}", client).status
            abuse.expect(status in {403, 404}, f"a tenant removes a rule of operators: {status}")
        abuse.expect(kept.keys() <= _rules(secured, admin).keys(), "rules of operators are removed")
        path = f"/v1/topics/{quote(prefix_of(VICTIM) + HELD, safe='')}/records?partition=0"
        text = secured.ask("GET", path, client).text
        abuse.expect("of the victim" not in text, "a rule of a tenant opens another's topic")
        for one in _rules(secured, admin):
            secured.ask("DELETE", f"/v1/acls/{one}", admin)
        is_untouched(abuse, secured)


def _rules(secured: Secured, admin: dict[str, str]) -> dict[str, str]:
    """The names that rules are about, by the ids of the rules."""
    answer = secured.ask("GET", "/v1/acls?limit=1000", admin).json()
    return {one["id"]: one["name"] for one in answer["acls"]}


def _names(abuse: Abuse, peer: Peer) -> set[str]:
    """The topics that a client sees."""
    abuse.checked += 1
    peer.send(request(METADATA, 4, topics=None))
    answer = peer.answer()
    found = [] if answer is None else answer_of(METADATA, 4, answer, 1).topics
    return {str(one.name) for one in found}


def a_tenant_takes_no_more_than_its_limits(abuse: Abuse) -> None:
    client = basic(MALLORY)
    with two_tenants(abuse) as secured:
        path = f"/v1/tenants/{_ATTACKER}"
        limits = {"limits": {"topics": _TOPICS_MAX, "partitions": 100}}
        status = secured.ask("PATCH", path, basic(ADMIN), limits).status
        abuse.expect(status == 200, f"an operator cannot set limits: {status}")
        status = secured.ask("PATCH", path, client, {"limits": {"topics": None}}).status
        abuse.expect(status == 403, f"a tenant lifts its own limits: {status}")
        made = [
            secured.ask("POST", "/v1/topics", client, {"name": f"f{n}", "partitions": 2}).status
            for n in range(2 * _TOPICS_MAX)
        ]
        taken = made.count(201)
        abuse.expect(taken == _TOPICS_MAX, f"with {_TOPICS_MAX} topics allowed: {made}")
        limits = {"limits": {"topics": 100, "partitions": 2 * _TOPICS_MAX}}
        status = secured.ask("PATCH", path, basic(ADMIN), limits).status
        abuse.expect(status == 200, f"an operator cannot set other limits: {status}")
        status = secured.ask("PATCH", "/v1/topics/f0", client, {"partitions": 50}).status
        abuse.expect(status == 403, f"partitions beyond the limit are added: {status}")
        new = {"name": "beyond", "partitions": 1}
        status = secured.ask("POST", "/v1/topics", client, new).status
        abuse.expect(status == 403, f"a topic beyond the limit of partitions is made: {status}")
        is_untouched(abuse, secured)


def outcome_of(answer: HttpAnswer) -> int:
    """What became of the one record of a request: STORED, or the status of its error."""
    if answer.status != 200:
        return answer.status
    (result,) = answer.json()["results"]
    return STORED if result["ok"] else int(result["error"]["status"])


def a_tenant_does_not_fill_the_disk_of_others(abuse: Abuse) -> None:
    admin = basic(ADMIN)
    with two_tenants(abuse) as secured:
        key = secured.ask("POST", "/v1/keys", basic(MALLORY), {"name": "of a tenant"}).json()
        client = {"Authorization": f"Bearer {key.get('key', '')}"}
        path = f"/v1/tenants/{_ATTACKER}"
        limits = {"limits": {"stored_bytes": _STORED_MAX}}
        status = secured.ask("PATCH", path, admin, limits).status
        abuse.expect(status == 200, f"an operator cannot set limits: {status}")
        status = secured.ask("PATCH", path, client, {"when_full": "slow"}).status
        abuse.expect(status == 403, f"a tenant changes what happens when it is full: {status}")
        secured.ask("POST", "/v1/topics", client, {"name": "f0", "partitions": 1})
        records = {"records": [{"value": "f" * 5_000}]}
        written, result = 0, STORED
        while result == STORED and written < _WRITES_MAX:
            result = outcome_of(secured.ask("POST", "/v1/topics/f0/records", client, records))
            written += 1
        abuse.expect(result == 403, f"after {written} writes it may store more: {result}")
        of_victim = f"/v1/topics/{quote(prefix_of(VICTIM) + HELD)}/records"
        result = outcome_of(secured.ask("POST", of_victim, admin, records))
        abuse.expect(result == STORED, f"a tenant that is full keeps others out: {result}")
        secured.ask("DELETE", f"/v1/keys/{key.get('id', '')}", basic(MALLORY))


def a_tenant_leaves_places_for_streams_to_others(abuse: Abuse) -> None:
    with two_tenants(abuse) as secured, ExitStack() as held:
        key = secured.ask("POST", "/v1/keys", basic(MALLORY), {"name": "of a tenant"}).json()
        client = {"Authorization": f"Bearer {key.get('key', '')}"}
        secured.ask("POST", "/v1/topics", client, {"name": "f0", "partitions": 1})
        taken = [follows(secured, held, "/v1/topics/f0/tail", client) for _ in range(PLACES + 1)]
        abuse.expect(200 in taken, f"a tenant cannot follow its topic: {taken[0]}")
        abuse.expect(503 in taken, "a tenant follows without end")
        of_victim = f"/v1/topics/{quote(prefix_of(VICTIM) + HELD)}/tail"
        status = follows(secured, held, of_victim, basic(ADMIN))
        abuse.expect(status == 200, f"a tenant that follows keeps others out: {status}")
        secured.ask("DELETE", f"/v1/keys/{key.get('id', '')}", basic(MALLORY))


def follows(secured: Secured, held: ExitStack, path: str, headers: dict[str, str]) -> int:
    """The status of a stream, which stays open until the end of the case."""
    host, port = secured.broker.http_address
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}:{port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    peer = held.enter_context(secured.web_peer())
    peer.send("\r\n".join([*lines, "", ""]).encode())
    found = peer.receive(12, TIMEOUT_S)
    return int(found[9:12]) if found[:5] == b"HTTP/" else 0
