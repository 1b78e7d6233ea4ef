"""The names of the tags that keep a table's files for ledgers.

Invariants: names only. Do not change: stored, and the pipeline's `maintain` reads them: it does not
rewrite files of a partition whose rows are all before `end_row`.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.storage.ledger import LedgerId

_START = "headrace"


def tag_name(owner: str, partition: int, end_row: int | str, ledger: LedgerId) -> str:
    """See TableTag; `end_row` may be a word where only the table knows it."""
    return f"{_START}-{owner}-{partition}-{end_row}-{ledger:016x}"


class TableTag(NamedTuple):
    """A tag of `owner`, for a ledger whose records are in rows before the offset `end_row`.

    `owner` is the prefix of the ledger's object: ledgers are numbered within it.
    """

    owner: str
    partition: int
    end_row: int
    ledger: LedgerId

    @property
    def name(self) -> str:
        """The tag's name in the table."""
        return tag_name(*self)

    @classmethod
    def parse(cls, name: str) -> TableTag | None:
        """The tag of a name; None for tags of others."""
        start, dash, rest = name.partition("-")
        words = rest.rsplit("-", 3)
        if start != _START or not dash or len(words) != 4:
            return None
        owner, partition, end_row, ledger = words
        try:
            found = cls(owner, int(partition), int(end_row), LedgerId(int(ledger, 16)))
        except ValueError:
            return None
        return found if found.name == name else None
