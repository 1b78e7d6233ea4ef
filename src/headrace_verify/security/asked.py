"""What a client asks for by name, in each protocol, to learn from the broker's work what exists.

Invariants: as in `tenants`. Each request is refused, or finds nothing, and says so in the same way
for every name; what the broker does to find that out is measured elsewhere. None creates what it
names.
"""

from __future__ import annotations

import base64
import http.client
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from headrace.records.codec import Record, encode_batch
from headrace.rocketmq import wire
from headrace_verify.kafka_wire import (
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    answer_of,
)
from headrace_verify.security.access_keys import Signature, status_of
from headrace_verify.security.asking import DESCRIBE_CONFIGS, DESCRIBE_GROUPS, TOPIC, request
from headrace_verify.security.secured import ADMIN, AUTHENTICATE, HANDSHAKE, MALLORY, Secured, basic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from headrace_verify.wire.abuse import Abuse

INIT_PRODUCER_ID, END_TXN, HEARTBEAT, DESCRIBE_TRANSACTIONS = 22, 26, 12, 65
_BURST: Final = 10
"""Requests that are measured together, where a connection takes several at once."""
_REFUSED: Final = frozenset({403, 404})
_HOLD_ATTEMPTS, _HOLD_WAIT_S = 100, 0.3


class Ask(NamedTuple):
    """One request."""

    what: str
    prepare: Callable[[str], Callable[[], object]]
    """Returns what asks with a name, which is measured, and returns what it was told, without the
    name."""


def _at_once(ask: Callable[[str], object]) -> Callable[[str], Callable[[], object]]:
    """Of a request that needs no preparation."""
    return lambda name: partial(ask, name)


# --- HTTP ------------------------------------------------------------------------------------


@contextmanager
def by_http(abuse: Abuse, secured: Secured) -> Iterator[Sequence[Ask]]:
    """By a key: a password takes the broker longer to check than the request."""
    mine = secured.ask("POST", "/v1/keys", basic(MALLORY), {"name": "of times"}).json()
    headers = {"Authorization": f"Bearer {mine.get('key', '')}"}

    def get(path: str, name: str) -> int:
        target = path.format(quote(name, safe=""))
        status = secured.ask("GET", target, headers).status
        # For a login it would cost the same anyway.
        abuse.expect(status in _REFUSED, f"GET {target} is answered with {status}")
        return status

    paths = "/v1/topics/{}", "/v1/topics/{}/messages", "/v1/groups/{}"
    yield [Ask(f"GET {path}", _at_once(partial(get, path))) for path in paths]
    secured.ask("DELETE", f"/v1/keys/{mine.get('id', '')}", basic(MALLORY))


# --- Kafka's protocol ------------------------------------------------------------------------


def _topic_requests(name: str) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """What, API, version, values."""
    named = [{"name": name}]
    yield "Metadata", METADATA, 4, {"topics": named, "allow_auto_topic_creation": False}
    part: dict[str, Any] = {"partition_index": 0, "timestamp": -1}
    asked = [{"name": name, "partitions": [part]}]
    yield "ListOffsets", LIST_OFFSETS, 1, {"replica_id": -1, "topics": asked}
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    asked = [{"topic": name, "partitions": [part]}]
    yield "Fetch", FETCH, 4, {"replica_id": -1, "max_bytes": 1 << 20, "topics": asked}
    part = {"index": 0, "records": encode_batch([Record(0, 1_700_000_000_000, None, b"x")])}
    asked = [{"name": name, "partition_data": [part]}]
    yield "Produce", PRODUCE, 7, {"acks": -1, "timeout": 5_000, "topic_data": asked}
    one = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
    yield "DescribeConfigs", DESCRIBE_CONFIGS, 1, {"resources": [one]}


def _other_requests(name: str) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """As _topic_requests, of groups and transactional ids."""
    yield "DescribeGroups", DESCRIBE_GROUPS, 0, {"groups": (name,)}
    yield "OffsetFetch", OFFSET_FETCH, 2, {"group_id": name, "topics": ()}
    yield "Heartbeat", HEARTBEAT, 0, {"group_id": name, "generation_id": 1, "member_id": "m"}
    yield "FindCoordinator", FIND_COORDINATOR, 1, {"key": name, "key_type": 0}
    ended = {"transactional_id": name, "producer_id": 1, "producer_epoch": 0, "committed": False}
    yield "EndTxn", END_TXN, 1, ended
    yield "DescribeTransactions", DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": (name,)}


def _requests(name: str) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    yield from _topic_requests(name)
    yield from _other_requests(name)


@contextmanager
def by_kafka(abuse: Abuse, secured: Secured) -> Iterator[Sequence[Ask]]:
    """Each over a new connection, after its login: a connection remembers rights."""

    def prepare(at: int, name: str) -> Callable[[], object]:
        what, api, version, values = list(_requests(name))[at]
        sent, peer = request(api, version, **values) * _BURST, secured.logged_in(MALLORY)

        def ask() -> object:
            with peer:
                peer.send(sent)
                told = {peer.answer() for _ in range(_BURST)}
            abuse.expect(None not in told, f"{what} of {name} gets {told}")
            return {(one or b"").replace(name.encode(), b"") for one in told}

        return ask

    yield [Ask(f"{one[0]} of {{}}", partial(prepare, at)) for at, one in enumerate(_requests(""))]


def hold(abuse: Abuse, secured: Secured, name: str) -> None:
    """Make a group and a transactional id."""
    part = {"partition_index": 0, "committed_offset": 0}
    group: dict[str, Any] = {
        "group_id": name, "generation_id_or_member_epoch": -1, "retention_time": -1,
        "topics": [{"name": name, "partitions": [part]}],
    }  # fmt: skip
    made = {"transactional_id": name, "transaction_timeout": 60_000}
    for api, version, values in ((OFFSET_COMMIT, 2, group), (INIT_PRODUCER_ID, 1, made)):
        codes: list[int | None] = []
        while len(codes) < _HOLD_ATTEMPTS and codes[-1:] != [0]:  # a coordinator may be loading
            time.sleep(_HOLD_WAIT_S if codes else 0)
            with secured.logged_in(ADMIN) as peer:
                peer.send(request(api, version, **values))
                codes.append(_code(api, version, peer.answer()))
        abuse.expect(codes[-1] == 0, f"an operator cannot make {name} by API {api}: {codes[-1]}")


def _code(api: int, version: int, answer: bytes | None) -> int | None:
    """The error of an answer about one thing."""
    if answer is None:
        return None
    found = answer_of(api, version, answer, 1)
    return int((found.topics[0].partitions[0] if api == OFFSET_COMMIT else found).error_code)


# --- RocketMQ's protocol ---------------------------------------------------------------------


@contextmanager
def by_rocketmq(abuse: Abuse, secured: Secured) -> Iterator[Sequence[Ask]]:
    """With a connection for each call."""
    body = {"name": "of times, too", "kind": "rocketmq"}
    key = secured.ask("POST", "/v1/keys", basic(MALLORY), body).json()
    headers = Signature(key.get("id", ""), key.get("secret", "")).headers

    def call(rpc: str, name: str) -> object:
        topic = group = {"name": name}
        queue: dict[str, Any] = {"topic": topic, "broker": {"name": "b"}}
        message = wire.Message(topic=topic, body=b"x", system_properties={"message_id": "1"})
        requests: dict[str, dict[str, Any]] = {
            "QueryRoute": {"topic": topic},
            "QueryAssignment": {"topic": topic, "group": group},
            "SendMessage": {"messages": [message]},
            "ReceiveMessage": {"group": group, "message_queue": queue, "batch_size": 1},
            "Heartbeat": {"group": group, "client_type": wire.PUSH_CONSUMER},
        }
        sent = wire.request_of(rpc)(**requests[rpc]).SerializeToString()
        status = status_of(secured, abuse, headers, rpc, sent)
        abuse.expect(status is not None, f"{rpc} of {name} is not answered")
        return None if status is None else (status.code, status.message.replace(name, ""))

    yield [
        Ask(f"{rpc} of {{}}", _at_once(partial(call, rpc)))
        for rpc in ("QueryRoute", "QueryAssignment", "SendMessage", "ReceiveMessage", "Heartbeat")
    ]
    secured.ask("DELETE", f"/v1/keys/{key.get('id', '')}", basic(MALLORY))


PROTOCOLS: Final[Sequence[Callable[[Abuse, Secured], AbstractContextManager[Sequence[Ask]]]]] = (
    by_http,
    by_kafka,
    by_rocketmq,
)


# --- logins ----------------------------------------------------------------------------------


def logins(secured: Secured, sources: Iterator[str]) -> Iterator[Ask]:
    """Of users, by wrong passwords. Each comes from another address: one that fails often waits,
    whatever it names."""

    def basic_of(user: str) -> object:
        source = next(sources), 0
        connection = http.client.HTTPConnection(*secured.broker.http_address, 60, source)
        try:
            connection.request("GET", "/v1/topics", headers=basic(user, "wrong"))
            return connection.getresponse().read()
        finally:
            connection.close()

    def scram_of(user: str) -> object:
        with secured.peer(next(sources)) as peer:
            peer.send(request(HANDSHAKE, 1, mechanism="SCRAM-SHA-512"))
            peer.answer()
            peer.send(request(AUTHENTICATE, 0, auth_bytes=f"n,,n={user},r=abc".encode()))
            first = peer.answer() or b""
            nonce = first[first.index(b"r=") + 2 : first.index(b",s=")]
            proof = base64.b64encode(bytes(64))
            peer.send(request(AUTHENTICATE, 0, auth_bytes=b"c=biws,r=%b,p=%b" % (nonce, proof)))
            return peer.answer()

    yield Ask("a wrong password of {}", _at_once(basic_of))
    yield Ask("a wrong proof by SCRAM of {}", _at_once(scram_of))


def signature(abuse: Abuse, secured: Secured, sources: Iterator[str]) -> Ask:
    """Of access keys, by a wrong secret; as `logins`."""

    def sign(key: str) -> object:
        headers = Signature(key, "wrong").headers
        sent = wire.request_of("QueryRoute")(topic={"name": "x"}).SerializeToString()
        return str(status_of(secured, abuse, headers, "QueryRoute", sent, next(sources)))

    return Ask("a wrong signature of {}", _at_once(sign))
