"""The bodies of one request's messages, as clients send them: plain, or compressed.

Invariants: pure, so that a thread may decompress them. A few bytes can claim megabytes:
decompression stops at a limit, and what it may take at most is known before it begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import BatchCorrupt, BatchExpandsTooFar
from headrace.records.compression import GZIP, decompress
from headrace.rocketmq import codes, wire
from headrace.rocketmq.codes import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
BODIES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one request, decompressed: as much as one without compression can have."""
INLINE_BYTES_MAX: Final = 256 * 1024
"""Bodies that decompress to more are decompressed in a thread: this takes about a millisecond."""
INLINE_BYTES_MIN: Final = 16 * 1024
INLINE_RATIO: Final = 16
"""As are those that grow more, unless they are small: text shrinks to a fifth or a tenth, and one
read of a socket could bring hundreds of requests that grow a thousandfold."""
GZIP_RATIO_MAX: Final = 1032
"""The most that gzip can make of a byte."""


class Bodies:
    """See the module."""

    def __init__(self, messages: Iterable[Any]) -> None:
        """Raises Refused for a body that no topic takes."""
        self._given = [_checked(one.body, one.system_properties) for one in messages]
        self._plain_bytes = sum(len(body) for body, is_packed in self._given if not is_packed)
        self.packed_bytes = sum(len(body) for body, is_packed in self._given if is_packed)
        """Of those that are compressed, as they came."""

    def inline(self, body_bytes_max: int) -> list[bytes] | None:
        """All bodies, if they are decompressed quickly, else None. Raises Refused."""
        quick = max(INLINE_BYTES_MIN, INLINE_RATIO * self.packed_bytes)
        left = BODIES_BYTES_MAX - self._plain_bytes
        return self._unpacked(body_bytes_max, min(INLINE_BYTES_MAX, quick, left))

    def unpacked_bytes_max(self, body_bytes_max: int) -> int:
        """What those that are compressed take at most, decompressed."""
        packed = [len(body) for body, is_packed in self._given if is_packed]
        most = [min(body_bytes_max, GZIP_RATIO_MAX * size) for size in packed]
        return min(sum(most), BODIES_BYTES_MAX)

    def unpacked_bytes(self, bodies: list[bytes]) -> int:
        """What those that were compressed take: they are held beside what came."""
        return sum(map(len, bodies)) - self._plain_bytes

    def unpack(self, body_bytes_max: int) -> list[bytes]:
        """All bodies; a compressed one has at most `body_bytes_max`. Raises Refused."""
        found = self._unpacked(body_bytes_max, BODIES_BYTES_MAX - self._plain_bytes)
        if found is None:
            raise Refused(
                codes.MESSAGE_BODY_TOO_LARGE,
                f"the bodies of the request have more than {BODIES_BYTES_MAX} bytes, decompressed:"
                " send fewer messages at once",
            )
        return found

    def _unpacked(self, body_bytes_max: int, left: int) -> list[bytes] | None:
        """All bodies; None if the compressed ones have more than `left`. Raises Refused."""
        found = []
        for given, is_packed in self._given:
            body = given
            if is_packed:
                try:
                    body = decompress(GZIP, given, max(min(body_bytes_max, left), 0))
                except BatchExpandsTooFar as error:
                    if left < body_bytes_max:
                        return None
                    raise _too_large(f"more than {body_bytes_max}", body_bytes_max) from error
                except BatchCorrupt as error:
                    raise Refused(
                        codes.MESSAGE_CORRUPTED,
                        "the body cannot be decompressed, it is not one gzip member: send it again",
                    ) from error
                if not body:
                    raise _empty()
                left -= len(body)
            found.append(body)
        return found


def _checked(body: bytes, system: Any) -> tuple[bytes, bool]:
    """(body, whether it is compressed). Raises Refused."""
    if not body:
        raise _empty()
    if len(body) > BODY_BYTES_MAX:
        raise _too_large(str(len(body)), BODY_BYTES_MAX)
    if system.body_encoding not in {0, wire.IDENTITY, wire.GZIP}:
        raise Refused(
            codes.MESSAGE_CORRUPTED,
            f"body encoding {system.body_encoding} is unknown: use IDENTITY or GZIP",
        )
    return body, system.body_encoding == wire.GZIP


def _empty() -> Refused:
    return Refused(codes.MESSAGE_BODY_EMPTY, "the message has no body: send at least one byte")


def _too_large(shown: str, bytes_max: int) -> Refused:
    hint = "" if bytes_max == BODY_BYTES_MAX else " (max.message.bytes of the topic)"
    return Refused(
        codes.MESSAGE_BODY_TOO_LARGE,
        f"the body has {shown} bytes, decompressed: at most {bytes_max} are possible{hint}",
    )
