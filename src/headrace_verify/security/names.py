"""Abuse by names: path traversal, line breaks, control characters, shell commands.

Invariants: each function is a case, and its name is the guarantee.
"""

from __future__ import annotations

import http.client
import re
from typing import TYPE_CHECKING, Any

from headrace.records.codec import Record, encode_batch, iterate_records
from headrace_verify.kafka_wire import (
    DELETE_TOPICS,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from headrace_verify.security.asking import (
    DESCRIBE_GROUPS,
    JOIN_GROUP,
    LIST_GROUPS,
    NAMES,
    ask,
    create,
    produce,
    read,
    request,
    settings_of,
)

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

_ORDINARY = re.compile(r"[\w.-]{1,80}")
_METRIC = re.compile(r'(#.*|headrace_\w+(\{(\w+="([^"\\\n]|\\.)*",?)*\})? \S+|)')
INVALID_TOPIC = 17


def _strange_files(abuse: Abuse) -> list[str]:
    """Names in and around the data folder that no part of the broker has created."""
    folder = abuse.broker.data_dir.parent
    expected = {"data", "broker.log", "reference", "control"}
    around = [path.name for path in folder.iterdir() if path.name not in expected]
    inside = [
        path.name
        for path in abuse.broker.data_dir.rglob("*")
        if not _ORDINARY.fullmatch(path.name) or "headrace-escaped" in path.name
    ]
    return [*around, *inside]


def topic_names_lead_nowhere(abuse: Abuse) -> None:
    for name in NAMES:
        code = create(abuse, name)
        abuse.expect(code == INVALID_TOPIC, f"a topic called {name[:60]!r}: code {code}")
        made = ask(abuse, METADATA, 4, topics=[{"name": name}], allow_auto_topic_creation=True)
        code = None if made is None else int(made.topics[0].error_code)
        abuse.expect(code == INVALID_TOPIC, f"auto-created, {name[:60]!r}: code {code}")
        code = produce(abuse, name, encode_batch([Record(0, 1, None, b"x")]))
        abuse.expect(code not in {0, None}, f"written to {name[:60]!r}: code {code}")
        answers = (
            read(abuse, name),
            ask(abuse, DELETE_TOPICS, 1, topic_names=(name,), timeout=1000),
            ask(
                abuse,
                LIST_OFFSETS,
                1,
                replica_id=-1,
                topics=[{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
            ),
        )
        abuse.expect(None not in answers, f"{name[:60]!r} gets no response")
        abuse.expect(not settings_of(abuse, name), f"{name[:60]!r} has settings")
    found = _strange_files(abuse)
    abuse.expect(not found, f"files of strange names: {found[:3]}")


def _commit(abuse: Abuse, group: str, offset: int, metadata: str | None = None) -> Any:
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": metadata}
    topics = [{"name": "wire-good", "partitions": [part]}]
    old: dict[str, Any] = {"generation_id_or_member_epoch": -1, "retention_time": -1}
    return ask(abuse, OFFSET_COMMIT, 2, group_id=group, topics=topics, **old)


def group_and_member_names_lead_nowhere(abuse: Abuse) -> None:
    answers = []
    named = [name for name in NAMES if name]
    for name in named:
        answers += [
            ask(abuse, FIND_COORDINATOR, 0, key=name),
            _commit(abuse, name, 7, name[:200]),
            ask(
                abuse,
                JOIN_GROUP,
                5,
                group_id=name + "j",
                session_timeout=6000,
                rebalance_timeout=1000,
                member_id=name,
                group_instance_id=name,
                protocol_type=name,
                protocols=[{"name": name, "metadata": b""}],
            ),
            ask(abuse, DESCRIBE_GROUPS, 0, groups=(name,)),
            ask(
                abuse,
                OFFSET_FETCH,
                2,
                group_id=name,
                topics=[{"name": "wire-good", "partition_indexes": (0,)}],
            ),
        ]
    abuse.expect(None not in answers, "a group with a strange name gets no response")
    listed = ask(abuse, LIST_GROUPS, 0)
    known = {group.group_id for group in listed.groups} if listed is not None else set()
    changed = [one for one in known if one not in named and one.removesuffix("j") not in named]
    abuse.expect(not changed, f"groups with unexpected names: {changed[:3]!r}")
    found = _strange_files(abuse)
    abuse.expect(not found, f"files of strange names: {found[:3]}")


def what_clients_call_themselves_makes_no_line_of_the_log(abuse: Abuse) -> None:
    # Each client's error is logged; the final check examines the lines.
    for name in NAMES:
        client = name.encode()[:900]
        good = request(METADATA, 4, client, topics=[{"name": name}])
        abuse.each([good, good[:-3], good[:4] + b"\x7f\x00" + good[6:]], wait_s=0.05)
        answer = ask(abuse, METADATA, 4, client, topics=[], allow_auto_topic_creation=False)
        abuse.expect(answer is not None, f"a client called {name[:60]!r} gets no response")


def http_clients_make_no_line_of_the_log(abuse: Abuse) -> None:
    for name in NAMES:
        words = name.encode()
        abuse.each(
            [
                b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nUser-Agent: " + words + b"\r\n\r\n",
                b"GET /" + words + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                words + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"GET /healthz HTTP/1.1\r\nHost: " + words + b"\r\n\r\n",
            ],
            is_http=True,
            wait_s=0.05,
        )


def names_that_differ_in_case_alone_are_two(abuse: Abuse) -> None:
    codes = create(abuse, "dotted.name"), create(abuse, "dotted_name")
    # Kafka's rule: their metrics would have the same name.
    abuse.expect(codes[1] == INVALID_TOPIC, f"names that differ only in dots: {codes}")
    for first, second in (("Clash", "clash"), ("con", "CON")):
        for name in (first, second):
            code = create(abuse, name)
            abuse.expect(code in {0, 36}, f"a topic called {name!r}: code {code}")
            code = produce(abuse, name, encode_batch([Record(0, 1, None, name.encode())]))
            abuse.expect(code == 0, f"written to {name!r}: code {code}")
        for name in (first, second):
            found = read(abuse, name)
            data = bytes(found.records or b"") if found is not None else b""
            values = {record.value for record in iterate_records(data)}
            abuse.expect(values == {name.encode()}, f"{name!r} holds {values}")


def names_break_no_line_of_the_metrics(abuse: Abuse) -> None:
    for number, name in enumerate(('"} 1\nheadrace_forged 1\n#', "back\\slash", 'q"uote', "a\rb")):
        _commit(abuse, name, number)
    client = http.client.HTTPConnection(*abuse.http, timeout=30)
    try:
        client.request("GET", "/metrics")
        text = client.getresponse().read()
    finally:
        client.close()
    abuse.record_received(text)
    lines = text.decode(errors="replace").split("\n")
    wrong = [line for line in lines if not _METRIC.fullmatch(line.replace("\r", "?"))]
    forged = [line for line in lines if line.startswith("headrace_forged")]
    abuse.expect(len(lines) > 20, "there are no metrics")
    abuse.expect(not forged, "a group's name has made a metric")
    abuse.expect(not [line for line in wrong if "headrace" in line], f"broken: {wrong[:2]!r}")
