"""Figures of consumer groups, share groups, and delayed and half messages.

Invariants: see `runtime.figures`. What is not in memory is left out.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headrace.errors import HeadraceError
from headrace.log.reading import Miss
from headrace.records.batch import read_header
from headrace.runtime.figures import Figures, figure, figures_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.broker.coordinators.group_coordinator import GroupCoordinator
    from headrace.broker.shares.dead_letters import DeadLetters
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.timers.timer_partitions import TimerPartitions
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock

_T = TypeVar("_T")
LAGS_MAX: Final = 5_000
"""Partitions of groups with a lag of their own."""
AGES_MAX: Final = 1_000
"""Records whose time is looked up for one scrape, at about 10 us each."""


def first_of(items: Iterable[_T]) -> tuple[list[_T], bool]:
    """(LAGS_MAX of the items, whether there are more)."""
    found = [*islice(items, LAGS_MAX + 1)]
    return found[:LAGS_MAX], len(found) > LAGS_MAX


class Ages:
    """The age of records, as far as they are in memory: AGES_MAX of them."""

    def __init__(self, clock: Clock) -> None:
        self._now_ms = clock.now_ms()
        self._left = AGES_MAX

    def of(self, log: PartitionLog, offset: int) -> float | None:
        """Seconds since the timestamp of the batch with this offset; None if it is not known."""
        if self._left <= 0:
            return None
        self._left -= 1
        try:
            found = log.reader.read_now(max(offset, log.log_start_offset), 1)
        except HeadraceError:
            return None
        if isinstance(found, Miss) or not found[0]:
            return None
        return max(self._now_ms - read_header(found[0]).max_timestamp_ms, 0) / 1000


class Lag(NamedTuple):
    """How far a group is behind in one partition."""

    group: str
    topic: str
    partition: int
    records: int
    log: PartitionLog
    offset: int
    """Of the first record that is not committed, or not finished."""
    acquired_records: int = 0
    """Records that consumers of a share group hold."""


def consumer_lags(groups: GroupCoordinator, topics: Topics) -> Iterator[Lag]:
    """Of the consumer groups whose coordinator and partition are loaded here."""
    for group_id, one in groups.loaded_offsets():
        topic = topics.readable.find(one.topic)
        log = None if topic is None else topic.log(one.partition)
        if topic is None or log is None or not log.is_loaded:
            continue
        if one.topic_id is None or one.topic_id == topic.id:  # otherwise of a deleted topic
            records = max(log.high_watermark - one.offset, 0)
            yield Lag(group_id, one.topic, one.partition, records, log, one.offset)


def share_lags(
    shares: SharePartitions, topics: Iterable[Topic], ownership: Ownership
) -> Iterator[Lag]:
    """Of share groups on partitions that this broker serves and whose state is loaded."""
    for topic in list(topics):
        for number, log in list(topic.logs):
            if not log.is_loaded or not ownership.is_mine(topic, number):
                continue
            for one in shares.describe_loaded(topic, number):
                records = max(log.high_watermark - one.start - one.finished_records, 0)
                held = one.acquired_records
                yield Lag(one.group_id, topic.name, number, records, log, one.start, held)


def consumer_group_figures(
    groups: GroupCoordinator, topics: Topics, clock: Clock
) -> Iterable[Figures]:
    """Of the groups that this broker coordinates and has loaded."""
    counters = groups.counters()
    yield figure("headrace_groups", counters.groups)
    yield figure("headrace_group_members", counters.members)
    yield figure("headrace_group_rebalances", counters.rebalances_total)
    yield figure("headrace_group_commits", counters.commits_total)
    lag, ages = Figures("headrace_group_lag_records"), Ages(clock)
    oldest_s: dict[tuple[str, ...], float] = {}
    for one in islice(consumer_lags(groups, topics), LAGS_MAX):
        lag.add([one.group, one.topic, str(one.partition)], one.records)
        age_s = ages.of(one.log, one.offset) if one.records else 0.0
        if age_s is not None:
            key = one.group, one.topic
            oldest_s[key] = max(oldest_s.get(key, 0.0), age_s)
    yield lag
    yield figures_by("headrace_group_lag_seconds", oldest_s)


def share_group_figures(
    shares: SharePartitions, topics: Topics, ownership: Ownership, clock: Clock
) -> Iterable[Figures]:
    """Of share groups on partitions that this broker serves and whose state is loaded."""
    lag, ages = Figures("headrace_share_group_lag_records"), Ages(clock)
    in_flight: dict[tuple[str, ...], int] = {}
    oldest_s: dict[tuple[str, ...], float] = {}
    for one in islice(share_lags(shares, topics.readable.all(), ownership), LAGS_MAX):
        lag.add([one.group, one.topic, str(one.partition)], one.records)
        queue = one.group, one.topic
        in_flight[queue] = in_flight.get(queue, 0) + one.acquired_records
        age_s = ages.of(one.log, one.offset) if one.records else None
        if age_s is not None:
            oldest_s[queue] = max(oldest_s.get(queue, 0.0), age_s)
    yield lag
    yield figures_by("headrace_queue_in_flight_records", in_flight)
    yield figures_by("headrace_queue_oldest_seconds", oldest_s)
    figures = list(shares.figures)
    for name in ("delivered", "acknowledged", "filtered", "released", "timed_out", "given_up"):
        counter = Figures(f"headrace_queue_{name}_records")
        for group, topic_name, counts in figures:
            counter.add([group, topic_name], getattr(counts, name))
        yield counter


def dead_letter_figures(letters: DeadLetters) -> Iterable[Figures]:
    """Of dead letters."""
    yield figure("headrace_dead_letters_copied", letters.copied_total)
    yield figure("headrace_dead_letters_failed", letters.failed_total)
    yield figure("headrace_dead_letters_given_up", letters.given_up_total)


def timer_figures(partitions: TimerPartitions, clock: Clock) -> Iterable[Figures]:
    """Of delayed and half messages."""
    timers = partitions.host
    states = [(hosted, state) for hosted in timers.hosted if (state := hosted.state)]
    due_ms = [ms for _, state in states if (ms := state.schedule.first_ms()) is not None]
    wait_s = (min(due_ms) - clock.now_ms()) / 1000 if due_ms else -1.0
    yield figure("headrace_delayed_pending", sum(state.schedule.count for _, state in states))
    yield figure("headrace_delayed_next_due_seconds", wait_s)
    taken = sum(state.outstanding_count for _, state in states)
    yield figure("headrace_delayed_delivering", taken)
    yield figure("headrace_half_pending", sum(len(state.halves) for _, state in states))
    stored = sum(hosted.companion.size_bytes for hosted, _ in states)
    yield figure("headrace_timer_log_bytes", stored)
    yield figure("headrace_delayed_delivered", timers.figures.delivered_total)
    yield figure("headrace_delayed_refused", timers.figures.refused_total)
    yield figure("headrace_delayed_lateness_seconds", timers.figures.lateness)
