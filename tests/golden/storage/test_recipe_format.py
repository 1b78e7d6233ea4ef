"""The bytes of a recipe, of its link in the chain, and of its tag, spelled out. A change here is a
change of the format: docs/FORMAT.md.

`HEADRACE_REWRITE_GOLDEN=1` prints what the code writes now, for the review of such a change.
"""

from __future__ import annotations

import json
import os
from array import array

import pytest

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import LedgerLink, PartitionFact
from headrace.pipeline.kept_files import kept_ends, rest_of_table
from headrace.storage.ledger import LedgerId
from headrace.storage.tiering.object_format import Layout, block_crc, footer_crc
from headrace.storage.tiering.recipe_format import (
    END_SIZE,
    KEPT,
    Recipe,
    Run,
    TableFile,
    decode_recipe,
    encode_recipe,
    ledger_of_recipe,
    recipe_name,
    rest_size,
)
from headrace.storage.tiering.table_tags import TableTag

LEDGER = LedgerId(7)
DATA = b"two batches, of which the first is borrowed"
FILE = TableFile("file:/lake/a.parquet", 100, "ab" * 32)
RUNS = (Run(0, 30, 0, 5, 0, 12), Run(30, 13, 5, 13, KEPT, 0))
# Ledger 7: 30 bytes from row 12 of a file on, with 5 bytes of headers, and 13 bytes that are kept.
RECIPE = """
    48524f42 da5f812f 01000000 00000400 07000000 00000000 2b000000 00000000 06000000 01000000
    00000000 00000000 00000000 00000000 00000000 00000000 666f6f74 65723336 f6fad506 f44c4852
    4f456689 d12d0800 00000700 00005b7b 22706174 68223a20 2266696c 653a2f6c 616b652f 612e7061
    72717565 74222c20 22736861 32353622 3a202261 62616261 62616261 62616261 62616261 62616261
    62616261 62616261 62616261 62616261 62616261 62616261 62616261 62616261 62616261 62616261
    62616222 2c202273 697a655f 62797465 73223a20 3130307d 5d1e0000 00050000 00000000 000c0000
    00000000 000d0000 000d0000 00ffffff ff000000 00000000 00485252 456085aa af010000 00830000
    00120000 00000000 00070000 00000000 00020000 00000000 00
"""


def recipe() -> Recipe:
    layout = Layout(LEDGER, len(DATA), 6, has_footer=True)
    crcs = array("I", [block_crc(LEDGER, 0, DATA), footer_crc(LEDGER, b"footer")])
    return Recipe(layout, crcs, b"footer", (FILE,), RUNS)


def test_a_recipe():
    stored = encode_recipe(recipe())
    if os.environ.get("HEADRACE_REWRITE_GOLDEN"):
        print(stored.hex(" ", -4))
    assert stored.hex(" ", -4) == " ".join(RECIPE.split())
    end = stored[-END_SIZE:]
    assert rest_size(end, 18 + len(stored), LEDGER) == len(stored) - END_SIZE
    assert decode_recipe(stored[:-END_SIZE], end, LEDGER) == recipe()
    assert ledger_of_recipe(recipe_name(LEDGER)) == LEDGER


def test_a_recipe_of_a_later_version_is_refused():
    end = bytearray(encode_recipe(recipe())[-END_SIZE:])
    end[8] += 1
    with pytest.raises(FormatUnsupported, match="start a newer one"):
        rest_size(end, 1_000, LEDGER)


def test_a_link_with_a_recipe_raises_the_version_of_its_partition():
    link = LedgerLink(7, 0, 1, 5, 43, 2, 6, 10, 20, tabled_ms=30)
    fact = PartitionFact(0, 1, [link])
    stored = json.loads(fact.encode())
    assert stored["v"] == 2
    assert stored["ledgers"][0] == {
        "ledger": 7, "base_offset": 0, "leader_epoch": 1, "first_timestamp_ms": 5, "size_bytes": 43,
        "end_offset": 2, "max_timestamp_ms": 6, "offloaded_ms": 10, "local_deleted_ms": 20,
        "tabled_ms": 30,
    }  # fmt: skip
    assert PartitionFact.decode(fact.encode()) == fact
    # What a version without recipes, which knows partitions of version 1, says to that.
    with pytest.raises(FormatUnsupported, match="start a newer one"):
        FactReader.parse("partition", fact.encode())
    del stored["ledgers"][0]["local_deleted_ms"]
    with pytest.raises(DataCorrupt, match="before its object was the only copy"):
        PartitionFact.decode(json.dumps(stored).encode())


def test_partitions_without_recipes_stay_readable_for_versions_without():
    fact = PartitionFact(0, 1, [LedgerLink(7, 0, 1, 5, 43, 2, 6, 10, 20)])
    assert json.loads(fact.encode())["v"] == 1


def test_a_tag_and_what_maintenance_reads_in_it():
    tag = TableTag("AAbb-_c-worker-1", 3, 1_500, LedgerId(0x2A))
    assert tag.name == "headrace-AAbb-_c-worker-1-3-1500-000000000000002a"
    assert TableTag.parse(tag.name) == tag
    for name in ("main", "headrace-x", "headrace-a-1-b-000000000000002a", "headrace-a-01-2-2a"):
        assert TableTag.parse(name) is None
    cluster = "5L6g3nShT-eMCtK--X86sw"
    of_brokers = [
        tag._replace(owner=f"{cluster}-worker-1"), tag._replace(owner=cluster, end_row=900),
        tag._replace(owner=cluster, partition=0),
    ]  # fmt: skip
    of_people = ["main", tag._replace(owner="X", partition=5).name, "headrace-2024-1-2-3"]
    names = [*(one.name for one in of_brokers), *of_people]
    assert kept_ends(names) == {0: 1_500, 3: 1_500}
    assert rest_of_table("t", {}) is None
    assert rest_of_table("t", {0: 7, 3: 9}) == (
        'topic = "t" AND ((partition = 0 AND `offset` >= 7) OR (partition = 3 AND `offset` >= 9)'
        " OR (partition > 0 AND partition < 3) OR partition > 3)"
    )
