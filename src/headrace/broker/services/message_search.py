"""Finds and traces messages of whole topics: any broker accepts a search, owners carry it out.

Invariants: knows no protocol. A page goes through the partitions in a fixed order, so `Page.next`
holds wherever partitions move, and the next page may be asked of any broker. All owners take the
first step of their partitions at once; a partition that needs more is then asked alone for what is
left of the limits. A partition that cannot be asked is named; it costs the others nothing, and what
it holds is not said to be absent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.batch_search import record_bytes
from headrace.broker.services.owner_calls import checked, split
from headrace.broker.services.search import (
    FOUND_BYTES_MAX,
    FoundMessage,
    Page,
    SearchBounds,
    SearchPosition,
)
from headrace.broker.services.trace import Trace, TraceEvent, sort_events
from headrace.coordination.shares.commands import DeliveryState
from headrace.errors import HeadraceError, OffsetOutOfRange
from headrace.records.codec import Record
from headrace.records.matching import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.services.search import Search
    from headrace.broker.services.table_marks import TableMarks
    from headrace.broker.services.trace import Tracer
    from headrace.broker.topics.topic import Topic

STEP_MS: Final = 500
"""Of one call to an owner: shorter than the time that a broker is waited for."""
COUNT_MAX: Final = 10_000
_FIGURES: Final = (int, int, int, int, int, str)
"""Of a page between brokers; an older broker sends the first ones alone."""


class MessageSearch:
    """See the module."""

    def __init__(
        self, calls: OwnerCalls, search: Search, tracer: Tracer, tables: TableMarks
    ) -> None:
        self._calls = calls
        self._search = search
        self._tracer = tracer
        self._tables = tables
        calls.offer("search", self._page_here)
        calls.offer("trace.by_offset", self._trace_offset_here)
        calls.offer_of_broker("trace.by_id", self._trace_id_here)

    async def page(
        self,
        topic: Topic,
        condition: Condition,
        start: SearchPosition,
        bounds: SearchBounds,
        partition: int | None = None,
        *,
        covers: Callable[[str], bool] = lambda _name: True,
    ) -> Page:
        """Messages of `topic` from `start` on, in the order of places and offsets.

        `partition`: search only this one, without dead letters. `covers`: which dead letter topics
        are searched; the others are neither counted nor named. Raises the error of a partition
        only where none could be searched.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + bounds.time_ms / 1000
        page, bytes_left, has_searched = Page(), FOUND_BYTES_MAX, False
        firsts: dict[SearchPosition, Page | HeadraceError] = {}
        for one, place in self._places(topic, partition, covers):
            if place[:3] < start[:3]:
                continue
            at: SearchPosition | None = start if place[:3] == start[:3] else place
            if place not in firsts and at is place and bounds.time_ms > STEP_MS:
                count_left = bounds.count_max - len(page.found)
                firsts = await self._firsts(one, place, topic, condition, count_left)
            while at is not None:
                count_left = bounds.count_max - len(page.found)
                left_ms = int((deadline_s - loop.time()) * 1000)
                if count_left <= 0 or bytes_left <= 0 or (left_ms <= 0 and has_searched):
                    page.next = at
                    return page
                limits = count_left, min(max(left_ms, 1), STEP_MS)
                part = firsts[place] if at is place and place in firsts else None
                if part is None or (isinstance(part, Page) and len(part.found) > count_left):
                    part = await self._ask(one, place, topic, condition, at, limits)
                if isinstance(part, HeadraceError):
                    page.failed[one.name, place.partition] = part
                    break
                has_searched = True
                _add(page, part)
                bytes_left -= sum(record_bytes(found.record) for found in part.found)
                at = part.next
        if page.failed and not has_searched:
            raise next(iter(page.failed.values()))
        return page

    def _places(
        self, topic: Topic, partition: int | None, covers: Callable[[str], bool]
    ) -> Iterator[tuple[Topic, SearchPosition]]:
        if partition is not None:
            topic.check_partition(partition)
        for one in self._search.topics(topic) if partition is None else [topic]:
            if one is not topic and not covers(one.name):
                continue
            for number in range(len(one.partitions)) if partition is None else [partition]:
                yield one, SearchPosition(int(one is not topic), one.name, number, 0)

    async def _ask(
        self,
        one: Topic,
        place: SearchPosition,
        origin: Topic,
        condition: Condition,
        start: SearchPosition,
        limits: tuple[int, int],
    ) -> Page | HeadraceError:
        names = _condition_row(condition), origin.name if place.rank else ""
        asked: Any = *names, place.rank, list(start), *limits, FOUND_BYTES_MAX
        try:
            return _page(await self._calls.ask_partition("search", one, place.partition, asked))
        except HeadraceError as error:
            return error

    async def _firsts(
        self, one: Topic, place: SearchPosition, origin: Topic, condition: Condition, count_max: int
    ) -> dict[SearchPosition, Page | HeadraceError]:
        """What the first step finds in each partition from `place` on: one request to each owner,
        all at once. What the page has no room for is asked again."""
        numbers = range(place.partition, len(one.partitions))
        if len(numbers) < 2 or count_max <= 0:
            return {}
        names = _condition_row(condition), origin.name if place.rank else ""
        count = len(numbers)
        limits = count_max, max(STEP_MS // count, 1), FOUND_BYTES_MAX // count
        asked: Any = *names, place.rank, [], *limits
        answers = await self._calls.ask_partitions("search", one, asked, numbers)
        return {
            place._replace(partition=number): _page_or_error(answer)
            for number, answer in answers.items()
        }

    async def _page_here(self, topic: Topic, number: int, asked: Any) -> Any:
        row, origin, rank, start, count_max, time_ms, bytes_max = checked(
            asked, list | tuple, str, int, list, int, int, int
        )
        bounds = SearchBounds(
            min(max(count_max, 1), COUNT_MAX),
            min(max(time_ms, 1), STEP_MS),
            min(max(bytes_max, 1), FOUND_BYTES_MAX),
        )
        place = SearchPosition(rank, topic.name, number, 0)
        if start:
            place = SearchPosition(*checked(start, int, str, int, int, int, int))
        page = await self._search.partition_page(
            topic, number, _condition(row), place, bounds, origin
        )
        figures: list[Any] = [page.records, page.size_bytes, page.unreadable, page.up_to_ms]
        if page.failures:  # an older broker does not know them
            figures += [page.failures, page.first_failure]
        return page.found, None if page.next is None else list(page.next), *figures

    # --- traces ------------------------------------------------------------------------------

    async def trace_by_id(
        self, topic: Topic, message_id: str, time_ms: int
    ) -> tuple[Trace, dict[int, HeadraceError]]:
        """(the known history of the messages with this id, the brokers that could not be asked)."""
        asked = topic.name, message_id, time_ms
        answers = await self._calls.ask_brokers("trace.by_id", asked, time_ms / 1000)
        found, failed = split(answers)
        if not found:
            raise next(iter(failed.values()))
        trace = Trace(is_complete=not failed)
        for row in found.values():
            _add_trace(trace, row)
        await self._tables.add_events(topic, trace)
        sort_events(trace)
        return trace, failed

    async def trace_by_offset(self, topic: Topic, number: int, offset: int, time_ms: int) -> Trace:
        """The known history of one record; only the tables that may have it, if the log does not.
        Raises OffsetOutOfRange where there is no such table, BrokerUnreachable."""
        trace = Trace()
        try:
            row = await self._calls.ask_partition(
                "trace.by_offset", topic, number, (offset, time_ms), time_ms / 1000
            )
        except OffsetOutOfRange:
            await self._tables.add_tables(topic, [number], offset, trace)
            if trace.tables:
                return trace
            raise
        _add_trace(trace, row)
        await self._tables.add_events(topic, trace)
        return trace

    async def _trace_id_here(self, asked: Any) -> Any:
        name, message_id, time_ms = checked(asked, str, str, int)
        trace = Trace()
        await self._tracer.by_id(name, message_id, time_ms, trace)
        return _trace_row(trace)

    async def _trace_offset_here(self, topic: Topic, number: int, asked: Any) -> Any:
        offset, time_ms = checked(asked, int, int)
        trace = Trace()
        await self._tracer.by_offset(topic, number, offset, time_ms, trace)
        return _trace_row(trace)


def _page_or_error(answer: Any) -> Page | HeadraceError:
    if isinstance(answer, HeadraceError):
        return answer
    try:
        return _page(answer)
    except HeadraceError as error:
        return error


def _page(row: Any) -> Page:
    """Raises RequestInvalid."""
    (row,) = checked([row], list | tuple)
    found, after = checked(row[:2], list | tuple, list | tuple | None)
    place = None if after is None else SearchPosition(*checked(after, int, str, int, int, int, int))
    figures = checked(row[2:], *_FIGURES[: len(row) - 2])
    return Page(list(map(_message, found)), place, *figures)


def _add(page: Page, part: Page) -> None:
    page.found += part.found
    page.records += part.records
    page.size_bytes += part.size_bytes
    page.unreadable += part.unreadable
    page.failures += part.failures
    page.first_failure = page.first_failure or part.first_failure
    if part.up_to_ms >= 0:
        page.up_to_ms = part.up_to_ms


# --- values between brokers ------------------------------------------------------------------


def _condition_row(one: Condition) -> list[Any]:
    words = [one.message_id, one.key, one.tag]
    row = [*words, [list(pair) for pair in one.headers], one.since_ms, one.until_ms]
    return [*row, one.where] if one.where else row  # an older broker refuses what it cannot do


def _condition(row: Any) -> Condition:
    kinds = str, str, str, list, int, int
    row, where = (row[:-1], row[-1]) if len(row) == len(kinds) + 1 else (row, "")
    message_id, key, tag, headers, since_ms, until_ms = checked(row, *kinds)
    (where,) = checked([where], str)
    pairs = tuple((name, value) for name, value in (checked(one, str, str) for one in headers))
    return Condition(message_id, key, tag, pairs, since_ms, until_ms, where)


def _message(row: Any) -> FoundMessage:
    kinds = str, str, int, Record, int, list | tuple
    state, topic, partition, record, due_ms, groups = checked(row, *kinds)
    states = [DeliveryState(*one) for one in groups]
    return FoundMessage(state, topic, partition, record, due_ms, states)


def _trace_row(trace: Trace) -> list[Any]:
    return [
        trace.messages,
        [
            [one.at_ms, one.event, one.topic, one.partition, one.offset, one.details]
            for one in trace.events
        ],
        trace.unknown,
        trace.is_complete,
        trace.records,
    ]


def _add_trace(trace: Trace, row: Any) -> None:
    messages, events, unknown, is_complete, records = row
    trace.messages += map(_message, messages)
    trace.events += [TraceEvent(*one) for one in events]
    trace.unknown += [one for one in unknown if one not in trace.unknown]
    trace.is_complete = trace.is_complete and is_complete
    trace.records += records
