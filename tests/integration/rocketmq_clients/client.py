"""RocketMQ's official client for Python: ENDPOINT LANE TOPIC GROUP; prints what came as JSON.

The programs in the other languages do the same, lane by lane, so that one test reads them all.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback

import rocketmq
from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

ENDPOINT, LANE, TOPIC, GROUP = sys.argv[1:5]
KEY = (os.environ.get("HEADRACE_ACCESS_KEY", ""), os.environ.get("HEADRACE_ACCESS_SECRET", ""))
# On a slow machine, a partition may take longer to move than 3 s, the default.
PATIENCE = {"request_timeout": 30} if LANE == "steady" else {}
NAMESPACE = os.environ.get("HEADRACE_NAMESPACE", "")
CONFIG = ClientConfiguration(ENDPOINT, Credentials(*KEY), namespace=NAMESPACE, **PATIENCE)
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
    if "HEADRACE_AWAITS_SETTINGS" in os.environ:
        assert made._init_settings_event.wait(WAIT_S)
    made.await_duration = 5
    return made


def received(from_: SimpleConsumer, count: int, at_once: int = 16) -> list[Message]:
    """Receive and acknowledge so many messages."""
    found = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        for one in from_.receive(at_once, INVISIBLE_S) or []:
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
        if not getattr(one, "corrupted", False)  # older ones have no such property
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
    due_s = int(time.time()) + 3
    producer().send(message("kept", delivery_timestamp=due_s))
    found = bodies(received(consumer(), 1))
    return {"messages": found, "is_early": time.time() < due_s, "is_late": time.time() > due_s + 2}


def recall() -> dict:
    sending = producer()
    due_s = int(time.time()) + 2
    recalled = sending.send(message("recalled", delivery_timestamp=due_s))
    sending.recall_message(TOPIC, recalled.recall_handle)
    sending.send(message("kept", delivery_timestamp=due_s + 1))
    return {"messages": bodies(received(consumer(), 1))}


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


def sql() -> dict:
    sending = producer()
    for number in range(4):
        sending.send(message(str(number), tag="t", properties={"n": str(number)}))
    expression = FilterExpression("n > 1 AND TAGS = 't'", FilterType.SQL)
    return {"messages": sorted(bodies(received(consumer(expression=expression), 2)))}


def priority() -> dict:
    sending = producer()
    for number in (1, 5, 9, 3):
        sending.send(message(str(number), priority=number))
    found = received(consumer(), 4, at_once=1)
    return {"messages": [[one.body.decode(), one.priority] for one in found]}


class Listener(getattr(rocketmq, "MessageListener", object)):  # older ones cannot push
    """Fails the first time, or always."""

    def __init__(self, *, fails_always: bool = False) -> None:
        self.seen: queue.Queue = queue.Queue()
        self._fails_always = fails_always

    def consume(self, message: Message) -> rocketmq.ConsumeResult:
        body = message.body.decode()
        self.seen.put([body, message.delivery_attempt])
        fails = self._fails_always or (body == "1" and message.delivery_attempt == 1)
        return rocketmq.ConsumeResult.FAILURE if fails else rocketmq.ConsumeResult.SUCCESS


def pushed(listener: Listener) -> rocketmq.PushConsumer:
    made = rocketmq.PushConsumer(CONFIG, GROUP, listener, {TOPIC: FilterExpression()})
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


def lite() -> dict:
    """Many small queues in one topic: those that the consumer names, as long as it does."""
    sending = producer()
    for number in range(4):
        for name in ("a", "b", "c"):
            sending.send(message(f"{name}{number}", lite_topic=name))
    listener = Listener()
    consuming = rocketmq.LitePushConsumer(CONFIG, GROUP, TOPIC, listener)
    consuming.startup()
    for name in ("a", "b"):
        consuming.subscribe_lite(name)
    found = [listener.seen.get(timeout=WAIT_S)[0] for _ in range(8)]
    consuming.unsubscribe_lite("b")
    for name in ("b", "a"):
        sending.send(message(f"{name}4", lite_topic=name))
    found.append(listener.seen.get(timeout=WAIT_S)[0])
    return {name: [one for one in found if one[0] == name] for name in ("a", "b", "c")}


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


def steady() -> dict:
    """Send and receive until the standard input ends; what the application sees go wrong.

    A receive that fails is repeated, as applications do. The rest is received in the end.
    """
    errors: dict[str, list[str]] = {"send": [], "receive": [], "ack": []}
    is_over, all_sent = threading.Event(), threading.Event()
    sent: set[str] = set()
    seen: dict[str, int] = {}
    sending = producer()

    def send() -> None:
        for number in range(1_000_000):
            if is_over.is_set():
                return
            try:
                sending.send(message(str(number), message_group=f"g{number % 8}"))
                sent.add(str(number))
            except Exception as error:
                errors["send"].append(f"{error!r}"[:300])
            time.sleep(0.01)

    def receive(from_: SimpleConsumer) -> None:
        while not (all_sent.is_set() and sent <= seen.keys()):
            try:
                found = from_.receive(16, INVISIBLE_S) or []
            except Exception as error:
                errors["receive"].append(f"{error!r}"[:300])
                time.sleep(0.1)
                continue
            for one in found:
                body = one.body.decode()
                seen[body] = seen.get(body, 0) + 1
                try:
                    from_.ack(one)
                except Exception as error:
                    errors["ack"].append(f"{error!r}"[:300])

    sender = threading.Thread(target=send, daemon=True)
    receivers = [
        threading.Thread(target=receive, args=(consumer(),), daemon=True) for _ in range(2)
    ]
    for one in (sender, *receivers):
        one.start()
    while len(seen) < 50:
        time.sleep(0.05)
    print("going", flush=True)
    sys.stdin.read()
    is_over.set()
    sender.join(3 * WAIT_S)
    all_sent.set()
    for one in receivers:
        one.join(3 * WAIT_S)
    again = sum(count - 1 for count in seen.values())
    return {"sent": len(sent), "missing": sorted(sent - seen.keys()), "again": again} | errors


code = 0
try:
    print(json.dumps(globals()[LANE]()), flush=True)
except BaseException:
    traceback.print_exc()
    code = 1
sys.stderr.flush()
os._exit(code)  # the client's threads would go on for a while
