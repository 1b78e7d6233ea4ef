"""What one user makes in a broker leaves room for others.

Invariants: as in `logins`. The bounds are set low for the case, and reset at its end.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from headrace_verify.kafka_wire import INIT_PRODUCER_ID, OFFSET_COMMIT, answer_of
from headrace_verify.security.asking import request
from headrace_verify.security.secured import ADMIN, MALLORY, TRENT, Secured, basic
from headrace_verify.security.tenants import PLACES, STORED, follows, outcome_of

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse, Peer

_NAME: Final = "room"
"""Of the topic, and what precedes all other names."""
_HEARTBEAT: Final = 68
_SHARE_HEARTBEAT: Final = 76
_BOUND: Final = 60
_SAID_BYTES: Final = 4_000
_BOUNDS: Final = {
    "headrace.groups.max": str(_BOUND),
    "headrace.transactional.ids.max": str(_BOUND),
    "headrace.group.members.max.bytes": str(_BOUND * 1_000),
    "headrace.delayed.max.bytes": str(_BOUND * 300),
}
_CONFIG: Final = "/v1/cluster/config"


def a_user_leaves_room_for_others(abuse: Abuse) -> None:
    secured, admin = Secured.of(abuse), basic(ADMIN)
    secured.make(_NAME)
    delayed = {"name": f"{_NAME}-d", "config": {"headrace.message.attributes": "read"}}
    status = secured.ask("POST", "/v1/topics", admin, delayed).status
    abuse.expect(status in {200, 201, 409}, f"a topic is not made: {status}")
    for user in (MALLORY, TRENT):
        for resource, operation in (
            ("topic", "READ"),
            ("topic", "WRITE"),
            ("group", "READ"),
            ("transactional-id", "WRITE"),
        ):
            rule = {"principal": f"User:{user}", "permission": "allow", "operation": operation}
            rule |= {"resource": resource, "name": _NAME, "pattern": "prefixed"}
            status = secured.ask("POST", "/v1/acls", admin, rule).status
            abuse.expect(status in {200, 201}, f"a rule is not made: {status}")
    try:
        status = secured.ask("PATCH", _CONFIG, admin, {"set": _BOUNDS}).status
        abuse.expect(status == 200, f"the bounds are not set: {status}")
        with secured.logged_in(MALLORY) as mallory, secured.logged_in(TRENT) as trent:
            for what, make in (
                ("transactional ids", _begin),
                ("groups", _commit),
                ("descriptions of members", _describe),
            ):
                codes = [make(mallory, f"{_NAME}-m{number}") for number in range(_BOUND + 1)]
                abuse.checked += len(codes)
                abuse.expect(codes[0] == 0, f"a user makes no {what}: {codes[0]}")
                abuse.expect(any(codes), f"a user makes {what} without end")
                code = make(trent, f"{_NAME}-t")
                abuse.expect(code == 0, f"a user that makes {what} keeps others out: {code}")
            codes = [_share(one, f"{_NAME}-s-{who}") for who, one in enumerate((mallory, trent))]
            abuse.expect(codes[0] != 0, "a user with its share of groups makes share groups")
            abuse.expect(codes[1] == 0, f"a user that makes groups keeps others out: {codes[1]}")
        _delay(abuse, secured)
        _follow(abuse, secured)
    finally:
        secured.ask("PATCH", _CONFIG, admin, {"reset": [*_BOUNDS]})


def _delay(abuse: Abuse, secured: Secured) -> None:
    """Records that are due days from now, hours apart."""

    def send(user: str, number: int) -> int:
        headers = [["headrace-delay", str((number + 100) * 10_000_000)]]
        records = {"records": [{"value": "x", "headers": headers}]}
        path = f"/v1/topics/{_NAME}-d/records"
        return outcome_of(secured.ask("POST", path, basic(user), records))

    codes = [send(MALLORY, number) for number in range(_BOUND + 1)]
    abuse.expect(codes[0] == STORED, f"a user delays no records: {codes[0]}")
    abuse.expect(403 in codes, "a user delays records without end")
    status = send(TRENT, _BOUND + 1)
    abuse.expect(status == STORED, f"a user that delays records keeps others out: {status}")


def _follow(abuse: Abuse, secured: Secured) -> None:
    path = f"/v1/topics/{_NAME}/tail"
    key = secured.ask("POST", "/v1/keys", basic(MALLORY), {"name": "of a user"}).json()
    client = {"Authorization": f"Bearer {key.get('key', '')}"}
    with ExitStack() as held:
        taken = [follows(secured, held, path, client) for _ in range(PLACES + 1)]
        abuse.expect(200 in taken, f"a user cannot follow the topic: {taken[0]}")
        abuse.expect(503 in taken, "a user follows without end")
        status = follows(secured, held, path, basic(TRENT))
        abuse.expect(status == 200, f"a user that follows keeps others out: {status}")
    secured.ask("DELETE", f"/v1/keys/{key.get('id', '')}", basic(MALLORY))


def _asked(peer: Peer, api: int, version: int, **values: Any) -> Any:
    peer.send(request(api, version, **values))
    answer = peer.answer(30)
    return None if answer is None else answer_of(api, version, answer, 1)


def _begin(peer: Peer, name: str) -> int:
    answer = _asked(peer, INIT_PRODUCER_ID, 1, transactional_id=name, transaction_timeout=60_000)
    return -1 if answer is None else int(answer.error_code)


def _commit(peer: Peer, name: str) -> int:
    part = {"partition_index": 0, "committed_offset": 0}
    answer = _asked(
        peer,
        OFFSET_COMMIT,
        2,
        group_id=name,
        generation_id_or_member_epoch=-1,
        retention_time=-1,
        topics=[{"name": _NAME, "partitions": [part]}],
    )
    return -1 if answer is None else int(answer.topics[0].partitions[0].error_code)


def _describe(peer: Peer, name: str) -> int:
    """A member, alone in its group, with a large description."""
    answer = _asked(
        peer,
        _HEARTBEAT,
        0,
        group_id=name,
        rebalance_timeout=60_000,
        subscribed_topic_names=[f"{_NAME}-" + "x" * 200] * (_SAID_BYTES // 200),
        topic_partitions=[],
    )
    return -1 if answer is None else int(answer.error_code)


def _share(peer: Peer, name: str) -> int:
    """A share group with a member."""
    member = {"member_id": "m", "member_epoch": 0, "rack_id": None}
    member |= {"subscribed_topic_names": [_NAME]}
    answer = _asked(peer, _SHARE_HEARTBEAT, 1, group_id=name, **member)
    return -1 if answer is None else int(answer.error_code)
