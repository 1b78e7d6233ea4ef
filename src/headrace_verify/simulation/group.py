"""A consumer group member that implements the classic protocol, with every step recorded.

Invariants: as in `workload`. A member that was stopped for a while does not know that it was
removed, and commits anyway: the broker must reject it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_verify.history import FAIL, INFO, OK
from headrace_verify.kafka_wire import OFFSET_COMMIT, OFFSET_FETCH, Refused
from headrace_verify.simulation.client import Coordinator, Leader, check
from headrace_verify.simulation.workload import RETRY_S, Context, fetch, note_poll

if TYPE_CHECKING:
    from headrace_verify.simulation.client import Wire

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
GROUP = "g"
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 6_000, 3_000
UNKNOWN_MEMBER, ILLEGAL_GENERATION, REBALANCE = 25, 22, 27
FENCED_CODES = {UNKNOWN_MEMBER, ILLEGAL_GENERATION, REBALANCE}


class Member:
    """One member."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.routes = context.routes()
        self.id = ""
        self.generation = -1
        self.positions: dict[tuple[str, int], int] = {}

    async def coordinator(self) -> Wire:
        """Return the connection to the coordinator. Raises OSError, TimeoutError."""
        return await self.routes.wire(Coordinator(GROUP))

    async def join(self) -> None:
        """Join and get partitions. Raises OSError, TimeoutError, Refused."""
        wire = await self.coordinator()
        response = await wire.call(
            JOIN_GROUP,
            3,
            group_id=GROUP,
            session_timeout=SESSION_TIMEOUT_MS,
            rebalance_timeout=REBALANCE_TIMEOUT_MS,
            member_id=self.id,
            protocol_type="verify",
            protocols=[{"name": "by-hand", "metadata": b""}],
        )
        check(response.error_code)
        self.id, generation = response.member_id, int(response.generation_id)
        assignments = []
        if response.leader == response.member_id:
            members = sorted(member.member_id for member in response.members)
            for at, member in enumerate(members):
                mine = range(at, len(self._context.places), len(members))
                data = ",".join(map(str, mine)).encode()
                assignments.append({"member_id": member, "assignment": data})
        response = await wire.call(
            SYNC_GROUP,
            2,
            group_id=GROUP,
            generation_id=generation,
            member_id=self.id,
            assignments=assignments,
        )
        check(response.error_code)
        text = bytes(response.assignment).decode()
        places = [self._context.places[int(number)] for number in text.split(",") if number]
        fields: dict[str, Any] = {"group": GROUP, "member": self.id, "gen": generation}
        parts = [list(place) for place in places]
        self._context.journal.write(self._context.name, OK, "assign", parts=parts, **fields)
        journal, place = self._context.journal, self.routes.place_of(Coordinator(GROUP))
        journal.generations[place] = max(journal.generations.get(place, 0), generation)
        self.positions = await note_committed(self._context, wire, places)
        self.generation = generation  # not before: without an assignment, it owns nothing

    async def heartbeat(self) -> None:
        """Raises Refused if the group rebalances."""
        wire = await self.coordinator()
        place = self.routes.place_of(Coordinator(GROUP))
        newest = self._context.journal.generations.get(place, 0)
        check(await self._beat(wire, self.generation))
        if newest <= self.generation:
            return
        # While it loads, a coordinator accepts all heartbeats, as Kafka's does. So it must accept
        # this one again, between two requests that it answers only when it has loaded.
        is_loaded = await self._is_loaded(wire)
        code = await self._beat(wire, self.generation)
        if is_loaded and not code and await self._is_loaded(wire):
            self._context.journal.problem(
                f"heartbeat after its end: {place} had sent generation {newest}, and accepts"
                f" one of {self.id} in generation {self.generation}"
            )
        check(code)

    async def _beat(self, wire: Wire, generation: int) -> int:
        response = await wire.call(
            HEARTBEAT, 1, group_id=GROUP, generation_id=generation, member_id=self.id
        )
        return int(response.error_code)

    async def _is_loaded(self, wire: Wire) -> bool:
        response = await wire.call(OFFSET_FETCH, 2, group_id=GROUP, topics=[])
        return int(response.error_code) == 0

    async def poll(self) -> None:
        """Continue reading each partition."""
        for (topic, part), position in list(self.positions.items()):
            since_ns = self._context.journal.now_ns
            wire = await self.routes.wire(Leader(topic, part))
            found = await fetch(wire, topic, part, position, isolation=self._context.isolation)
            self.positions[topic, part] = found.next_offset
            if found.records:
                note_poll(self._context, since_ns, topic, part, found.records, group=GROUP)

    async def commit(self) -> None:
        """Commit its positions. Raises OSError, TimeoutError, Refused."""
        journal, name = self._context.journal, self._context.name
        wire = await self.coordinator()
        positions = dict(self.positions)
        if not positions:
            return
        offs = [[topic, part, offset] for (topic, part), offset in positions.items()]
        fields: dict[str, Any] = {"group": GROUP, "member": self.id, "gen": self.generation}
        op = journal.invoke(name, "commit", **fields, offs=offs)
        topics: dict[str, list[dict[str, int]]] = {}
        for (topic, part), offset in positions.items():
            listed = {"partition_index": part, "committed_offset": offset}
            topics.setdefault(topic, []).append(listed)
        try:
            response = await wire.call(
                OFFSET_COMMIT,
                2,
                group_id=GROUP,
                generation_id_or_member_epoch=self.generation,
                member_id=self.id,
                retention_time=-1,
                topics=[{"name": topic, "partitions": parts} for topic, parts in topics.items()],
            )
        except (OSError, TimeoutError):
            journal.write(name, INFO, "commit", op=op, **fields)
            raise
        codes = {int(part.error_code) for topic in response.topics for part in topic.partitions}
        code = max(codes)
        kind = OK if codes == {0} else FAIL if codes <= FENCED_CODES else INFO
        journal.write(name, kind, "commit", op=op, code=code, **fields)
        check(code)

    async def leave(self) -> None:
        """Leave the group. Raises OSError, TimeoutError."""
        wire = await self.coordinator()
        await wire.call(LEAVE_GROUP, 1, group_id=GROUP, member_id=self.id)

    def lost(self, error: Exception) -> bool:
        """React to an error; returns False if the error must not occur."""
        if isinstance(error, Refused) and error.code in FENCED_CODES:
            if error.code == UNKNOWN_MEMBER:
                self.id = ""
            self.generation = -1
            return True
        return self.routes.failed(error)


async def note_committed(
    context: Context, wire: Wire, places: list[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Fetch the group's committed offset, and record it. Raises OSError, TimeoutError, Refused."""
    since_ns = context.journal.now_ns
    positions: dict[tuple[str, int], int] = {}
    if places:
        topics = [{"name": topic, "partition_indexes": (part,)} for topic, part in places]
        found = await wire.call(OFFSET_FETCH, 2, group_id=GROUP, topics=topics)
        check(found.error_code)
        for topic in found.topics:
            for answer in topic.partitions:
                check(answer.error_code)
                place = str(topic.name), int(answer.partition_index)
                positions[place] = int(answer.committed_offset)
    offs = [[topic, part, offset] for (topic, part), offset in positions.items()]
    context.journal.write(context.name, OK, "committed", since=since_ns, group=GROUP, offs=offs)
    return {place: max(offset, 0) for place, offset in positions.items()}


async def run_member(context: Context) -> None:
    """Join, read, commit, be fenced, start over."""
    member = Member(context)
    while not context.over.is_set():
        try:
            if member.generation < 0:
                await member.join()
            await member.poll()
            if context.rng.random() < 0.5:
                await member.commit()
            await member.heartbeat()
            if context.rng.random() < 0.02:
                await member.leave()
                member.id, member.generation = "", -1
        except (OSError, TimeoutError) as error:
            if not member.lost(error):
                context.journal.problem(f"{context.name}: refused: {error!r}")
            await context.pause(RETRY_S)
            continue
        await context.pause(1 / context.rate_per_s)
    member.routes.drop()
