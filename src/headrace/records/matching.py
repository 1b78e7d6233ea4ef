"""Search conditions on records: message id, key, tag, headers and time.

Invariants: pure. A batch whose decompressed bytes lack one of the search texts holds no matching
record, so it is not decoded: a search runs at the speed of a byte scan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.records.attributes import KEYS, MESSAGE_ID, TAG, find_header

if TYPE_CHECKING:
    from headrace.records.attributes import Headers

TIME_MAX: Final = 2**63 - 1


@dataclass(slots=True, frozen=True)
class Condition:
    """Conditions that must all hold. An empty one matches every record."""

    message_id: str = ""
    """The header headrace-message-id"""
    key: str = ""
    """The record's key, or one of the words in headrace-keys"""
    tag: str = ""
    """The header headrace-tag"""
    headers: tuple[tuple[str, str], ...] = ()
    """(name, value) of further headers"""
    since_ms: int = 0
    until_ms: int = TIME_MAX
    """Exclusive."""
    where: str = ""
    """A filter expression (`record_filter`), which the search evaluates itself."""

    def needles(self) -> list[bytes]:
        """Texts that occur in the bytes of every matching record."""
        texts = [self.message_id, self.key, self.tag]
        texts += [part for header in self.headers for part in header]
        return sorted({text.encode() for text in texts if text}, key=len, reverse=True)

    def matches_time(self, timestamp_ms: int) -> bool:
        """Whether the timestamp is in the range."""
        return self.since_ms <= timestamp_ms < self.until_ms

    def matches(self, key: bytes | None, headers: Headers) -> bool:
        """Whether a record meets all conditions but the time range and `where`."""
        if self.message_id and find_header(headers, MESSAGE_ID) != self.message_id.encode():
            return False
        if self.tag and find_header(headers, TAG) != self.tag.encode():
            return False
        if self.key:
            wanted = self.key.encode()
            if key != wanted and wanted not in (find_header(headers, KEYS) or b"").split():
                return False
        return all((name, value.encode()) in headers for name, value in self.headers)
