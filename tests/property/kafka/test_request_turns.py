"""Connections and the turns of their requests, against what a client may expect of them.

Whatever clients send, read and end, and in whatever order answers become known: each request of a
connection that stays open begins once, in order, and has its answer, in order; one that waited when
its connection ended begins if it has an effect; and nothing is counted at the end.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.services.connection_memory import RequestMemory, ResponseMemory
from headrace.kafka.connection import KafkaConnection, Reply
from headrace.kafka.request_figures import RequestFigures
from headrace.kafka.request_turns import (
    LARGE_BYTES,
    UNANSWERED_MAX,
    WAITING_BYTES_MAX,
    WAITING_BYTES_MIN,
    RequestTurns,
)
from headrace.runtime.loop_turns import BEGUN_MAX, TURN_NS, LoopTurns

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWERED_AT_ONCE, READ, CHANGE, LOGIN = range(4)
SMALL: Final = 100
SIZES: Final = (SMALL, WAITING_BYTES_MIN, LARGE_BYTES, WAITING_BYTES_MAX)
CLIENTS: Final = 2
NUMBERS: Final = 256
"""Of a connection's requests: an answer is one byte."""
TICKS_MAX: Final = 10_000


class Loop:
    """What connections use of an event loop."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], object]] = deque()

    def time(self) -> float:
        return 0.0

    def call_soon(self, call: Callable[..., object], *given: object) -> None:
        self.due.append(partial(call, *given))

    def call_later(self, _delay_s: float, _call: Callable[..., object]) -> None:
        """No time passes: nobody is disconnected because memory is short."""

    def turn(self) -> None:
        for _ in range(len(self.due)):
            self.due.popleft()()


class Transport:
    """A client's end: it reads all that is sent, or nothing."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.connection: KafkaConnection | None = None
        self.answers: list[int] = []
        self.is_read = self.reads = True
        self.is_over = False

    def get_extra_info(self, _name: str) -> Any:
        return None

    def write(self, data: bytes) -> None:
        if self.is_over:
            return
        self.answers += data
        if not self.reads and self.connection is not None:
            self._loop.call_soon(self._is_full)

    def writelines(self, parts: list[bytes]) -> None:
        for part in parts:
            self.write(part)

    def _is_full(self) -> None:
        if not self.reads and self.connection is not None and not self.connection.is_write_paused:
            self.connection.pause_writing()

    def read(self) -> None:
        self.reads = True
        if self.is_over:
            return
        if self.connection is not None and self.connection.is_write_paused:
            self.connection.resume_writing()

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            assert self.connection is not None
            self._loop.call_soon(self.connection.connection_lost, None)

    abort = close


class Client:
    """One connection, and what is expected of it."""

    def __init__(self, broker: Broker) -> None:
        self.transport = Transport(broker.loop)
        self.connection = KafkaConnection(broker, broker.loop)  # type: ignore[arg-type]
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.sent: list[int] = []
        """The kinds of its requests."""
        self.unread: deque[bytes] = deque()
        """In its socket."""
        self.begun: list[int] = []
        self.begun_count_when_lost = -1

    def send(self, kinds: list[int]) -> None:
        frames = []
        for kind in kinds:
            frames.append(bytes([0, 0, 0, 8, kind, len(self.sent)]) + bytes(6))
            self.sent.append(kind)
        self.unread.append(b"".join(frames))

    def may_deliver(self) -> bool:
        return bool(self.unread) and self.transport.is_read and not self.transport.is_over

    def deliver(self) -> None:
        while self.may_deliver():
            self.connection.data_received(self.unread.popleft())


class Broker:
    """Begins requests in turns, and answers them when the test says so."""

    request_bytes_max = 1_000
    gate = None

    def __init__(self) -> None:
        self.loop = Loop()
        loop: Any = self.loop
        self.responses = ResponseMemory(4 * WAITING_BYTES_MAX, loop)
        self.requests = RequestMemory(1 << 20, loop)
        self.figures = RequestFigures(dict.fromkeys((ANSWERED_AT_ONCE, READ, CHANGE, LOGIN), ""))
        self.turns = RequestTurns(loop, self.responses, LoopTurns(loop))
        self.time_ns = 0
        self.unanswered: list[tuple[Client, Reply, int]] = []
        """Requests that have begun."""
        self.clients = [Client(self) for _ in range(CLIENTS)]

    def now_ns(self) -> int:
        return self.time_ns

    def opened(self, connection: KafkaConnection) -> None: ...

    def closed(self, connection: KafkaConnection) -> None:
        client = self._client(connection)
        client.begun_count_when_lost = len(client.begun)
        self.turns.drop(connection, {READ})

    def _client(self, connection: KafkaConnection) -> Client:
        return next(one for one in self.clients if one.connection is connection)

    def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
        kind, number = frame[0], frame[1]
        client = self._client(connection)
        connection.api_key = kind
        reply = connection.expect()
        begin = partial(self._begin, client, reply, number)
        if kind == ANSWERED_AT_ONCE:
            begin()
            return
        if kind == LOGIN:
            connection.hold_input()
        self.turns.begin(connection, reply, begin)

    def _begin(self, client: Client, reply: Reply, number: int) -> None:
        client.begun.append(number)
        of_client = [one for one in self.unanswered if one[0] is client]
        if client.connection.transport is not None:
            assert not any(client.sent[one[2]] == LOGIN for one in of_client), "held by a login"
        assert sum(client.sent[one[2]] != ANSWERED_AT_ONCE for one in of_client) <= UNANSWERED_MAX
        self.unanswered.append((client, reply, number))

    def answer(self, at: int, size: int, spent_ns: int = 0) -> None:
        """As `dispatch._answer` does; the answer is the request's number, of pretended size."""
        client, reply, number = self.unanswered.pop(at % len(self.unanswered))
        kind = client.sent[number]
        self.time_ns += spent_ns
        if size >= WAITING_BYTES_MIN and not reply.is_next:
            reply.hold(size)
        reply.send([bytes([number])], size)
        if kind == LOGIN and client.connection.transport is not None:
            client.connection.release_input()
        if kind != ANSWERED_AT_ONCE:
            self.turns.answered(client.connection, size, spent_ns)

    def turn(self) -> None:
        for client in self.clients:
            client.deliver()
        self.loop.turn()

    def settle(self) -> None:
        """All clients read, and all requests are answered, until nothing is left to be done."""
        for _ in range(TICKS_MAX):
            for client in self.clients:
                client.transport.read()
            self.turn()
            if self.unanswered:
                self.answer(0, SMALL)
            elif not self.loop.due and not any(one.may_deliver() for one in self.clients):
                return
        raise AssertionError("it does not come to rest")


CLIENT = st.integers(0, CLIENTS - 1)
KIND = st.sampled_from([ANSWERED_AT_ONCE, READ, READ, CHANGE, CHANGE, LOGIN])
SEND = st.tuples(st.just("send"), CLIENT, KIND, st.integers(1, 20))
ANSWER = st.tuples(
    st.just("answer"),
    st.integers(1, 8),
    st.integers(0, 50),
    st.sampled_from(SIZES),
    st.sampled_from([0, TURN_NS // 3, 3 * TURN_NS]),
)
OTHER = st.tuples(st.sampled_from(["stop reading", "read", "end"]), CLIENT)
STEP = st.one_of(SEND, SEND, ANSWER, ANSWER, OTHER)
STEPS = st.lists(st.tuples(STEP, st.integers(0, 3)), min_size=1, max_size=60)
"""With the turns of the loop that follow each."""


def take(broker: Broker, step: tuple[Any, ...]) -> None:
    match step:
        case "send", client, kind, count:
            one = broker.clients[client]
            if len(one.sent) + count < NUMBERS:
                one.send([kind] * count)
        case "answer", count, at, size, spent_ns:
            for _ in range(min(count, len(broker.unanswered))):
                broker.answer(at, size, spent_ns)
        case "stop reading", client:
            broker.clients[client].transport.reads = False
        case "read", client:
            broker.clients[client].transport.read()
        case "end", client:
            broker.clients[client].transport.close()


@settings(max_examples=1_000, deadline=None)
@given(steps=STEPS)
def test_each_request_begins_once_in_order_and_nothing_is_left(
    steps: list[tuple[Any, ...]],
) -> None:
    broker = Broker()
    for step, turn_count in steps:
        take(broker, step)
        for _ in range(turn_count):
            broker.turn()
    broker.settle()
    for client in broker.clients:
        count = len(client.begun)
        assert client.begun == list(range(count)), "each once, in order"
        answers = client.transport.answers
        assert answers == list(range(len(answers))), "answers are in order"
        if client.transport.is_over:
            later = client.sent[client.begun_count_when_lost : count]
            assert len(later) <= 1, "only the request that waited begins later"
            assert READ not in later, "nobody is there to read it"
        else:
            assert count == len(answers) == len(client.sent), "none is left"
            assert client.transport.is_read
    assert not broker.turns._lines
    assert not broker.turns._turns._ready
    assert broker.responses.held_bytes == 0
    assert not broker.responses._holders


def test_one_that_asks_begins_within_two_turns_of_all_others() -> None:
    """However many requests others have sent ahead, and however long each takes."""
    broker = Broker()
    many, other = broker.clients[:2]
    many.send([CHANGE] * 250)
    for spent_ns in (0, TURN_NS, 5 * TURN_NS):
        for _ in range(3):
            broker.turn()
            while broker.unanswered:
                broker.answer(0, SMALL, spent_ns)
        before = len(many.begun)
        other.send([CHANGE])
        while len(other.begun) < len(other.sent):
            broker.turn()
            while broker.unanswered:
                broker.answer(0, SMALL, spent_ns)
        assert len(many.begun) - before <= 2 * BEGUN_MAX
