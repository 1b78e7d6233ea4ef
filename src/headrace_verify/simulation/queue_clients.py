"""Queue clients of a simulated run: senders of delayed and half messages, members of share groups.

Invariants: as in `workload`. Functions that only HTTP offers (cancel, settle half messages) run in
the partition owner's process, through `Context.ask_owner`; without an answer, their effect is in
doubt. Members know nothing of each other. A broken connection ends its session, and the messages
held on it are forgotten.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.shares.share_receive import ReceiveRequest
from headrace.coordination.shares.commands import Settlement
from headrace.coordination.timers.commands import SettleHalfCommand
from headrace.coordination.timers.state_records import COMMITTED, ROLLED_BACK
from headrace.errors import HeadraceError, RecordStateInvalid, Retriable
from headrace.records.batch import iterate_headers
from headrace.records.codec import Headers, Record, decode_batch, encode_batch
from headrace_verify.blackbox.payload import number_of, value_bytes
from headrace_verify.history import FAIL, INFO, INVOKE, OK
from headrace_verify.kafka_wire import METADATA, Refused
from headrace_verify.simulation.client import Leader, Wire, check
from headrace_verify.simulation.workload import (
    RETRY_S,
    Context,
    Sender,
    new_producer,
    note_ends,
    produce,
    until_answered,
)
from headrace_verify.workloads import QUEUE_GROUPS

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.node import Node
    from headrace.broker.topics.topic import Topic
    from headrace_verify.simulation.client import Routes

SHARE_FETCH, SHARE_ACKNOWLEDGE, ALTER_CONFIGS = 78, 79, 44
GROUP_RESOURCE, SET = 32, 0
UNKNOWN_TOPIC = 3
GAP, ACCEPT, RELEASE, REJECT = 0, 1, 2, 3
HOW = {ACCEPT: "accept", RELEASE: "release", REJECT: "reject"}
KEYS = 6
DELAY_MS_MAX = 8_000
HALF_GROUP = "shop"
SETTLE_TRIES = 20
KINDS = ("plain",) * 5 + ("delayed",) * 3 + ("half",) * 2 + ("expiring",)
DRAIN_WITHIN_S, QUIET_S = 150.0, 8.0
"""Drained if nothing arrived for this long, longer than locks and back-offs."""


# --- senders ---------------------------------------------------------------------------------


class _Message(NamedTuple):
    """One sent message."""

    topic: str
    part: int
    value: int
    id: str
    due_ns: int


class QueueSender:
    """Sends batches of an idempotent producer, and settles half messages."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.routes = context.routes()
        self._sender = Sender(context)
        self._count = 0
        self._producer: tuple[int, int] | None = None
        self._sequences = dict.fromkeys(context.places, 0)
        self._delayed: list[_Message] = []
        self._undecided: list[_Message] = []

    async def run(self) -> None:
        """Run until the end of the run."""
        context = self._context
        made = await until_answered(context, self.routes, None, new_producer)
        self._producer = made
        while not context.over.is_set() and made is not None:
            try:
                await self._send(context.rng.choice(KINDS))
                draw = context.rng.random()
                if draw < 0.15 and self._delayed:
                    await self._cancel(self._delayed.pop())
                elif draw < 0.5 and self._undecided:
                    await self._decide(self._undecided.pop(0))
            except Refused as error:
                context.journal.problem(f"{context.name}: a valid batch was rejected: {error}")
                break
            await context.pause(1 / context.rate_per_s)
        for message in self._undecided:
            self._note(FAIL, message.id, "abort")  # no commit is requested
        self.routes.drop()

    async def _send(self, kind: str) -> None:
        """Send one batch. Raises Refused."""
        context = self._context
        topic, part = place = context.rng.choice(context.places)
        count = 1 if kind in {"half", "delayed"} else context.rng.choice((1, 1, 3))
        messages, records = [], []
        for _ in range(count):
            message, headers = self._new(kind, topic, part)
            key = b"k%d" % context.rng.randrange(KEYS)
            messages.append(message)
            value = value_bytes(message.value)
            records.append(Record(0, context.clock.now_ms(), key, value, headers))
        assert self._producer is not None
        batch = encode_batch(
            records,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequences[place],
        )
        values = [message.value for message in messages]
        try:
            offset = await until_answered(
                context, self.routes, Leader(*place), lambda wire: produce(wire, *place, batch)
            )
        except Refused:
            self._sender.end(INFO, topic, part, values)
            raise
        if offset is None:
            self._sender.end(INFO, topic, part, values)
            for message in messages:
                if kind == "half":
                    self._note(FAIL, message.id, "abort")
            return
        self._sequences[place] += count
        if kind in {"plain", "expiring"}:
            self._sender.end(OK, topic, part, values, offset)
            return
        for one in values:
            fields = {"topic": topic, "part": part, "value": one, "offset": -1}
            context.journal.write(context.name, OK, "send", **fields)
        (self._undecided if kind == "half" else self._delayed).extend(messages)

    def _new(self, kind: str, topic: str, part: int) -> tuple[_Message, Headers]:
        """A message to be sent, with its headers."""
        context = self._context
        self._count += 1
        name, now_ns = f"{context.name}-{self._count}", context.journal.now_ns
        headers: Headers = [("headrace-message-id", name.encode())]
        fields: dict[str, Any] = {}
        due_ns = 0
        delay_ms = int(DELAY_MS_MAX * context.rng.random() ** 2) + 1
        if kind == "delayed":
            due_ns = now_ns + delay_ms * 1_000_000
            headers.append(("headrace-delay", b"%d" % delay_ms))
        elif kind == "half":
            due_ns, fields["txn"] = now_ns, name
            headers.append(("headrace-half", HALF_GROUP.encode()))
        elif kind == "expiring":
            at_ms = context.clock.now_ms() + delay_ms
            headers.append(("headrace-expire-at", b"%d" % at_ms))
            fields["expires"] = True
        if due_ns:
            fields["due"] = due_ns
        (value,) = self._sender.begin(topic, part, 1, **fields)
        return _Message(topic, part, value, name, due_ns), headers

    async def _cancel(self, message: _Message) -> None:
        context = self._context

        async def cancel(node: Node, topic: Topic) -> int:
            _, (count,) = await node.timers.delayed.cancel(topic, message.part, [], [message.id])
            return count

        fields = {"topic": message.topic, "part": message.part, "value": message.value}
        try:
            count = await context.ask_owner(message.topic, message.part, cancel)
        except (HeadraceError, OSError, TimeoutError):
            context.journal.write(context.name, INFO, "send", **fields)  # perhaps cancelled
            return
        if count:
            context.journal.write(context.name, FAIL, "send", **fields)

    async def _decide(self, message: _Message) -> None:
        """Commit, roll back, or wait until the checks are exhausted."""
        context = self._context
        draw = context.rng.random()
        if draw > 0.85:
            self._note(FAIL, message.id, "abort")
            context.journal.halves[message.id] = (message.topic, message.part, "abort")
            return
        is_commit = draw < 0.6
        how = "commit" if is_commit else "abort"
        command = SettleHalfCommand(-1, message.id, is_commit)
        self._note(INVOKE, message.id, how)

        async def settle(node: Node, topic: Topic) -> Any:
            reply = await node.timers.halves.settle(topic, message.part, command)
            if reply is not None and reply.error is not None:
                raise reply.error
            return None if reply is None else reply.outcome

        for _ in range(SETTLE_TRIES):
            try:
                outcome = await context.ask_owner(message.topic, message.part, settle)
            except RecordStateInvalid:  # the checks were exhausted before, and it was rolled back
                outcome = None
            except (HeadraceError, OSError, TimeoutError):
                await context.pause(RETRY_S)
                if context.over.is_set():
                    return
                continue
            done = "commit" if outcome is not None and outcome.outcome == COMMITTED else "abort"
            if outcome is None and not is_commit:
                done = how
            self._note(OK, message.id, done)
            context.journal.halves[message.id] = (message.topic, message.part, done)
            return

    def _note(self, kind: str, name: str, how: str) -> None:
        self._context.journal.write(self._context.name, kind, "transaction", txn=name, end=how)


async def run_queue_sender(context: Context) -> None:
    """See QueueSender."""
    await QueueSender(context).run()


async def check_audit(context: Context, *, is_calendar_set: bool) -> None:
    """Check that the partition's owner lists each half message with its known outcome.

    Outcomes are forgotten if the wall clock is set by more than a day.
    """
    listed: dict[tuple[str, int], dict[str, int]] = {}
    for topic, part in context.places:

        async def ask(node: Node, found: Topic, part: int = part) -> Any:
            return await node.timers.halves.list_halves(found, part)

        end_s = asyncio.get_running_loop().time() + DRAIN_WITHIN_S
        while True:
            try:
                pending, outcomes = await context.ask_owner(topic, part, ask)
            except (HeadraceError, OSError, TimeoutError) as error:
                if asyncio.get_running_loop().time() > end_s:
                    context.journal.problem(f"half messages of {topic}-{part} not shown: {error!r}")
                    return
                await asyncio.sleep(RETRY_S)
                continue
            found = {one.message_id: one.outcome for one in outcomes}
            listed[topic, part] = found | {one.message_id: 0 for one in pending}
            break
    for name, (topic, part, how) in context.journal.halves.items():
        outcome = listed[topic, part].get(name, -1)
        if outcome < 0 and is_calendar_set:
            continue
        if (outcome == COMMITTED) != (how == "commit") or outcome < 0:
            reported = {-1: "unknown", 0: "pending", ROLLED_BACK: "rolled back"}.get(
                outcome, outcome
            )
            context.journal.problem(
                f"half message: {name} ended with {how}, but is reported as {reported}"
            )


# --- members of share groups -----------------------------------------------------------------


class ShareMember:
    """One member, with one share session per broker."""

    def __init__(self, context: Context, group: str, *, is_draining: bool = False) -> None:
        self._context = context
        self.group = group
        self._is_ordered = QUEUE_GROUPS[group].get("headrace.share.key.order") == "true"
        waits = QUEUE_GROUPS[group].get("headrace.share.retry.backoff.ms", "0")
        self._delay_ms = int(waits.partition(",")[0])
        self._is_draining = is_draining
        self.routes: Routes = context.routes()
        self.id = f"{context.name}-{group}"
        self._lives = 0
        self._topics: dict[str, UUID] = {}
        self._epochs: dict[Wire, int] = {}
        self.received = 0

    async def poll(self, topic: str, part: int) -> None:
        """Receive from one partition, and settle. Raises OSError, TimeoutError, Refused."""
        journal, name = self._context.journal, self._context.name
        wire = await self.routes.wire(Leader(topic, part))
        if topic not in self._topics:
            await self._learn(wire)
            if topic not in self._topics:
                raise Refused(UNKNOWN_TOPIC)
        since_ns = journal.now_ns
        found = await wire.call(
            SHARE_FETCH,
            1,
            **self._session(wire),
            max_wait=100,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=self._context.rng.choice((1, 3, 20)),
            batch_size=20,
            topics=[{"topic_id": self._topics[topic], "partitions": [{"partition_index": part}]}],
        )
        self._next(wire, found)
        names = {number: name for name, number in self._topics.items()}
        for one in found.responses:
            for answer in one.partitions:
                place = names[one.topic_id], int(answer.partition_index)
                check(answer.error_code)
                ranges = [
                    (int(item.first_offset), int(item.last_offset), int(item.delivery_count))
                    for item in answer.acquired_records
                ]
                records = _acquired(bytes(answer.records or b""), ranges)
                self.received += len(records)
                recs = [[place[1], *record] for record in records]
                if recs:
                    journal.write(
                        name, OK, "acquire", since=since_ns, group=self.group, member=self._member,
                        ordered=self._is_ordered, topic=place[0], recs=recs,
                    )  # fmt: skip
                await self._settle(wire, place, ranges, {record[0] for record in records})

    @property
    def _member(self) -> str:
        """A new one for each set of connections: it does not hold what its predecessor held."""
        return f"{self.id}-{self._lives}"

    def _session(self, wire: Wire) -> dict[str, Any]:
        epoch = self._epochs.get(wire, 0)
        return {"group_id": self.group, "member_id": self._member, "share_session_epoch": epoch}

    def _next(self, wire: Wire, found: Any) -> None:
        check(found.error_code)
        self._epochs[wire] = self._epochs.get(wire, 0) + 1

    async def _learn(self, wire: Wire) -> None:
        response = await wire.call(METADATA, 10, topics=None)
        self._topics = {str(one.name): one.topic_id for one in response.topics}

    async def _settle(
        self,
        wire: Wire,
        place: tuple[str, int],
        ranges: list[tuple[int, int, int]],
        known: set[int],
    ) -> None:
        """Settle most of what was acquired from one partition. Raises as `poll`."""
        rng, journal = self._context.rng, self._context.journal
        kinds: dict[int, int] = {}
        for first, last, _ in ranges:
            for offset in range(first, last + 1):
                draw = 0.0 if self._is_draining else rng.random()
                if offset not in known:
                    kinds[offset] = GAP
                elif draw < 0.75:
                    kinds[offset] = ACCEPT
                elif draw < 0.9:
                    kinds[offset] = RELEASE
                elif draw < 0.95:
                    kinds[offset] = REJECT  # the others are held until their lock ends
        if not kinds:
            return
        if not self._is_draining and rng.random() < 0.3:
            await self._context.pause(0.5)
        batches = [
            {"first_offset": offset, "last_offset": offset, "acknowledge_types": (kind,)}
            for offset, kind in sorted(kinds.items())
        ]
        since_ns, outcome = journal.now_ns, INFO
        try:
            asked = {"partition_index": place[1], "acknowledgement_batches": batches}
            topics = [{"topic_id": self._topics[place[0]], "partitions": [asked]}]
            found = await wire.call(SHARE_ACKNOWLEDGE, 1, **self._session(wire), topics=topics)
            self._next(wire, found)
            code = int(found.responses[0].partitions[0].error_code)
            outcome = OK if code == 0 else FAIL if code in REFUSED_CODES else INFO
        finally:
            for kind, how in HOW.items():
                recs = [[place[1], offset] for offset, one in kinds.items() if one == kind]
                if recs:
                    delay = {"delay": self._delay_ms} if kind == RELEASE else {}
                    journal.write(
                        self._context.name, outcome, "settle", since=since_ns, group=self.group,
                        member=self._member, topic=place[0], how=how, recs=recs, **delay,
                    )  # fmt: skip

    def lost(self, error: Exception) -> bool:
        """After a broken connection or an error response: start over, as another member."""
        known = self.routes.failed(error)
        is_session = isinstance(error, Refused) and error.code in SESSION_CODES
        self.routes.drop()
        self._epochs.clear()
        self._lives += 1
        return known or is_session


REFUSED_CODES = {121}
"""INVALID_RECORD_STATE: the whole request had no effect."""
SESSION_CODES = {100, 122, 123, 133}
"""The topic or the share session is unknown, its epoch differs, or there are too many sessions."""


def _acquired(
    data: bytes, ranges: list[tuple[int, int, int]]
) -> list[tuple[int, int, str | None, int]]:
    """Yield (offset, value, key, deliveries) of the records in the ranges."""
    found = []
    for start, header in iterate_headers(data):
        if header.is_control:
            continue
        for record in decode_batch(data, start):
            for first, last, deliveries in ranges:
                if first <= record.offset <= last:
                    key = None if record.key is None else record.key.decode()
                    found.append((record.offset, number_of(record.value), key, deliveries))
    return found


class TogetherMember:
    """Receives several messages of a key at once, as protocols other than Kafka's ask for, in the
    process of the partition's owner; each receive is a member of its own."""

    def __init__(self, context: Context, group: str) -> None:
        self._context = context
        self._group = group
        self._count = 0

    async def poll(self, topic: str, part: int) -> None:
        """Receive from one partition, and settle all, or the first one apart. Raises OSError,
        TimeoutError."""
        context, rng = self._context, self._context.rng
        self._count += 1
        member = f"{context.name}-together-{self._count}"
        asked = ReceiveRequest(
            self._group, member, rng.choice((2, 5, 20)), 1 << 20, True, takes_followers=True
        )

        async def receive(node: Node, found: Topic) -> Any:
            return await node.services.shares.receive(found, part, asked)

        since_ns = context.journal.now_ns
        try:
            received = await context.ask_owner(topic, part, receive)
        except HeadraceError:
            return
        ranges = [(first, last, count) for first, last, count in received.acquired]
        records = [one for batch in received.batches for one in _acquired(batch, ranges)]
        if not records:
            return
        context.journal.write(
            context.name, OK, "acquire", since=since_ns, group=self._group, member=member,
            ordered=True, together=True, topic=topic, recs=[[part, *one] for one in records],
        )  # fmt: skip
        offsets = [one[0] for one in records]
        first = [offsets.pop(0)] if len(offsets) > 1 and rng.random() < 0.5 else []
        await self._settle(topic, part, member, first, RELEASE)
        await context.pause(0.3)
        await self._settle(topic, part, member, offsets, ACCEPT)

    async def _settle(
        self, topic: str, part: int, member: str, offsets: list[int], kind: int
    ) -> None:
        context, outcomes = self._context, dict.fromkeys(offsets, INFO)
        if not offsets:
            return
        settlements = [Settlement(one, one, kind, 0 if kind == RELEASE else -1) for one in offsets]

        async def settle(node: Node, found: Topic) -> Any:
            shares, names = node.services.shares, (self._group, member)
            return await shares.settle(found, part, *names, settlements, is_atomic=False)

        since_ns = context.journal.now_ns
        try:
            errors = await context.ask_owner(topic, part, settle)
            found = (INFO if isinstance(e, Retriable) else FAIL if e else OK for e in errors)
            outcomes = dict(zip(offsets, found, strict=True))
        except HeadraceError:
            return  # in doubt
        finally:
            for outcome in (OK, FAIL, INFO):
                recs = [[part, one] for one, how in outcomes.items() if how == outcome]
                if recs:
                    context.journal.write(
                        context.name, outcome, "settle", since=since_ns, group=self._group,
                        member=member, topic=topic, how=HOW[kind], recs=recs,
                    )  # fmt: skip


async def _run_member(context: Context, group: str) -> None:
    member = ShareMember(context, group)
    together = TogetherMember(context, group)
    while not context.over.is_set():
        topic, part = context.rng.choice(context.places)
        try:
            if group == "ordered" and context.rng.random() < 0.3:
                await together.poll(topic, part)
            else:
                await member.poll(topic, part)
            if context.rng.random() < 0.02:
                # it closes its session with everything that it holds
                member.lost(ConnectionResetError())
        except (OSError, TimeoutError) as error:
            if not member.lost(error):
                context.journal.problem(f"{context.name}: share fetch refused: {error!r}")
            await context.pause(RETRY_S)
            continue
        await context.pause(0.5 / context.rate_per_s)
    member.routes.drop()


async def run_share_member(context: Context) -> None:
    """A member of the unordered group."""
    await _run_member(context, "shared")


async def run_ordered_member(context: Context) -> None:
    """A member of the group that preserves key order."""
    await _run_member(context, "ordered")


async def set_groups_up(context: Context, routes: Routes) -> None:
    """The groups' settings."""
    for group, configs in QUEUE_GROUPS.items():
        resource = {
            "resource_type": GROUP_RESOURCE,
            "resource_name": group,
            "configs": [
                {"name": name, "config_operation": SET, "value": value}
                for name, value in configs.items()
            ],
        }

        async def change(wire: Wire, resource: dict[str, Any] = resource) -> bool:
            done = await wire.call(ALTER_CONFIGS, 0, resources=[resource], validate_only=False)
            check(done.responses[0].error_code)
            return True

        await until_answered(context, routes, None, change)


async def drain(context: Context) -> None:
    """Accept all remaining messages in every group, and record that none is left."""
    for group in QUEUE_GROUPS:
        member = ShareMember(context, group, is_draining=True)
        try:
            async with asyncio.timeout(DRAIN_WITHIN_S):
                await _drain(context, member)
        except TimeoutError:
            context.journal.problem(f"not drained: group {group} after {DRAIN_WITHIN_S:.0f} s")
        member.routes.drop()


async def _drain(context: Context, member: ShareMember) -> None:
    upto: dict[tuple[str, int], int] = {}
    quiet_since_s = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() - quiet_since_s < QUIET_S:
        before = member.received
        for topic, part in context.places:
            try:
                if (topic, part) not in upto:
                    wire = await member.routes.wire(Leader(topic, part))
                    upto[topic, part] = (await note_ends(context, wire, topic, part))[1]
                await member.poll(topic, part)
            except (OSError, TimeoutError) as error:
                if not member.lost(error):
                    context.journal.problem(f"drain of {member.group} refused: {error!r}")
                    return
                before = -1
                await asyncio.sleep(RETRY_S)
        if member.received != before:
            quiet_since_s = asyncio.get_running_loop().time()
    ends = [[topic, part, end] for (topic, part), end in upto.items()]
    context.journal.write(context.name, OK, "drained", group=member.group, upto=ends)
