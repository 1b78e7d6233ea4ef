"""Self-test: bugs planted in the brokers of a simulated cluster, each of which must be found.

Invariants: a bug is a small patch of this process, reverted afterwards. Each names the kinds of
faults that expose it (all, if it names none), so that a short search finds it; the seeds are as for
any run. A run that finds only a stuck client has found the bug as well: a user would notice it,
too.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headrace.broker.coordinators.coordinator_shard import CoordinatorShard
from headrace.broker.coordinators.coordinator_shards import CoordinatorShards
from headrace.broker.coordinators.producer_ids import BLOCK_SIZE, IDS_PER_MS, ProducerIds
from headrace.broker.ownership.chain_watch import ChainWatch
from headrace.broker.ownership.ownership_waiter import OwnershipWaiter
from headrace.broker.ownership.shared_ownership import SharedOwnership
from headrace.broker.ownership.suspended_logs import SuspendedLogs
from headrace.broker.session_guard import SessionGuard
from headrace.broker.topics.deletion import Deletions
from headrace.coordination.groups import classic
from headrace.coordination.groups.commands import HeartbeatReply
from headrace.coordination.kit.machine import Decision
from headrace.errors import HeadraceError, NotCoordinator
from headrace.kafka.dispatch import KafkaFace
from headrace.log import retention
from headrace.log.compaction.cleaner import Cleaner
from headrace.log.ledger_chain import LedgerChain
from headrace.log.producer_state import ProducerState
from headrace.metadata.facts import PartitionFact, allocate_producer_ids
from headrace.metadata.store import ABSENT
from headrace.runtime.completion import Completion, completed
from headrace.runtime.session import Session
from headrace.storage.bookkeeper import bookie_connection
from headrace.storage.bookkeeper.ensemble import BookiePool
from headrace.storage.bookkeeper.ledger_handle import LedgerHandle
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.recovery import Recovery
from headrace.storage.bookkeeper.wire import OK, read_frame
from headrace.storage.files import checkpoint
from headrace.storage.files.write_ahead_log import WriteAheadLog
from headrace.zookeeper import wire
from headrace_verify.blackbox import bugs as blackbox_bugs
from headrace_verify.crash import broker_bugs, store_bugs
from headrace_verify.crash import bugs as planted
from headrace_verify.self_proof import Bug
from headrace_verify.simulation import delivery_bugs, ownership_bugs
from headrace_verify.simulation.run import draw_scenario, simulate
from headrace_verify.simulation.schedule import draw_schedule
from headrace_verify.simulation.zookeeper import PING
from headrace_verify.task import patched
from headrace_verify.workloads import LOG, QUEUES, TRANSACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_verify.self_proof import Patch
    from headrace_verify.simulation.run import Result

SECONDS = 60.0
SEEDS_MAX = 40
"""A bug counts as not found after this many seeds."""


@dataclass(frozen=True)
class ClusterBug(Bug):
    """Found by kinds of anomalies; without any, each problem counts."""

    faults: tuple[str, ...] = ()
    """The faults that expose it; none: all."""
    roles: tuple[str, ...] = ()
    """Required clients, in addition to the seed's."""
    is_lone: bool = False
    """Whether it is a bug of a standalone broker with its own files."""
    points: tuple[str, ...] = ()
    """Fault points, if it needs any: then only these."""
    workload: str = LOG


class Found(NamedTuple):
    """The result of the search for a bug."""

    result: Result | None
    """The first run with a problem."""
    seeds: int


def keep_a_session_safe_while_its_connection_is_broken(patch: Patch) -> None:
    def suspend(self: Session, now_ns: int) -> None:
        self.ends_ns = now_ns + 10 * self.timeout_ms * 1_000_000

    patch(Session, "suspend", suspend)


def take_what_one_server_answers_for_the_leaders_word(patch: Patch) -> None:
    """Keep-alives are pings, as most ZooKeeper clients send them."""
    ping = wire.Request(PING, b"", lambda _answer: None).frame(wire.BEAT_XID)
    patch(wire, "beat", lambda: ping)


def take_over_without_a_fence(patch: Patch) -> None:
    """Nor is the session checked: a resumed broker would step down before it writes anything."""

    def unfenced(ledger: int, entry: int, _key: bytes) -> bytes:
        return read_frame(ledger, entry)

    patch(bookie_connection, "fencing_read_frame", unfenced)
    ignore_that_the_session_is_lost(patch)


def stop_a_recovery_at_what_was_confirmed(patch: Patch) -> None:
    settle = Recovery._settle

    def hasty(self: Any, handle: Any) -> None:
        if self._confirmed in self._length_at:
            self._end = handle.next_entry - 1
        settle(self, handle)

    patch(Recovery, "_settle", hasty)


def acknowledge_with_the_first_bookie(patch: Patch) -> None:
    begin = LedgerHandle.__init__

    def careless(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self.quorum = self.quorum._replace(ack=1)

    patch(LedgerHandle, "__init__", careless)


def take_a_bookie_that_timed_out_for_one_that_stored(patch: Patch) -> None:
    responded = LedgerHandle.responded

    def trusting(self: Any, send: Any, code: int) -> Any:
        return responded(self, send, OK if code < 0 else code)

    patch(LedgerHandle, "responded", trusting)


def give_a_slot_to_other_bookies_alone(patch: Patch) -> None:
    choose = BookiePool.choose_spare

    def proud(self: Any, ensemble: Any, slot: int, excluded: Any, *more: Any) -> Any:
        return choose(self, ensemble, slot, {*excluded, ensemble[slot]}, *more)

    patch(BookiePool, "choose_spare", proud)


def ignore_that_the_session_is_lost(patch: Patch) -> None:
    patch(SessionGuard, "term_at", lambda self, _now_ns: self.term)


def answer_before_the_session_is_looked_at(patch: Patch) -> None:
    """The session is only checked periodically, as if responses were not gated."""
    begin = KafkaFace.__init__

    def open_to_all(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.gate = self.produce._gate = self.fetch._gate = None

    patch(KafkaFace, "__init__", open_to_all)


def continue_with_former_logs_in_a_new_session(patch: Patch) -> None:
    """Nor are the owners compared, whose changes a broker that was away has not seen yet, nor does
    it care that its registration has disappeared."""
    step_up = SharedOwnership._step_up

    def careless(self: Any, topic: Any, number: int, served: Any) -> bool:
        if not served.tenure.reinstate():
            return False
        topic.partitions[number] = served
        self._topics.version += 1
        return True

    patch(SuspendedLogs, "reinstate", careless)
    patch(SessionGuard, "renounce", lambda _self: None)
    patch(SharedOwnership, "_step_up", lambda self, _has_survived: step_up(self, True))


def continue_with_former_coordinators_in_a_new_session(patch: Patch) -> None:
    """Their state lacks what others have committed in between."""

    def forget_none(self: Any, partition: int) -> None:
        shard = self._shards.pop(partition, None)
        if shard is not None and not shard.suspend():
            shard.close(NotCoordinator("planted"))
        elif shard is not None:
            self._suspended[partition] = shard

    resume = CoordinatorShard.resume

    def careless(self: Any, shard_log: Any) -> bool:
        self._log = self._appends._log = self.snapshots._log = shard_log
        return resume(self, shard_log)

    patch(CoordinatorShards, "resign", forget_none)
    patch(CoordinatorShard, "resume", careless)


def call_every_append_durable_at_once(patch: Patch) -> None:
    append = BookKeeperLedgerStore.append

    def eager(self: Any, *arguments: Any) -> tuple[int, Completion]:
        position, _ = append(self, *arguments)
        return position, completed()

    patch(BookKeeperLedgerStore, "append", eager)


def delete_what_is_written_to_by_age(patch: Patch) -> None:
    def generous(log: Any, _now_ms: int) -> int:
        return int(log.high_watermark)

    patch(retention, "start_after_retention", generous)


def take_a_calendar_that_was_set_back_for_age(patch: Patch) -> None:
    start = retention.start_after_retention

    def unsigned(log: Any, now_ms: int) -> int:
        newest = max((segment.newest_ms for segment in log.segments), default=now_ms)
        return start(log, newest + abs(now_ms - newest))

    patch(retention, "start_after_retention", unsigned)


def take_batches_of_former_epochs(patch: Patch) -> None:
    check = ProducerState.check

    def lenient(self: Any, batch: Any) -> Any:
        known = self._producers.get(batch.producer_id)
        if known is not None and batch.producer_epoch < known.epoch:
            return None
        return check(self, batch)

    patch(ProducerState, "check", lenient)


def take_heartbeats_of_members_that_are_out(patch: Patch) -> None:
    decide = classic.decide_heartbeat

    def kind(group: Any, command: Any, now_ms: int) -> Any:
        decision = decide(group, command, now_ms)
        return decision if decision.records else Decision([], HeartbeatReply(None))

    patch(classic, "decide_heartbeat", kind)


def keep_the_lock_of_a_cancelled_request(patch: Patch) -> None:
    async def take(self: Any) -> int:
        await self._lock.acquire()
        try:
            if not self._block:
                least = self._clock.now_ms() * IDS_PER_MS
                self._block = await allocate_producer_ids(self._metadata, BLOCK_SIZE, least)
        except HeadraceError:
            self._lock.release()
            raise
        producer_id, self._block = self._block[0], self._block[1:]
        self._lock.release()
        return int(producer_id)

    patch(ProducerIds, "take", take)


def look_for_a_log_file_under_its_former_name(patch: Patch) -> None:
    recycle = WriteAheadLog.recycle

    def stale(self: Any, old: Any, number: int) -> Any:
        former = old.path
        try:
            return recycle(self, old, number)
        except OSError:
            old.path = former
            raise

    patch(WriteAheadLog, "recycle", stale)


def forget_that_a_footers_sync_failed(patch: Patch) -> None:
    patch(checkpoint.CheckpointWriter, "_rewrite_footers", lambda self, wanted: None)


def answer_a_deletion_before_writers_are_shut_out(patch: Patch) -> None:
    async def hasty(*_: Any) -> bool:
        return True

    patch(Deletions, "_shut_out_all", hasty)
    patch(OwnershipWaiter, "wait_ended", hasty)


def take_a_missing_chain_for_a_new_one(patch: Patch) -> None:
    async def load(self: Any) -> PartitionFact:
        entry = await self._metadata.get(self._key)
        self.fact, self._version = PartitionFact(), ABSENT
        if entry is not None:
            self.fact, self._version = PartitionFact.decode(entry.value), entry.version
        return cast("PartitionFact", self.fact)

    async def nothing(*_: Any) -> None:
        return

    patch(LedgerChain, "load", load)
    patch(LedgerChain, "lost", lambda self, *_: self._not_owner(self.fact.leader_epoch))
    patch(LedgerChain, "_check_evidence", nothing)
    patch(ChainWatch, "_read_chain", nothing)


def delete_a_ledger_whose_swap_is_in_doubt(patch: Patch) -> None:
    swap = Cleaner._swap

    async def hasty(self: Any, group: Any, new: Any, begin_ns: int) -> None:
        try:
            await swap(self, group, new, begin_ns)
        except HeadraceError:
            await self._drop(new.ledger)
            raise

    patch(Cleaner, "_swap", hasty)


_DIRTY = ("dirty read", "aborted read", "torn transaction", "lost write")
_STALE = ("an older value", "a lost key")
BUGS: tuple[ClusterBug, ...] = (
    ClusterBug(
        take_a_missing_chain_for_a_new_one,
        ("lost write", "inconsistent offset"),
        number=42,
        faults=("lose-chain",),
    ),
    ClusterBug(
        take_over_without_a_fence,
        ("lost write", "inconsistent offset"),
        number=39,
        faults=("pause", "cut-session", "cut-session-half", "expire"),
    ),
    ClusterBug(
        stop_a_recovery_at_what_was_confirmed, number=15, faults=("crash", "power", "expire")
    ),
    ClusterBug(
        acknowledge_with_the_first_bookie,
        number=1,
        faults=("bookie-power", "bookie-crash", "power"),
    ),
    ClusterBug(
        take_a_bookie_that_timed_out_for_one_that_stored,
        number=2,
        faults=("bookie-power", "bookie-pause"),
    ),
    ClusterBug(
        give_a_slot_to_other_bookies_alone,
        number=45,
        faults=("bookie-crash", "bookie-power", "reset"),
    ),
    ClusterBug(
        ignore_that_the_session_is_lost,
        number=40,
        faults=("cut-session", "cut-session-half"),
        roles=("observer",),
    ),
    ClusterBug(
        keep_a_session_safe_while_its_connection_is_broken,
        number=40,
        faults=("cut-session", "expire"),
    ),
    ClusterBug(
        take_what_one_server_answers_for_the_leaders_word, number=70, faults=("zookeeper-alone",)
    ),
    ClusterBug(
        answer_before_the_session_is_looked_at,
        number=41,
        faults=("freeze",),
        roles=("prober", "member") * 2,
    ),
    ClusterBug(
        continue_with_former_logs_in_a_new_session,
        number=41,
        faults=("freeze",),
        roles=("prober",) * 2,
    ),
    ClusterBug(
        continue_with_former_coordinators_in_a_new_session,
        number=41,
        faults=("freeze",),
        roles=("prober",) * 2,
    ),
    ClusterBug(
        ownership_bugs.take_refused_connections_for_a_death,
        number=41,
        faults=("shun-pause", "shun-cut"),
        roles=("prober",) * 2,
    ),
    ClusterBug(
        call_every_append_durable_at_once,
        number=18,
        faults=("bookie-power", "power", "bookie-pause"),
    ),
    ClusterBug(
        planted.forget_the_producers_on_restart,
        number=21,
        faults=("crash", "expire", "reset", "pause"),
    ),
    ClusterBug(blackbox_bugs.take_every_batch_for_a_new_one, number=20),
    ClusterBug(blackbox_bugs.tell_another_offset_than_the_stored_one, number=16),
    ClusterBug(
        blackbox_bugs.accept_commits_of_old_generations,
        number=31,
        faults=("pause-client",),
        roles=("member",) * 2,
    ),
    ClusterBug(
        blackbox_bugs.give_every_member_the_leaders_partitions, number=33, roles=("member",) * 2
    ),
    ClusterBug(
        blackbox_bugs.keep_commits_in_memory_alone,
        number=30,
        faults=("crash", "expire"),
        roles=("member",) * 2,
    ),
    ClusterBug(delete_what_is_written_to_by_age, number=27),
    ClusterBug(take_batches_of_former_epochs, number=23),
    ClusterBug(
        take_heartbeats_of_members_that_are_out,
        number=32,
        faults=("pause-client",),
        roles=("member",) * 2,
    ),
    ClusterBug(
        keep_the_lock_of_a_cancelled_request,
        number=38,
        faults=("pause-client",),
        roles=("asker",) * 4,
        points=("request cancelled", "producer ids used up"),
    ),
    ClusterBug(store_bugs.never_sync_the_wal, number=1, faults=("power",), is_lone=True),
    ClusterBug(
        store_bugs.count_what_joined_after_the_sync_began, number=3, faults=("power",), is_lone=True
    ),
    ClusterBug(
        store_bugs.repeat_failed_syncs, number=8, faults=("power", "disk-sync"), is_lone=True
    ),
    ClusterBug(
        forget_that_a_footers_sync_failed, number=8, faults=("power", "disk-sync"), is_lone=True
    ),
    ClusterBug(
        look_for_a_log_file_under_its_former_name, number=8, faults=("disk-sync",), is_lone=True
    ),
    ClusterBug(
        store_bugs.take_a_torn_write_for_a_whole_one,
        number=9,
        faults=("power", "disk-full"),
        is_lone=True,
    ),
    ClusterBug(take_a_calendar_that_was_set_back_for_age, number=28, faults=("clock",)),
    ClusterBug(
        answer_a_deletion_before_writers_are_shut_out,
        number=35,
        roles=("churn",) * 4,
        points=("watch late",),
    ),
    ClusterBug(broker_bugs.drop_live_keys, _STALE, number=43, roles=("table",)),
    ClusterBug(broker_bugs.drop_tombstones_early, _STALE, number=44, roles=("table",)),
    ClusterBug(
        delete_a_ledger_whose_swap_is_in_doubt,
        number=55,
        faults=("cut-session", "cut-session-half", "expire", "reset"),
        roles=("table",) * 4,
    ),
    ClusterBug(delivery_bugs.lose_a_marker, ("no progress",), number=49, workload=TRANSACTIONS),
    ClusterBug(delivery_bugs.write_a_marker_twice, _DIRTY, number=49, workload=TRANSACTIONS),
    ClusterBug(
        delivery_bugs.show_an_open_transactions_first_batch,
        _DIRTY,
        number=25,
        workload=TRANSACTIONS,
    ),
    ClusterBug(
        delivery_bugs.list_aborted_transactions_one_late, _DIRTY, number=26, workload=TRANSACTIONS
    ),
    ClusterBug(
        delivery_bugs.begin_a_producer_without_a_new_epoch,
        number=23,
        roles=("copier",) * 2,
        workload=TRANSACTIONS,
    ),
    ClusterBug(
        delivery_bugs.forget_acknowledgements_on_takeover,
        ("delivered after its end",),
        number=51,
        faults=("crash", "expire", "power"),
        workload=QUEUES,
    ),
    ClusterBug(
        delivery_bugs.deliver_a_key_while_it_is_in_flight,
        ("key twice in flight", "key out of order"),
        number=52,
        workload=QUEUES,
    ),
    ClusterBug(
        delivery_bugs.deliver_a_key_of_which_later_records_are_in_flight,
        ("key twice in flight", "key out of order"),
        number=52,
        workload=QUEUES,
    ),
    ClusterBug(
        delivery_bugs.deliver_before_the_time,
        ("delivered early",),
        number=53,
        faults=("crash",),
        workload=QUEUES,
    ),
    ClusterBug(
        delivery_bugs.forget_delayed_records_on_takeover,
        ("lost write",),
        number=53,
        faults=("crash", "power"),
        workload=QUEUES,
    ),
    ClusterBug(
        delivery_bugs.show_half_messages_at_once,
        ("dirty read", "aborted read"),
        number=54,
        workload=QUEUES,
    ),
)


def find(
    bug: ClusterBug, seed: int, on_progress: Callable[[float, str], None] | None = None
) -> Found:
    """Run seeds with the bug in place until one run has a problem."""
    with ExitStack() as patches:

        def patch(target: Any, name: str, value: Any) -> None:
            patches.enter_context(patched(target, name, value))

        bug.plant(patch)
        for count in range(SEEDS_MAX):
            if on_progress is not None:
                on_progress(count / SEEDS_MAX, bug.name)
            scenario = draw_scenario(
                seed + count, SECONDS, is_lone=bug.is_lone, workload=bug.workload
            )
            if bug.faults:
                faults = draw_schedule(seed + count, SECONDS, bug.faults)
                scenario = scenario._replace(schedule=tuple(faults))
            scenario = scenario._replace(
                roles=(*scenario.roles, *bug.roles), points=bug.points or scenario.points
            )
            result = simulate(scenario)
            if not result.held and (not bug.found_by or result.kinds.intersection(bug.found_by)):
                return Found(result, count + 1)
    return Found(None, SEEDS_MAX)
