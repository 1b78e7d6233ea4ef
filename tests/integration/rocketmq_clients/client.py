"""RocketMQ's official client for Python: ENDPOINT LANE TOPIC GROUP; prints what came as JSON.

The programs in the other languages do the same, lane by lane, so that one test reads them all.
"""

import json
import os
import queue
import sys
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

ENDPOINT, LANE, TOPIC, GROUP = sys.argv[1:5]
KEY = (os.environ.get("HEADRACE_ACCESS_KEY"), os.environ.get("HEADRACE_ACCESS_SECRET"))
CONFIG = ClientConfiguration(ENDPOINT, Credentials(*KEY) if KEY[0] else Credentials())
WAIT_S = 40
INVISIBLE_S = 15


def message(body: str, **named) -> Message:
    made = Message()
    made.topic = TOPIC
    made.body = body.encode()
    for name, value in named.items():
        if name == "properties":
            for pair in value.items():
                made.add_property(*pair)
        else:
            setattr(made, name, value)
    return made


def producer(checker=None) -> Producer:
    made = Producer(CONFIG, (TOPIC,), checker)
    made.startup()
    return made


def consumer(
    topic: str = TOPIC, group: str = GROUP, expression: FilterExpression | None = None
) -> SimpleConsumer:
    made = SimpleConsumer(CONFIG, group, {topic: expression or FilterExpression()})
    made.startup()
    made.await_duration = 5
    return made


def received(from_: SimpleConsumer, count: int) -> list[Message]:
    """Receive and acknowledge so many messages."""
    found = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        for one in from_.receive(16, INVISIBLE_S) or []:
            found.append(one)
            from_.ack(one)
    return found


def bodies(messages: list[Message]) -> list[str]:
    return [one.body.decode() for one in messages]


def normal() -> dict:
    sending = producer()
    for number in range(10):
        made = message(str(number), tag="t", keys=f"k{number}", properties={"n": str(number)})
        sending.send(made)
    found = received(consumer(), 10)
    shown = [
        [one.body.decode(), one.tag, *one.keys, one.properties["n"], one.delivery_attempt]
        for one in found
        if not one.corrupted
    ]
    return {"messages": sorted(shown)}


def fifo() -> dict:
    sending = producer()
    for number in range(4):
        for group in ("a", "b"):
            sending.send(message(f"{group}{number}", message_group=group))
    found = bodies(received(consumer(), 8))
    return {group: [one for one in found if one[0] == group] for group in ("a", "b")}


def delay() -> dict:
    sending = producer()
    due_s = int(time.time()) + 3
    sending.send(message("kept", delivery_timestamp=due_s))
    recalled = sending.send(message("recalled", delivery_timestamp=due_s))
    sending.recall_message(TOPIC, recalled.recall_handle)
    found = bodies(received(consumer(), 1))
    return {"messages": found, "is_early": time.time() < due_s, "is_late": time.time() > due_s + 2}


class Commits(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        return TransactionResolution.COMMIT


def transaction() -> dict:
    sending = producer(Commits())
    for body, end in (("committed", "commit"), ("rolled back", "rollback"), ("checked", "")):
        begun = sending.begin_transaction()
        sending.send(message(body), begun)
        if end:
            getattr(begun, end)()
    return {"messages": sorted(bodies(received(consumer(), 2)))}


def filters() -> dict:
    sending = producer()
    for number, tag in enumerate("abca"):
        sending.send(message(str(number), tag=tag))
    return {
        "messages": sorted(bodies(received(consumer(expression=FilterExpression("a || b")), 3)))
    }


class Listener(MessageListener):
    """Fails the first time, or always."""

    def __init__(self, *, fails_always: bool = False) -> None:
        self.seen: queue.Queue = queue.Queue()
        self._fails_always = fails_always

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        self.seen.put([body, message.delivery_attempt])
        fails = self._fails_always or (body == "1" and message.delivery_attempt == 1)
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


def pushed(listener: Listener) -> PushConsumer:
    made = PushConsumer(CONFIG, GROUP, listener, {TOPIC: FilterExpression()})
    made.startup()
    return made


def push() -> dict:
    sending = producer()
    for number in range(3):
        sending.send(message(str(number)))
    listener = Listener()
    pushed(listener)
    return {"seen": sorted(listener.seen.get(timeout=WAIT_S) for _ in range(4))}


def push_fifo() -> dict:
    sending = producer()
    for number in range(4):
        for group in ("a", "b"):
            sending.send(message(f"{group}{number}", message_group=group))
    listener = Listener()
    pushed(listener)
    found = [listener.seen.get(timeout=WAIT_S)[0] for _ in range(8)]
    return {group: [one for one in found if one[0] == group] for group in ("a", "b")}


def dead() -> dict:
    """The group gives a message up after two attempts."""
    producer().send(message("poison", tag="t", keys="k"))
    listener = Listener(fails_always=True)
    pushing = pushed(listener)
    attempts = [listener.seen.get(timeout=WAIT_S)[1] for _ in range(2)]
    letters = None
    while letters is None:
        try:
            letters = received(consumer(f"%DLQ%{GROUP}", f"{GROUP}-undertaker"), 1)
        except Exception:  # there is no such topic yet
            time.sleep(0.5)
    del pushing
    return {"attempts": attempts, "letters": [[one.body.decode(), one.tag] for one in letters]}


print(json.dumps(globals()[LANE]()), flush=True)
os._exit(0)  # the client's threads would go on for a while
