"""Lite topics while the broker is killed: who holds a message, in which order, and that each is
settled once, judged by the checkers of the black-box runs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.integration.test_rocketmq import address, fresh

from headrace.rocketmq import codes, wire
from headrace_verify.checkers.facts import gather
from headrace_verify.checkers.shares import share_deliveries
from headrace_verify.history import ACQUIRE, INFO, INVOKE, OK, SETTLE

grpc = pytest.importorskip("grpc")

NAMES = [f"n{number}" for number in range(6)]
MESSAGES = 240
KILLS = 3
LIMIT_S = 240
ADD_ALL = 2


class Client:
    """One client by hand; a call that fails is repeated by the caller."""

    def __init__(self, at: str, name: str) -> None:
        options = [("grpc.max_reconnect_backoff_ms", 250), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.insecure_channel(at, options)
        self._metadata = (("x-mq-client-id", name),)

    def ask(self, rpc: str, **fields: Any) -> list[Any]:
        """The responses. Raises ConnectionError: it may have been done."""
        is_stream = rpc in wire.STREAMED
        make = self._channel.unary_stream if is_stream else self._channel.unary_unary
        call = make(f"/{wire.SERVICE}/{rpc}", None, wire.response_of(rpc).FromString)
        request = wire.request_of(rpc)(**fields).SerializeToString()
        try:
            found = call(request, timeout=30, metadata=self._metadata, wait_for_ready=True)
            found = list(found) if is_stream else [found]
        except grpc.RpcError as error:
            raise ConnectionError(str(error.code())) from error
        return found

    def close(self) -> None:
        self._channel.close()


class Run:
    """A producer, three clients of two groups, and what they saw."""

    def __init__(self, at: str, topic: str, group: str) -> None:
        self.at, self.topic = at, topic
        self.groups = {group: ("one", "two"), f"{group}-other": ("three",)}
        self.events: list[dict[str, Any]] = []
        self.sent: set[int] = set()
        self.settled: dict[str, set[int]] = {name: set() for name in self.groups}
        """With those whose acknowledgement the broker may have stored before it was killed."""
        self.values: dict[tuple[int, int], int] = {}
        self.is_all_sent = threading.Event()
        self.deadline = time.monotonic() + LIMIT_S

    def note(self, kind: str, what: str, since_ns: int, **fields: Any) -> None:
        self.events.append(
            {"k": kind, "f": what, "t": time.monotonic_ns(), "since": since_ns, **fields}
        )

    def is_over(self, group: str) -> bool:
        is_done = self.is_all_sent.is_set() and self.sent <= self.settled[group]
        return is_done or time.monotonic() > self.deadline

    def send(self) -> None:
        client = Client(self.at, "producer")
        for number in range(MESSAGES):
            system = {
                "message_id": f"01{number:032X}",
                "message_type": wire.LITE,
                "lite_topic": NAMES[number % len(NAMES)],
            }
            message = {"topic": {"name": self.topic}, "body": b"%d" % number}
            try:
                (answer,) = client.ask(
                    "SendMessage", messages=[message | {"system_properties": system}]
                )
            except ConnectionError:
                continue  # it may be stored
            if answer.status.code == codes.OK:
                self.sent.add(number)
        self.is_all_sent.set()
        client.close()

    def consume(self, group: str, name: str) -> None:
        client, count = Client(self.at, name), 0
        named = {"group": {"name": group}, "topic": {"name": self.topic}}
        subscribe = named | {"action": ADD_ALL, "lite_topic_set": NAMES}
        receive = {
            "group": named["group"],
            "message_queue": {"topic": named["topic"]},
            "batch_size": 5,
            "invisible_duration": {"seconds": 10},
            "long_polling_timeout": {"nanos": 300_000_000},
        }
        while not self.is_over(group):
            count += 1
            member, since_ns = f"{name}#{count}", time.monotonic_ns()
            try:
                (done,) = client.ask("SyncLiteSubscription", **subscribe)
                assert done.status.code in {codes.OK, codes.HA_NOT_AVAILABLE}, done
                found = [
                    one.message
                    for one in client.ask("ReceiveMessage", **receive)
                    if one.HasField("message")
                ]
            except ConnectionError:
                continue
            if found:
                self.received(group, member, since_ns, found)
                self.settle(client, named, member, found)
        client.close()

    def received(self, group: str, member: str, since_ns: int, found: list[Any]) -> None:
        recs = []
        for one in found:
            system = one.system_properties
            place = system.queue_id, system.queue_offset
            self.values[place] = int(one.body)
            recs.append([*place, int(one.body), system.lite_topic, system.delivery_attempt])
        more = {"ordered": True, "together": True, "topic": self.topic}
        self.note(OK, ACQUIRE, since_ns, group=group, member=member, recs=recs, **more)

    def settle(self, client: Client, named: Any, member: str, found: list[Any]) -> None:
        """Accept them one by one, in order, each in a call of its own; every 29th comes again."""
        group = named["group"]["name"]
        for one in found:
            system = one.system_properties
            if int(one.body) % 29 == 0 and system.delivery_attempt == 1:
                return  # nor are those after it: their locks expire
            since_ns = time.monotonic_ns()
            fields = {"group": group, "member": member, "how": "accept", "topic": self.topic}
            fields["recs"] = [[system.queue_id, system.queue_offset]]
            op = len(self.events)
            self.note(INVOKE, SETTLE, since_ns, op=op, **fields)
            kind = INFO
            try:
                entries = [{"receipt_handle": system.receipt_handle}]
                (answer,) = client.ask("AckMessage", **named, entries=entries)
                if answer.status.code == codes.OK:
                    kind = OK
                    self.settled[group].add(int(one.body))
            except ConnectionError:
                self.settled[group].add(int(one.body))
            self.note(kind, SETTLE, since_ns, op=op, **fields)
            if kind != OK:
                return


def test_a_broker_that_is_killed_delivers_lite_topics_in_order_and_nothing_twice(make_broker):
    broker = make_broker("--rocketmq", "127.0.0.1:0")
    topic, group = fresh(broker, "lite-kill", "lite", partitions=2)
    run = Run(address(broker), topic, group)
    threads = [threading.Thread(target=run.send)]
    threads += [
        threading.Thread(target=run.consume, args=(name, client))
        for name, clients in run.groups.items()
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for kill in range(1, KILLS + 1):
        wanted = kill * MESSAGES // (KILLS + 2)
        while len(run.sent) < wanted and time.monotonic() < run.deadline:
            time.sleep(0.01)
        broker.kill()
        broker.start()
    for thread in threads:
        thread.join(LIMIT_S + 60)
    for name in run.groups:
        assert run.sent - run.settled[name] == set(), name
    events = sorted(run.events, key=lambda event: event["t"])
    assert [*share_deliveries(gather(events))] == []
    broker.stop()
