"""Filters that take long for each record: others have the event loop meanwhile."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest
from tests.kit.broker import broker
from tests.unit.broker.test_share_attributes import batch_of, topic_of
from tests.unit.broker.test_share_partitions import ask, everything, settle, values

from headrace.broker.shares import filtering
from headrace.broker.shares.filtering import COST_AT_ONCE
from headrace.broker.shares.share_reads import Selection, filters_of, row_reader
from headrace.coordination.shares.config import ShareConfig
from headrace.records.filters import SqlFilter

LONG = f"a LIKE '%{'_' * 1_900}x%'"
RECORDS = 100


@pytest.mark.parametrize("of", ["the group", "the receive"])
async def test_a_long_expression_is_matched_with_few_records_in_a_turn_of_the_loop(of, monkeypatch):
    matched, matches = 0, SqlFilter.matches

    def counted(self, headers):
        nonlocal matched
        matched += 1
        return matches(self, headers)

    monkeypatch.setattr(SqlFilter, "matches", counted)
    configs = {"headrace.share.filter.sql": LONG} if of == "the group" else {}
    request = replace(
        ask("a", 10, is_strict=True), selection=None if configs else Selection("", LONG)
    )
    async with broker() as rig:
        other = (b"other", {"a": "y" * 2_000})
        wanted = (b"wanted", {"a": "y" * 1_900 + "x"})
        topic = await topic_of(rig, batch_of(*[other] * (RECORDS - 1), wanted), **configs)
        receiving = asyncio.create_task(rig.node.shares.receive(topic, 0, request))
        before, most = 0, 0
        while not receiving.done():
            await asyncio.sleep(0)
            before, most = matched, max(most, matched - before)
        assert values(receiving.result()) == [b"wanted"]
        assert 0 < most <= COST_AT_ONCE // len(LONG)
        assert matched == RECORDS


def test_few_parsed_expressions_are_kept_if_they_are_long():
    gc.collect()
    before = sum(isinstance(one, SqlFilter) for one in gc.get_objects())
    for number in range(200):
        sql = f"n = {number} OR {LONG}"
        filters_of(Selection("", sql))
        row_reader(ShareConfig(filter_sql=sql))
    gc.collect()
    assert sum(isinstance(one, SqlFilter) for one in gc.get_objects()) - before <= 2 * 64


async def test_rows_of_a_large_batch_are_learned_in_parts_and_none_is_left_out(monkeypatch):
    monkeypatch.setattr(filtering, "PARTS_MAX", 3)
    async with broker() as rig:
        count = 5 * 3 * COST_AT_ONCE // len(LONG)
        items = [(b"%d" % n, {"a": "y" * 1_900 + "xz"[n % 2]}) for n in range(count)]
        configs = {"headrace.share.filter.sql": LONG.replace("x%", "x")}
        topic = await topic_of(rig, batch_of(*items), **configs)
        found = []
        while (
            got := await rig.node.shares.receive(topic, 0, ask("a", 7, is_strict=True))
        ).acquired:
            found += values(got)
            await settle(rig, topic, everything(got))
        assert found == [value for value, headers in items if headers["a"].endswith("x")]
