"""Files of a table that brokers serve old records from: maintenance leaves them as they are.

Invariants: reads the names of tags, which `headrace.storage.tiering.table_tags` writes. The tags
keep the files in any case; without this, rewritten rows would be stored twice.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CLUSTER = r"[A-Za-z0-9_-]{22}(?:-worker-\d+)?"  # its id, as in the names of its objects
_TAG = re.compile(rf"headrace-{_CLUSTER}-(\d+)-(\d+)-[0-9a-f]{{16}}")  # do not change: stored


def kept_ends(tags: Iterable[str]) -> dict[int, int]:
    """By partition, the offset before which the files are kept for brokers.

    Only names with a cluster's id count: a tag that a person named alike restricts nothing.
    """
    ends: dict[int, int] = {}
    for name in tags:
        found = _TAG.fullmatch(name)
        if found is not None:
            partition, end = map(int, found.groups())
            ends[partition] = max(end, ends.get(partition, 0))
    return ends


def rest_of_table(topic: str, ends: dict[int, int]) -> str | None:
    """The condition, in SQL, of the files that may be rewritten; None: of all.

    A file is chosen if its bounds allow a row that meets the condition, which `<>` does not
    restrict: hence ranges of partitions.
    """
    if not ends:
        return None
    parts = [f"(partition = {number} AND `offset` >= {end})" for number, end in ends.items()]
    above = -1
    for number in sorted(ends):
        if number > above + 1:
            parts.append(f"(partition > {above} AND partition < {number})")
        above = number
    parts.append(f"partition > {above}")
    return f'topic = "{topic}" AND ({" OR ".join(parts)})'
