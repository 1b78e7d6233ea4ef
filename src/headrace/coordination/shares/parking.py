"""Parked keys of a group with key order: their records are not delivered until they are released.

Invariants: pure; decides and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.shares.commands import NOT_PARKED, ParkedKey
from headrace.coordination.shares.state_records import KeyParked
from headrace.errors import HeadraceError, RecordStateInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.coordination.shares.share_group import ShareGroup

PARKED_KEYS_MAX: Final = 1_000
PARKED_BYTES_MAX: Final = 128 * 1024
"""Of a group's keys on a partition together, which stay in memory: 1,000 of ordinary size."""


def decide_park(
    group: ShareGroup, key: bytes, key_hash: int, now_ms: int
) -> KeyParked | HeadraceError:
    """The record that parks a key, or the error."""
    refusal = group.config.parking_refusal()
    if refusal is not None:
        return refusal
    if key not in group.parked and _exceeds(len(group.parked) + 1, [key, *group.parked]):
        return _too_many()
    return group.parked.get(key) or KeyParked(group.number, key, key_hash, now_ms)


def look_at(
    group: ShareGroup, keys: Sequence[tuple[bytes, int]]
) -> list[ParkedKey] | HeadraceError:
    """What parking these keys, each with its hash, would find; or the error of it."""
    refusal = group.config.parking_refusal()
    if refusal is not None:
        return refusal
    all_keys = group.parked.keys() | {key for key, _ in keys}
    if _exceeds(len(all_keys), all_keys):
        return _too_many()
    return [
        ParkedKey(key, one.at_ms or 0 if (one := group.parked.get(key)) else NOT_PARKED,
                  _known(group, key_hash))
        for key, key_hash in keys
    ]  # fmt: skip


def list_parked(group: ShareGroup) -> list[ParkedKey]:
    """The parked keys, in byte order."""
    return [
        ParkedKey(one.key, one.at_ms or 0, _known(group, one.key_hash))
        for _key, one in sorted(group.parked.items())
    ]


def _known(group: ShareGroup, key_hash: int) -> int:
    return 0 if group.keyed is None else group.keyed.known_of(key_hash)


def _exceeds(count: int, keys: Iterable[bytes]) -> bool:
    return count > PARKED_KEYS_MAX or sum(map(len, keys)) > PARKED_BYTES_MAX


def _too_many() -> RecordStateInvalid:
    return RecordStateInvalid(
        f"the group parks at most {PARKED_KEYS_MAX} keys on a partition, with"
        f" {PARKED_BYTES_MAX // 1024} KiB together: release some"
    )
