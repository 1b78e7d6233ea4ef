"""Checks the signatures by which RocketMQ's clients show that they have an access key's secret.

Invariants: no I/O. A signature is an HMAC-SHA1 of the time at which it was made, in whole seconds,
and of nothing else (`MQv2-HMAC-SHA1`): it does not name the call. Who sees one can repeat it while
it holds, for any call, so it holds for minutes, and goes over networks by TLS alone. RocketMQ takes
one of any age. Why a signature was refused is for the log and never told.

    authorization: MQv2-HMAC-SHA1 Credential=ID, SignedHeaders=x-mq-date-time, Signature=HEX
    x-mq-date-time: 20261127T083000Z

Clients differ. Go and C++ write `Credential=ID//RocketMQ`, Node and C++ upper-case hexadecimals,
Rust another form of time; Java, Go and Python write their local time and call it UTC (`Z`). So the
broker's time zone, and those that `offsets_s` names, count as well; each gives a signature a second
time at which it holds.
"""

from __future__ import annotations

import hmac
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.security.api_keys import ROCKETMQ
from headrace.errors import AuthenticationFailed

if TYPE_CHECKING:
    from headrace.broker.security.api_keys import ApiKey, ApiKeys
    from headrace.runtime.clock import Clock

LENGTH_MAX: Final = 1_000
_SIGNED: Final = re.compile(
    rb"MQv2-HMAC-SHA1 +Credential=([0-9a-f]{16})(?:/[\w.-]*)*, *"
    rb"SignedHeaders=x-mq-date-time, *Signature=([0-9A-Fa-f]{40})"
)
_TIME_LENGTH_MAX: Final = 40


class Signed(NamedTuple):
    """What a signature shows."""

    key: ApiKey
    holds_until_ms: int
    """Then it is too old."""


class AccessSignatures:
    """See the module."""

    def __init__(
        self, keys: ApiKeys, clock: Clock, window_ms: int, offsets_s: tuple[int, ...]
    ) -> None:
        """`window_ms`: how much the time of a signature may differ, because of clocks and of what
        waits in a client. `offsets_s`: of time zones in which clients write their times, besides
        UTC and the broker's."""
        self._keys = keys
        self._clock = clock
        self._window_ms = window_ms
        self._offsets_s = offsets_s

    def check(self, authorization: bytes, date_time: bytes) -> Signed:
        """The key with which a time was signed. Raises AuthenticationFailed.

        A key that does not exist takes as long as one that does.
        """
        match = None if len(authorization) > LENGTH_MAX else _SIGNED.fullmatch(authorization)
        if match is None:
            raise AuthenticationFailed("no access key, or a signature of another form")
        id_ = match[1].decode()
        holds_until_ms = self._holds_until_ms(date_time)
        secret = self._keys.access_secret(id_).encode()
        signature = hmac.digest(secret, date_time, "sha1").hex().encode()
        is_right = hmac.compare_digest(signature, match[2].lower())
        key = self._keys.get(id_)
        if key is None or key.kind != ROCKETMQ:
            raise AuthenticationFailed(f"access key {id_} does not exist, or has expired")
        if not is_right:
            raise AuthenticationFailed(f"another secret than that of access key {id_}")
        return Signed(key, holds_until_ms)

    def _holds_until_ms(self, date_time: bytes) -> int:
        """Until when a signature of this time holds. Raises AuthenticationFailed."""
        if len(date_time) > _TIME_LENGTH_MAX:
            raise AuthenticationFailed("the time of the signature is too long")
        try:
            signed = datetime.fromisoformat(date_time.decode("ascii"))
        except ValueError:
            raise AuthenticationFailed("the time of the signature cannot be read") from None
        if signed.tzinfo is None:
            signed = signed.replace(tzinfo=UTC)
        now_ms = self._clock.now_ms()
        signed_ms = int(signed.timestamp() * 1_000)
        own_s = time.localtime(now_ms / 1_000).tm_gmtoff
        for offset_s in (0, own_s, *self._offsets_s):
            made_ms = signed_ms - offset_s * 1_000
            if abs(now_ms - made_ms) <= self._window_ms:
                return made_ms + self._window_ms
        raise AuthenticationFailed(
            f"the signature was made {(signed_ms - now_ms) / 1_000:+.0f} s from now, more than"
            f" {self._window_ms / 1_000:.0f} s: it is repeated, the client's clock is wrong, or its"
            " time zone is missing in headrace.rocketmq.signature.utc.offsets"
        )
