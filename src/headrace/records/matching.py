"""Which records a search finds: by message id, key, tag, header and time.

Invariants: pure. A batch whose decompressed bytes lack one of the texts that are looked for holds
no record that matches, so it is not decoded: a search is as fast as bytes can be scanned.
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
    """What a record must hold; all that is given holds. An empty one matches every record."""

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

    def needles(self) -> list[bytes]:
        """Texts that occur in the bytes of every record that matches."""
        texts = [self.message_id, self.key, self.tag]
        texts += [part for header in self.headers for part in header]
        return sorted({text.encode() for text in texts if text}, key=len, reverse=True)

    def matches_time(self, timestamp_ms: int) -> bool:
        """Whether the time lies in the range."""
        return self.since_ms <= timestamp_ms < self.until_ms

    def matches(self, key: bytes | None, headers: Headers) -> bool:
        """Whether a record holds all that is given, its time aside."""
        if self.message_id and find_header(headers, MESSAGE_ID) != self.message_id.encode():
            return False
        if self.tag and find_header(headers, TAG) != self.tag.encode():
            return False
        if self.key:
            wanted = self.key.encode()
            if key != wanted and wanted not in (find_header(headers, KEYS) or b"").split():
                return False
        return all((name, value.encode()) in headers for name, value in self.headers)
