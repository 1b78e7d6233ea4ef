"""Self-test: bugs planted in a real broker's process, each of which the black-box run must find.

Invariants: a bug is a small patch, applied by `spoiled.py` before the broker starts; nothing on
disk changes. `found_by` are the kinds of anomalies of which one must be reported: a run that only
reports "a client gave up" has not found a storage bug.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.topics.topics import Topics
from headrace.coordination.groups import classic, offsets
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.groups.state_records import OffsetStored
from headrace.errors import TopicExists
from headrace.log.partition_log import PartitionLog
from headrace.log.producer_state import ProducerState
from headrace.runtime.clock import SystemClock
from headrace.runtime.completion import Completion
from headrace.storage.files.group_commit import GroupCommit
from headrace_verify.blackbox import queue_bugs, rocketmq_bugs
from headrace_verify.blackbox.parts import RECORDS
from headrace_verify.blackbox.transactions import NAME as TRANSACTIONS
from headrace_verify.crash import bugs as planted
from headrace_verify.self_proof import Bug
from headrace_verify.simulation import delivery_bugs
from headrace_verify.workloads import COMPACTED, LITE, QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace_verify.self_proof import Patch

SECONDS = 12.0
DELAY_S = 0.15


@dataclass(frozen=True)
class ClientBug(Bug):
    """Found by kinds of anomalies."""

    part: str = RECORDS
    """The clients that find it."""


class Found(NamedTuple):
    """What a run with a bug has reported."""

    kinds: set[str]
    seconds: float


def take_every_batch_for_a_new_one(patch: Patch) -> None:
    patch(ProducerState, "check", lambda _self, _batch: None)


def lose_the_last_frame_of_the_wal(patch: Patch) -> None:
    planted.lose_the_last_frame(patch)


def acknowledge_before_writing(patch: Patch) -> None:
    """Acknowledged data stays in this process's memory for a while: a kill loses it."""
    append, begin = GroupCommit.append, GroupCommit.__init__

    class Late:
        """The loop, without its immediate wake-ups."""

        def __init__(self, loop: Any) -> None:
            self._loop = loop

        def call_soon(self, *arguments: Any) -> Any:
            return self._loop.call_later(DELAY_S, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._loop, name)

    def init(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self._loop = Late(self._loop)

    def eager(self: Any, *arguments: Any) -> tuple[int, Completion]:
        position, _ = append(self, *arguments)
        done = Completion()
        done.succeed()
        return position, done

    patch(GroupCommit, "__init__", init)
    patch(GroupCommit, "append", eager)


def tell_another_offset_than_the_stored_one(patch: Patch) -> None:
    append = PartitionLog.append

    def careless(self: Any, *arguments: Any) -> Any:
        appended = append(self, *arguments)
        if appended is not None and appended.base_offset % 50 == 49:
            appended = appended._replace(base_offset=appended.base_offset + 1)
        return appended

    patch(PartitionLog, "append", careless)


def accept_commits_of_old_generations(patch: Patch) -> None:
    patch(offsets, "_check_commit", lambda _group, _command: None)


def give_every_member_the_leaders_partitions(patch: Patch) -> None:
    assign = classic._assign

    def generous(draft: Any, assignments: dict[str, bytes]) -> None:
        mine = assignments.get(draft.group.leader) or next(iter(assignments.values()), b"")
        assign(draft, dict.fromkeys(draft.group.members, mine))

    patch(classic, "_assign", generous)


def keep_commits_in_memory_alone(patch: Patch) -> None:
    encode = GroupMachine.encode

    def forgetful(self: Any, record: Any) -> Any:
        return None if isinstance(record, OffsetStored) else encode(self, record)

    patch(GroupMachine, "encode", forgetful)


def drop_the_offsets_of_committed_transactions(patch: Patch) -> None:
    ended = GroupMachine.ended

    def forgetful(self: Any, transaction: Any) -> Any:
        return ended(self, transaction._replace(is_commit=False))

    patch(GroupMachine, "ended", forgetful)


def show_old_records_in_a_topic_made_again(patch: Patch) -> None:
    create = Topics.create
    hidden: dict[str, Any] = {}

    async def delete(self: Any, topic: Any) -> None:
        hidden[topic.name] = topic
        del self.by_name[topic.name]
        self.version += 1

    async def revive(self: Any, name: str, *arguments: Any, **options: Any) -> Any:
        topic = hidden.pop(name, None)
        if topic is None:
            return await create(self, name, *arguments, **options)
        if name in self.by_name:
            raise TopicExists(f"topic {name!r} is there already")
        self.by_name[name] = topic
        self.version += 1
        return topic.fact

    patch(Topics, "delete", delete)
    patch(Topics, "create", revive)


_LOST = ("lost write", "unseen", "inconsistent offset", "high watermark regressed")
_TORN = ("torn transaction", "lost write", "unseen", "copy lost")
_DIRTY = ("dirty read", "aborted read")
_EARLY = ("above high watermark", "vanished", "external non-monotonic poll")
_AGAIN = ("delivered after its end",)
_KEYS = ("key twice in flight", "key out of order")
_HELD = ("lock ended early", *_KEYS)
_UNSTORED = ("lost write", "misplaced", "duplicate", "inconsistent offset")
_SOON = ("delivered early",)
_ROLLED_BACK = ("aborted read",)
BUGS: tuple[ClientBug, ...] = (
    ClientBug(acknowledge_before_writing, _LOST, 1),
    ClientBug(lose_the_last_frame_of_the_wal, (*_LOST, "vanished"), 15),
    ClientBug(planted.show_records_before_they_are_durable, (*_LOST, *_EARLY), 18),
    ClientBug(planted.read_behind_the_high_watermark, ("above high watermark",), 19),
    ClientBug(take_every_batch_for_a_new_one, ("duplicate",), 20),
    ClientBug(planted.forget_the_producers_on_restart, ("duplicate",), 21),
    ClientBug(tell_another_offset_than_the_stored_one, ("misplaced",), 16),
    ClientBug(accept_commits_of_old_generations, ("old generation's commit",), 31),
    ClientBug(give_every_member_the_leaders_partitions, ("two owners",), 33),
    ClientBug(keep_commits_in_memory_alone, ("committed regressed",), 30),
    ClientBug(show_old_records_in_a_topic_made_again, ("stranger",), 35),
    ClientBug(delivery_bugs.lose_a_marker, (*_TORN, *_DIRTY, "not alive"), 49, TRANSACTIONS),
    ClientBug(delivery_bugs.write_a_marker_twice, (*_TORN, *_DIRTY), 49, TRANSACTIONS),
    ClientBug(
        delivery_bugs.show_an_open_transactions_first_batch, (*_TORN, *_DIRTY), 25, TRANSACTIONS
    ),
    ClientBug(
        delivery_bugs.list_aborted_transactions_one_late, (*_TORN, *_DIRTY), 26, TRANSACTIONS
    ),
    ClientBug(
        delivery_bugs.begin_a_producer_without_a_new_epoch,
        ("zombie committed", "copied twice", *_TORN, *_DIRTY),
        23,
        TRANSACTIONS,
    ),
    ClientBug(
        drop_the_offsets_of_committed_transactions,
        ("committed regressed", "copied twice"),
        30,
        TRANSACTIONS,
    ),
    ClientBug(delivery_bugs.forget_acknowledgements_on_takeover, _AGAIN, 60, QUEUES),
    ClientBug(delivery_bugs.deliver_a_key_while_it_is_in_flight, _KEYS, 61, QUEUES),
    ClientBug(delivery_bugs.deliver_before_the_time, ("delivered early",), 62, QUEUES),
    ClientBug(delivery_bugs.forget_delayed_records_on_takeover, ("lost write",), 63, QUEUES),
    ClientBug(queue_bugs.end_locks_before_their_time, ("lock ended early",), 64, QUEUES),
    ClientBug(queue_bugs.redeliver_without_a_back_off, ("redelivered early",), 65, QUEUES),
    ClientBug(queue_bugs.finish_dead_letters_without_a_copy, ("dead letter lost",), 66, QUEUES),
    ClientBug(queue_bugs.copy_dead_letters_twice, ("dead letter twice",), 67, QUEUES),
    ClientBug(queue_bugs.deliver_expired_messages, ("delivered when expired",), 68, QUEUES),
    ClientBug(queue_bugs.answer_settlements_that_are_not_made, _AGAIN, 69, QUEUES),
    ClientBug(rocketmq_bugs.answer_sends_of_rocketmq_without_storing, _UNSTORED, 70, QUEUES),
    ClientBug(rocketmq_bugs.deliver_rocketmqs_delayed_messages_at_once, _SOON, 71, QUEUES),
    ClientBug(rocketmq_bugs.commit_what_rocketmq_rolls_back, _ROLLED_BACK, 72, QUEUES),
    ClientBug(rocketmq_bugs.overlook_message_groups, _KEYS, 73, QUEUES),
    ClientBug(rocketmq_bugs.acknowledge_to_rocketmq_without_settling, _AGAIN, 74, QUEUES),
    ClientBug(queue_bugs.stop_at_a_gap_of_compaction, ("not alive",), 75, COMPACTED),
    ClientBug(
        queue_bugs.finish_what_a_client_of_lite_topics_gives_back, ("never settled",), 76, LITE
    ),
    ClientBug(queue_bugs.deliver_a_lite_topic_that_is_in_flight, _HELD, 77, LITE),
)
NOT_PLANTED: dict[int, str] = {}


def find(
    bug: ClientBug, seed: int, folder: Path, on_progress: Callable[[float, str], None]
) -> Found:
    """Run the black box against a broker with the bug."""
    from headrace_verify.blackbox.run import Plan, run_blackbox

    clock = SystemClock()
    begun_ns = clock.now_ns()
    plan = Plan(
        SECONDS,
        seed,
        is_quick=True,
        bug=bug.name,
        kinds=("kill", "pause", "reset"),
        parts=(bug.part,),
    )
    outcome = run_blackbox(plan, folder, on_progress)
    kinds = set(outcome.verdict.counts)
    kinds |= {text.partition(":")[0] for text in outcome.violations}
    return Found(kinds, (clock.now_ns() - begun_ns) / 1e9)
