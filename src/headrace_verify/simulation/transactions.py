"""Transactional clients of a simulated run: producers, and copiers that commit what they read.

Invariants: as in `workload`. Each client uses the older flow or that of KIP-890, depending on its
seed. A transaction is `commit` or `abort` in the history only if its coordinator has confirmed it,
or if no commit was ever requested; else it may be either. Copiers share one transactional id, so
each new one fences the others.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_verify.history import FAIL, INFO, OK
from headrace_verify.kafka_wire import INIT_PRODUCER_ID, OFFSET_FETCH, PRODUCE, Refused
from headrace_verify.simulation.client import Coordinator, Leader, check
from headrace_verify.simulation.workload import (
    RETRY_S,
    Context,
    Sender,
    encoded,
    fetch,
    note_poll,
    until_answered,
)

if TYPE_CHECKING:
    from headrace_verify.simulation.client import Routes, Wire

ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
COPIES, COPIERS = "copies", "copiers"
TIMEOUTS_MS = (3_000, 6_000, 10_000)
FENCED_CODES = {47, 48, 49, 67, 90, 120}
"""Another instance uses the id, or the transaction has timed out: start over."""
COMMIT_SHARE, ABORT_SHARE = 0.7, 0.2
"""The fraction of transactions that end; the others are left open until they time out."""
SLOW_SHARE, SLOW_S = 0.1, 4.0
"""The fraction of transactions that last this long, some beyond their time-out."""


class Over(Exception):
    """The run ended before it completed."""


class Transactor:
    """One instance of a transactional producer."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._id = name
        self.routes: Routes = context.routes()
        self._sender = Sender(context)
        self._is_new_flow = context.rng.random() < 0.5
        self._timeout_ms = context.rng.choice(TIMEOUTS_MS)
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int]] = set()
        self._sent: list[tuple[str, int, list[int], int]] = []
        self._offsets_op: int | None = None
        self._count = 0
        self.name = ""
        """The id of the open transaction in the history."""

    @property
    def is_ready(self) -> bool:
        """Whether it has a producer id."""
        return self._producer is not None

    async def _ask(self, of: Any, api: int, version: int, **values: Any) -> Any:
        """Raises Refused, Over."""

        async def ask(wire: Wire) -> Any:
            found = await wire.call(api, version, **values)
            for code in _codes(found):
                check(code)
            return found

        found = await until_answered(self._context, self.routes, of, ask)
        if found is None:
            raise Over
        return found

    async def _ask_coordinator(self, api: int, version: int, **values: Any) -> Any:
        return await self._ask(Coordinator(self._id, True), api, version, **values)

    async def begin_life(self) -> None:
        """Get a producer id, or its next epoch; ends an open transaction. Raises Refused, Over."""
        self._producer = None
        made = await self._ask_coordinator(
            INIT_PRODUCER_ID,
            5 if self._is_new_flow else 4,
            transactional_id=self._id,
            transaction_timeout=self._timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        self._producer = int(made.producer_id), int(made.producer_epoch)
        self._sequences.clear()

    def _whose(self, prefix: str = "") -> dict[str, Any]:
        assert self._producer is not None
        names = ("transactional_id", "producer_id", "producer_epoch")
        return {
            prefix + name: value
            for name, value in zip(names, (self._id, *self._producer), strict=True)
        }

    def begin(self) -> None:
        """Begin a transaction."""
        self._count += 1
        self.name = f"{self._context.name}.{self._count}"
        self._added.clear()
        self._sent.clear()
        self._offsets_op = None

    async def send(self, topic: str, part: int, values: list[int]) -> None:
        """Write a batch in the transaction. Raises Refused, Over."""
        place = topic, part
        assert self._producer is not None
        self._sent.append((topic, part, values, -1))
        if not self._is_new_flow and place not in self._added:
            await self._ask_coordinator(
                ADD_PARTITIONS,
                3,
                **self._whose("v3_and_below_"),
                v3_and_below_topics=[{"name": topic, "partitions": (part,)}],
            )
            self._added.add(place)
        first = self._sequences.get(place, 0)
        batch = encoded(self._context, values, self._producer, first, is_transactional=True)
        found = await self._ask(
            Leader(topic, part),
            PRODUCE,
            12 if self._is_new_flow else 7,
            transactional_id=self._id,
            acks=-1,
            timeout=5000,
            topic_data=[{"name": topic, "partition_data": [{"index": part, "records": batch}]}],
        )
        offset = int(found.responses[0].partition_responses[0].base_offset)
        self._sequences[place] = first + len(values)
        self._sent[-1] = (topic, part, values, offset)
        self._sender.end(OK, topic, part, values, offset)

    def new_values(self, topic: str, part: int, count: int, **fields: Any) -> list[int]:
        """Values to be sent in the transaction."""
        return self._sender.begin(topic, part, count, txn=self.name, **fields)

    async def commit_offsets(self, offsets: dict[tuple[str, int], int]) -> None:
        """Commit a group's offsets with the transaction. Raises Refused, Over."""
        journal, name = self._context.journal, self._context.name
        offs = [[topic, part, offset] for (topic, part), offset in offsets.items()]
        self._offsets_op = journal.invoke(
            name, "commit", group=COPIERS, member=name, offs=offs, txn=self.name
        )
        if not self._is_new_flow:
            await self._ask_coordinator(ADD_OFFSETS, 3, **self._whose(), group_id=COPIERS)
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, part), offset in offsets.items():
            listed = {"partition_index": part, "committed_offset": offset}
            listed["committed_leader_epoch"] = -1
            topics.setdefault(topic, []).append(listed)
        await self._ask(
            Coordinator(COPIERS),
            TXN_OFFSET_COMMIT,
            5 if self._is_new_flow else 3,
            **self._whose(),
            group_id=COPIERS,
            generation_id=-1,
            member_id="",
            topics=[{"name": topic, "partitions": parts} for topic, parts in topics.items()],
        )

    async def end(self, how: str) -> None:
        """Commit or abort. Raises Refused, Over."""
        self._note("invoke", how)
        found = await self._ask_coordinator(
            END_TXN, 5 if self._is_new_flow else 3, **self._whose(), committed=how == "commit"
        )
        if self._is_new_flow:
            self._producer = int(found.producer_id), int(found.producer_epoch)
            self._sequences.clear()
        self._note(OK, how)
        self.forget(OK if how == "commit" else FAIL)

    def fail(self) -> None:
        """No commit was requested, and none will be."""
        self._note(FAIL, "abort")
        self.forget(FAIL)

    def forget(self, outcome: str) -> None:
        """Record the transaction's outcome, or that it will stay unknown (INFO)."""
        for topic, part, values, offset in self._sent:
            if offset < 0:
                self._sender.end(INFO, topic, part, values)
        self._sent.clear()
        if self._offsets_op is not None:
            self._context.journal.write(
                self._context.name, outcome, "commit", op=self._offsets_op, group=COPIERS
            )
        self._offsets_op = None
        self.name = ""

    def _note(self, kind: str, how: str) -> None:
        self._context.journal.write(self._context.name, kind, "transaction", txn=self.name, end=how)


def _codes(found: Any) -> list[int]:
    """Every error code in a response."""
    code = getattr(found, "error_code", None)
    if code is not None:
        return [int(code)]
    if hasattr(found, "responses"):
        parts = (part for one in found.responses for part in one.partition_responses)
        return [int(part.error_code) for part in parts]
    if hasattr(found, "results_by_topic_v3_and_below"):
        topics = found.results_by_topic_v3_and_below
        parts = (part for one in topics for part in one.results_by_partition)
        return [int(part.partition_error_code) for part in parts]
    return [int(part.error_code) for one in found.topics for part in one.partitions]


async def _end_some_way(context: Context, transactor: Transactor) -> None:
    """Commit, abort, or leave it to its time-out. Raises Refused, Over."""
    if context.rng.random() < SLOW_SHARE:
        await context.pause(SLOW_S)
    draw = context.rng.random()
    if draw < COMMIT_SHARE:
        await transactor.end("commit")
    elif draw < COMMIT_SHARE + ABORT_SHARE:
        await transactor.end("abort")
    else:
        transactor.fail()
        await context.pause(SLOW_S)
        await transactor.begin_life()


async def _work(context: Context, transactor: Transactor, was_asked: list[bool]) -> None:
    """One transaction of a producer. Raises Refused, Over."""
    transactor.begin()
    for _ in range(context.rng.choice((1, 2, 2, 4))):
        topic, part = context.rng.choice(context.places)
        if topic == COPIES:
            continue
        values = transactor.new_values(topic, part, context.rng.choice((1, 1, 2, 5)))
        await transactor.send(topic, part, values)
    was_asked.append(True)
    await _end_some_way(context, transactor)


async def _run(context: Context, name: str, work: Any) -> None:
    transactor = Transactor(context, name)
    while not context.over.is_set():
        asked: list[bool] = []
        try:
            if not transactor.is_ready:
                await transactor.begin_life()
            await work(context, transactor, asked)
        except (Refused, Over) as error:
            if transactor.name:
                if asked:
                    transactor.forget(INFO)
                else:
                    transactor.fail()
            if isinstance(error, Over):
                break
            if error.code not in FENCED_CODES:
                context.journal.problem(
                    f"{context.name}: a valid transaction was rejected: {error}"
                )
                break
            transactor._producer = None  # noqa: SLF001 - of this module
            await context.pause(RETRY_S)
        await context.pause(2 / context.rate_per_s)
    transactor.routes.drop()


async def run_transactional(context: Context) -> None:
    """Transactions over several partitions, under a separate id."""
    await _run(context, context.name, _work)


# --- copies ----------------------------------------------------------------------------------


async def run_copier(context: Context) -> None:
    """Read committed records, write a copy of each, and commit the positions, atomically."""
    positions: dict[tuple[str, int], int] = {}

    async def copy(context: Context, transactor: Transactor, was_asked: list[bool]) -> None:
        try:
            if not positions:
                positions.update(await _committed(context, transactor))
            ended = await _copy(context, transactor, positions, was_asked)
        except (Refused, Over):
            positions.clear()
            raise
        if not ended:
            positions.clear()

    await _run(context, COPIERS, copy)


async def _committed(context: Context, transactor: Transactor) -> dict[tuple[str, int], int]:
    """Return the group's committed offset once no commit is pending. Raises Refused, Over."""
    places = [place for place in context.places if place[0] != COPIES]
    since_ns = context.journal.now_ns
    topics = [{"name": topic, "partition_indexes": (part,)} for topic, part in places]

    async def ask(wire: Wire) -> dict[tuple[str, int], int]:
        nonlocal since_ns
        since_ns = context.journal.now_ns
        response = await wire.call(
            OFFSET_FETCH, 7, group_id=COPIERS, topics=topics, require_stable=True
        )
        check(response.error_code)
        found: dict[tuple[str, int], int] = {}
        for topic in response.topics:
            for part in topic.partitions:
                check(part.error_code)
                found[str(topic.name), int(part.partition_index)] = int(part.committed_offset)
        return found

    found: dict[tuple[str, int], int] | None
    found = await until_answered(context, transactor.routes, Coordinator(COPIERS), ask)
    if found is None:
        raise Over
    offs = [[topic, part, offset] for (topic, part), offset in found.items()]
    context.journal.write(context.name, OK, "committed", since=since_ns, group=COPIERS, offs=offs)
    owned = [list(place) for place in places]
    # it assigns its partitions manually
    context.journal.write(context.name, OK, "assign", parts=owned)
    return {place: max(offset, 0) for place, offset in found.items()}


async def _copy(
    context: Context,
    transactor: Transactor,
    positions: dict[tuple[str, int], int],
    was_asked: list[bool],
) -> bool:
    """One transaction; returns whether its offsets are certainly committed. Raises Refused,
    Over."""
    transactor.begin()
    moved: dict[tuple[str, int], int] = {}
    for (topic, part), position in positions.items():
        since_ns = context.journal.now_ns
        found = await until_answered(
            context,
            transactor.routes,
            Leader(topic, part),
            partial(fetch, topic=topic, part=part, offset=position, isolation=1),
        )
        if found is None:
            raise Over
        if not found.records:
            continue
        note_poll(context, since_ns, topic, part, found.records, txn=transactor.name)
        moved[topic, part] = found.next_offset
        target = part % 2
        values = [
            transactor.new_values(COPIES, target, 1, of=[topic, part, offset])[0]
            for offset, _ in found.records
        ]
        await transactor.send(COPIES, target, values)
    if not moved:
        transactor.fail()
        return True
    await transactor.commit_offsets(moved)
    was_asked.append(True)
    name = transactor.name
    await _end_some_way(context, transactor)
    is_committed = context.journal.outcomes.get(name) == "commit"
    if is_committed:
        positions.update(moved)
    return is_committed
