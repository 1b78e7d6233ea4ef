"""RocketMQ's official clients at three brokers over a real BookKeeper and ZooKeeper.

They begin with one broker, learn the owners from it, and connect to them; owners change while they
work.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from itertools import count, product
from typing import Self

import grpc
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    TopicPartition,
)
from tests.cluster.brokers import Brokers
from tests.integration.test_rocketmq import (
    PROGRAMS,
    TIMEOUT_S,
    address,
    cells,
    fresh,
    goes_through,
    post,
)
from tests.waiting import wait_until

from headrace.rocketmq import codes, wire

ROCKETMQ = ("--rocketmq", "127.0.0.1:0")
LIMIT_S = 120
IN_A_CLUSTER = cells("fifo", "transaction", "push", "dead")
PARTITIONS = 8
"""A fourth broker gets some of them whatever the topic's id: of six, it gets none in every twelfth
topic, because three brokers may hold all of them within their share (placement/rendezvous)."""
AWAY_S = 5
GROUPS = 8
"""Message groups of the programs that send and receive steadily: number % 8."""
_numbers = count(1)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, shared_cluster):
    folder = tmp_path_factory.mktemp("rocketmq")
    root = ("--zookeeper-root", f"/{folder.name}")
    made = Brokers(folder, shared_cluster.zookeeper.address, 3, *root, *ROCKETMQ)
    yield made
    made.close()


def spread(brokers: Brokers, message_type: str = "normal") -> str:
    """A topic of which each broker owns partitions."""
    topic = f"spread-{next(_numbers)}"
    config = {"headrace.message.type": message_type}
    new = {"name": topic, "partitions": PARTITIONS, "config": config}
    post(brokers.by_id[1], "/v1/topics", new)
    wait_until(lambda: len(set(brokers.leaders(topic).values())) == 3, LIMIT_S)
    return topic


# --- what routes say -------------------------------------------------------------------------


class Asking:
    """A client by hand, at one broker."""

    def __init__(self, at: str, client_id: str = "by-hand@1") -> None:
        self._channel = grpc.insecure_channel(at)
        self._metadata = (("x-mq-client-id", client_id),)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ask(self, rpc: str, **fields):
        call = self._channel.unary_unary(
            f"/{wire.SERVICE}/{rpc}", None, wire.response_of(rpc).FromString
        )
        request = wire.request_of(rpc)(**fields)
        return call(request.SerializeToString(), metadata=self._metadata, timeout=30)

    def telemetry(self, *commands):
        """What comes on a stream of commands that stays open."""
        call = self._channel.stream_stream(
            f"/{wire.SERVICE}/Telemetry", None, wire.TelemetryCommand.FromString
        )

        def sent():
            yield from (one.SerializeToString() for one in commands)
            time.sleep(LIMIT_S)

        return call(sent(), metadata=self._metadata, timeout=LIMIT_S)

    def received(self, topic: str, group: dict) -> list[str]:
        """The messages of one receive, which waits for a second."""
        call = self._channel.unary_stream(
            f"/{wire.SERVICE}/ReceiveMessage", None, wire.response_of("ReceiveMessage").FromString
        )
        request = wire.request_of("ReceiveMessage")(
            group=group,
            message_queue={"topic": {"name": topic}},
            batch_size=32,
            invisible_duration={"seconds": 60},
            long_polling_timeout={"seconds": 1},
        )
        parts = list(call(request.SerializeToString(), metadata=self._metadata, timeout=30))
        assert parts[0].status.code in {codes.OK, codes.MESSAGE_NOT_FOUND}, parts[0]
        return [part.message.body.decode() for part in parts if part.HasField("message")]

    def owners(self, topic: str) -> dict[int, str]:
        """Partition -> the address of its owner."""
        response = self.ask("QueryRoute", topic={"name": topic})
        assert response.status.code == codes.OK, response
        return {
            queue.id: f"{at.host}:{at.port}"
            for queue in response.message_queues
            for at in queue.broker.endpoints.addresses
        }


def test_every_broker_names_the_owners(brokers):
    topic = spread(brokers)
    leaders = brokers.leaders(topic)
    expected = {part: address(brokers.by_id[owner]) for part, owner in leaders.items()}
    for broker in brokers.by_id.values():
        with Asking(address(broker)) as asking:
            wait_until(lambda at=asking: at.owners(topic) == expected, LIMIT_S)


def test_a_check_back_finds_a_producer_that_is_at_another_broker(brokers):
    topic = spread(brokers, "transaction")
    settings = wire.TelemetryCommand()
    settings.settings.client_type = wire.PRODUCER
    settings.settings.publishing.topics.add(name=topic)
    for number, broker in brokers.by_id.items():
        with Asking(address(broker), f"producer-{number}") as asking:
            stream = asking.telemetry(settings)
            assert next(stream).status.code == codes.OK
            sent = [
                {
                    "topic": {"name": topic},
                    "body": b"half",
                    "system_properties": {
                        "message_id": f"01{next(_numbers):032X}",
                        "message_type": wire.TRANSACTION,
                    },
                }
                for _ in range(PARTITIONS)
            ]
            wanted = set()
            for one in sent:
                response = asking.ask("SendMessage", messages=[one])
                assert response.status.code == codes.OK, response
                wanted.add(response.entries[0].transaction_id)
            while wanted:
                asked = next(stream).recover_orphaned_transaction_command.transaction_id
                if asked in wanted:  # not again, before the answer has arrived
                    wanted.discard(asked)
                    ended = asking.ask(
                        "EndTransaction",
                        topic={"name": topic},
                        transaction_id=asked,
                        resolution=wire.COMMIT,
                    )
                    assert ended.status.code == codes.OK, ended
            stream.cancel()


def test_lite_topics_of_a_broker_that_is_killed_are_delivered_by_the_next_owner(brokers):
    """Though the client, which subscribed at the broker that was killed, does not repeat it."""
    topic = spread(brokers, "lite")
    group = {"group": {"name": f"lite-of-{topic}"}, "topic": {"name": topic}}
    names = [f"n{number}" for number in range(4 * PARTITIONS)]
    two, one = (Asking(address(brokers.by_id[number]), "lite@1") for number in (2, 1))
    with one:
        with two:
            for asking in (one, two):
                beat = asking.ask("Heartbeat", client_type=wire.LITE_SIMPLE_CONSUMER)
                assert beat.status.code == codes.OK
            sync = group | {"action": 2, "lite_topic_set": names}

            def is_synced() -> bool:  # the journals of a new topic may still find their owners
                return two.ask("SyncLiteSubscription", **sync).status.code == codes.OK

            wait_until(is_synced, LIMIT_S)
        brokers.by_id[2].kill()
        wait_until(lambda: 2 not in brokers.leaders(topic).values(), LIMIT_S)
        for name in names:
            system = {"message_type": wire.LITE, "lite_topic": name}
            system["message_id"] = f"01{next(_numbers):032X}"
            message = {"topic": group["topic"], "body": name.encode(), "system_properties": system}
            sent = one.ask("SendMessage", messages=[message])
            assert sent.status.code == codes.OK, sent
        found: set[str] = set()

        def are_all_received() -> bool:
            found.update(one.received(topic, group["group"]))
            return found == {*names}

        wait_until(are_all_received, LIMIT_S)
    brokers.add(2)
    wait_until(lambda: 2 in brokers.leaders(topic).values(), LIMIT_S)


# --- the official clients ----------------------------------------------------------------------


@pytest.mark.parametrize(("language", "lane"), IN_A_CLUSTER)
def test_an_official_client_uses_the_whole_cluster(brokers, language, lane):
    first = brokers.by_id[next(_numbers) % 3 + 1]
    goes_through(PROGRAMS[language](), address(first), first, lane, PARTITIONS)


class Steady:
    """A program that sends and receives while the cluster changes."""

    def __init__(self, language: str, broker, topic: str, group: str) -> None:
        command, environment = PROGRAMS[language]()
        self.topic = topic
        self._process = subprocess.Popen(
            [*command, address(broker), "steady", topic, group],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "going\n"

    def finish(self) -> dict:
        """What it has seen: nothing that was sent is missing, or came when it must not."""
        shown, _ = self._process.communicate("", TIMEOUT_S)
        seen = json.loads(shown.splitlines()[-1])
        assert (seen["missing"], seen.get("wrong", [])) == ([], [])
        assert seen["sent"] > 100
        return seen

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def steady(brokers):
    """Starts programs that use all brokers: steady(language, at which broker)."""
    started = []

    def start(language: str, at: int) -> Steady:
        broker = brokers.by_id[at]
        topic, group = fresh(broker, "steady", "fifo", partitions=PARTITIONS)
        mixed = {"headrace.message.type": "mixed"}
        new = {"name": f"{topic}-mixed", "partitions": PARTITIONS, "config": mixed}
        post(broker, "/v1/topics", new)
        wait_until(lambda: len(set(brokers.leaders(topic).values())) == 3, LIMIT_S)
        started.append(Steady(language, broker, topic, group))
        return started[-1]

    yield start
    for one in started:
        one.kill()


AGAIN = ("40013", "not hold records", "never delivered", "finished in this group already")
"""The message was held when its owner changed: it comes again, and may be acknowledged twice."""
LEFT = ("UNAVAILABLE", "try again")
"""The broker has left, perhaps before it answered, or the partition has no owner yet."""
LEFT_OF = {
    "go": (
        "create grpc conn failed",
        "code = Unavailable",
        "context deadline exceeded",
        "code = DeadlineExceeded",
        "CODE=DEADLINE_EXCEEDED",
    ),
    "node": ("DEADLINE_EXCEEDED",),
}
"""The same in the words of clients with a time limit of 3 s; Go's shows a receive whose broker
was killed as DEADLINE_EXCEEDED, too."""


def others(errors: list[str], *known: str) -> list[str]:
    """The errors that are none of the known ones."""
    return [error for error in errors if not any(one in error for one in known)]


def reader(brokers: Brokers, topic: str, offset: int) -> Consumer:
    """Reads all partitions from an offset on."""
    settings = {"group.id": "stored", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, **settings})
    consumer.assign([TopicPartition(topic, number, offset) for number in range(PARTITIONS)])
    return consumer


def stored_in(brokers: Brokers, topic: str) -> Counter[str]:
    """How often each value is stored, once nothing more is sent."""
    consumer = reader(brokers, topic, OFFSET_BEGINNING)
    found: Counter[str] = Counter()
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(LIMIT_S)
        assert message is not None, f"only partitions {ended} were read to their end"
        if message.error() is None:
            found[message.value().decode()] += 1
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found


def wait_for_sends(brokers: Brokers, topic: str) -> None:
    """Until messages of all message groups have been stored since now."""
    consumer = reader(brokers, topic, OFFSET_END)
    stored: set[int] = set()

    def are_all_stored() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            stored.add(int(message.value()) % GROUPS)
        return len(stored) == GROUPS

    wait_until(are_all_stored, 2 * LIMIT_S, every_s=0)
    consumer.close()


def assert_stored_once(brokers: Brokers, topic: str, shown: dict) -> None:
    """A committed half message is stored once, however many clients commit it, and what was
    acknowledged does not come again."""
    plain, mixed = stored_in(brokers, topic), Counter[str]()
    if "committed" in shown:  # Python's client sends no half messages here: the black box has it
        mixed = stored_in(brokers, f"{topic}-mixed")
        assert shown["committed"]
        assert [one for one in shown["committed"] if one not in mixed] == []
        most = Counter(shown.get("resent", {}))
        twice = {one: times for one, times in mixed.items() if times > 1 + most[one]}
        assert [one for one in twice if one.startswith("half")] == []
    if "again" in shown:  # Go's client does not say which acknowledgements were refused
        # Clients repeat sends whose answer was lost.
        resent = (plain + mixed).total() - len(plain) - len(mixed)
        assert shown["again"] <= len(shown["ack"]) + resent


@pytest.mark.parametrize("language", ["python", "java"])
def test_partitions_move_to_a_new_broker_and_no_send_or_receive_fails(brokers, steady, language):
    program = steady(language, 1)
    new = max(brokers.by_id) + 1
    brokers.add(new)
    try:
        wait_until(lambda: new in brokers.leaders(program.topic).values(), LIMIT_S)
        wait_for_sends(brokers, program.topic)
        shown = program.finish()
    finally:
        brokers.by_id.pop(new).stop()
    assert (shown["send"], shown["receive"]) == ([], [])
    assert others(shown["ack"], *AGAIN) == []
    assert_stored_once(brokers, program.topic, shown)


@pytest.mark.parametrize(
    ("language", "how"),
    [*product(["python", "java"], ["stop", "kill"]), ("go", "kill"), ("node", "kill")],
)
def test_owners_leave_and_return_and_nothing_is_lost(brokers, steady, language, how):
    """These clients ask a broker that has left until they query the route again, every 30 s."""
    program = steady(language, 1)
    getattr(brokers.by_id[2], how)()
    wait_until(lambda: 2 not in brokers.leaders(program.topic).values(), LIMIT_S)
    time.sleep(AWAY_S)  # the fault itself, not a wait for something
    brokers.add(2)
    wait_until(lambda: 2 in brokers.leaders(program.topic).values(), LIMIT_S)
    wait_for_sends(brokers, program.topic)
    shown = program.finish()
    failed = [*shown["send"], *shown["receive"], *shown["ack"]]
    assert others(failed, *AGAIN, *LEFT, *LEFT_OF.get(language, ())) == []
    assert_stored_once(brokers, program.topic, shown)
