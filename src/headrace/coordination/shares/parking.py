"""Parked keys of a group with key order: their records are not delivered until they are released.

Invariants: pure; decides and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.shares.commands import ParkedKey
from headrace.coordination.shares.state_records import KeyParked
from headrace.errors import HeadraceError, RecordStateInvalid

if TYPE_CHECKING:
    from headrace.coordination.shares.share_group import ShareGroup

PARKED_KEYS_MAX: Final = 1_000


def decide_park(
    group: ShareGroup, key: bytes, key_hash: int, now_ms: int
) -> KeyParked | HeadraceError:
    """The record that parks a key, or the error."""
    refusal = group.config.parking_refusal()
    if refusal is not None:
        return refusal
    if key not in group.parked and len(group.parked) >= PARKED_KEYS_MAX:
        return RecordStateInvalid(
            f"the group has parked {PARKED_KEYS_MAX} keys on this partition: release some"
        )
    return group.parked.get(key) or KeyParked(group.number, key, key_hash, now_ms)


def list_parked(group: ShareGroup) -> list[ParkedKey]:
    """The parked keys, in byte order."""
    keyed = group.keyed
    return [
        ParkedKey(one.key, one.at_ms or 0, 0 if keyed is None else keyed.known_of(one.key_hash))
        for _key, one in sorted(group.parked.items())
    ]
