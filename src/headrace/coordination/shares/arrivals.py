"""Records that a group finishes without delivery: filtered out, expired, or not present.

Invariants: decides and changes nothing; records in flight or already decided are left alone, since
rows are learned again after a restart and when the group's filter changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.shares.commands import FAILED_BY_EXPIRY, DeadLetter, RecordOrder
from headrace.coordination.shares.state_records import StoredRun
from headrace.coordination.shares.window import ACKNOWLEDGED, ARCHIVED, AVAILABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordination.shares.share_group import ShareGroup

Finished = tuple[list[StoredRun], list[DeadLetter]]


def decide_rows(
    group: ShareGroup, rows: tuple[RecordOrder, ...], span: tuple[int, int], now_ms: int
) -> Finished:
    """(runs of records in `span`, [from, end), that are never delivered, dead letters).

    Offsets without a row (control records, compacted ones) are finished, records that do not match
    the group's filter are acknowledged, expired ones are finished or become dead letters.
    """
    letters: list[DeadLetter] = []
    runs: list[StoredRun] = []
    reached, rows_end = span
    for offset, _key_hash, _priority, expires_ms, is_wanted in rows:
        if offset < reached:
            continue
        if offset > reached:
            runs.append(StoredRun(reached, offset - 1, ARCHIVED, 0))
        reached = offset + 1
        if not is_wanted:
            if runs and runs[-1].last + 1 == offset and runs[-1].state == ACKNOWLEDGED:
                runs[-1] = runs[-1]._replace(last=offset)
            else:
                runs.append(StoredRun(offset, offset, ACKNOWLEDGED, 0))
        elif 0 <= expires_ms <= now_ms and (count := _open_count(group, offset)) is not None:
            runs.append(_outdated(group, offset, count, now_ms, letters))
    if reached < rows_end:
        runs.append(StoredRun(reached, rows_end - 1, ARCHIVED, 0))
    return [piece for run in runs for piece in _open_pieces(group, run)], _merged(letters)


def decide_outdated(group: ShareGroup, now_ms: int) -> Finished:
    """(runs of available records that have expired, dead letters)."""
    keyed = group.keyed
    letters: list[DeadLetter] = []
    if keyed is None:
        return [], letters
    found = keyed.expired(now_ms)
    runs = [_outdated(group, offset, count, now_ms, letters) for offset, count in found]
    return runs, _merged(letters)


def _outdated(
    group: ShareGroup, offset: int, count: int, now_ms: int, letters: list[DeadLetter]
) -> StoredRun:
    """A record has expired."""
    if not group.config.are_expired_dead:
        return StoredRun(offset, offset, ARCHIVED, count)
    return group.given_up(offset, offset, count, now_ms, FAILED_BY_EXPIRY, letters)


def _open_count(group: ShareGroup, offset: int) -> int | None:
    """The delivery count of a record that is neither decided nor in flight, else None."""
    if offset >= group.window.end:
        return 0
    run = group.window.run_at(offset)
    return run.count if run is not None and run.state == AVAILABLE else None


def _open_pieces(group: ShareGroup, run: StoredRun) -> list[StoredRun]:
    """The parts of `run` that are neither decided nor in flight."""
    pieces = [
        run._replace(first=low, last=high)
        for low, high, piece in group.window.between(run.first, run.last)
        if piece.state == AVAILABLE
    ]
    end = group.window.end
    if run.last >= end:
        pieces.append(run._replace(first=max(run.first, end)))
    return pieces


def _merged(letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """One letter for consecutive records; each of them is copied separately."""
    merged: list[DeadLetter] = []
    for letter in letters:
        last = merged[-1] if merged else None
        if last is not None and letter == last._replace(first=last.last + 1, last=letter.last):
            merged[-1] = last._replace(last=letter.last)
        else:
            merged.append(letter)
    return merged
