"""The broker's work for a request: who measures times must not learn from them what exists.

Invariants: as in `tenants`. Compares CPU time of the broker's process, medians of interleaved
requests with a generous bound, because the time to an answer depends on everything else that runs.
What costs some microseconds, such as one look into memory, is not seen. What clients are told is
compared, too.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.records.tenant_names import prefix_of
from headrace_verify.security.asked import PROTOCOLS, hold, logins, signature
from headrace_verify.security.secured import ADMIN, VICTIM, Secured, basic
from headrace_verify.security.tenants import ABSENT, HELD, two_tenants

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_verify.security.asked import Ask
    from headrace_verify.wire.abuse import Abuse

_REPEATS: Final = 15
_ATTEMPTS: Final = 3
"""A difference must show in each: what else the process does may cause one."""
_RATIO_MAX: Final = 1.3
_SPARE_NS: Final = 200_000
"""A password costs the broker a millisecond or more."""


def work_does_not_tell_what_exists(abuse: Abuse) -> None:
    if sys.platform != "linux":
        abuse.skipped.append("work that tells what exists: CPU time is compared on Linux only")
        return
    secured = Secured.of(abuse)
    secured.make("hidden")
    made = secured.ask("POST", "/v1/queues/hidden/hidden/receive", basic(ADMIN), {}).status
    abuse.expect(made == 200, f"an operator cannot receive from a queue: {made}")
    hold(abuse, secured, "hidden")
    _ask(abuse, secured, "hidden", "absent")  # of the client's own tenant, without rights
    with two_tenants(abuse) as secured:
        held, absent = (prefix_of(VICTIM) + one for one in (HELD, ABSENT))
        hold(abuse, secured, held)
        _ask(abuse, secured, held, absent)
    sources = (f"127.0.{number >> 8}.{number & 255}" for number in itertools.count(2))
    for one in logins(secured, sources):
        _compare(abuse, secured, one, ADMIN, "nobody")
    key = secured.ask("POST", "/v1/keys", basic(ADMIN), {"name": "known", "kind": "rocketmq"})
    known = str(key.json().get("id"))
    _compare(abuse, secured, signature(abuse, secured, sources), known, "0" * len(known))
    secured.ask("DELETE", f"/v1/keys/{known}", basic(ADMIN))


def _ask(abuse: Abuse, secured: Secured, held: str, absent: str) -> None:
    for protocol in PROTOCOLS:
        with protocol(abuse, secured) as asked:
            for one in asked:
                _compare(abuse, secured, one, held, absent)


def _compare(abuse: Abuse, secured: Secured, asked: Ask, held: str, absent: str) -> None:
    pid = secured.broker.pid
    assert pid is not None, "the broker was started"
    clock = ~pid << 3 | 2  # the CPU clock of a process, as of clock_getcpuclockid
    what = asked.what.format(held)
    told: list[list[object]] = []
    while len(told) < _ATTEMPTS and not any(map(_is_same, told)):  # a coordinator may be loading
        told.append([asked.prepare(name)() for name in (held, absent)])
    abuse.expect(any(map(_is_same, told)), f"{what} is told if it exists, and if not: {told}")
    found: list[tuple[int, int]] = []
    while len(found) < _ATTEMPTS and not any(map(_is_alike, found)):
        found.append(_medians(clock, partial(asked.prepare, held), partial(asked.prepare, absent)))
    costs = ", ".join(f"{one // 1000} and {other // 1000} us" for one, other in found)
    abuse.expect(
        any(map(_is_alike, found)),
        f"{what} costs the broker another time if it exists, and if not: {costs}",
    )


def _is_same(told: list[object]) -> bool:
    return told[0] == told[1]


def _medians(clock: int, *asked: Callable[[], Callable[[], object]]) -> tuple[int, int]:
    spent: tuple[list[int], list[int]] = [], []
    for _ in range(_REPEATS):
        for times, prepare in zip(spent, asked, strict=True):
            ask = prepare()
            before = time.clock_gettime_ns(clock)
            ask()
            times.append(time.clock_gettime_ns(clock) - before)
    return statistics.median_low(spent[0]), statistics.median_low(spent[1])


def _is_alike(medians: tuple[int, int]) -> bool:
    return max(medians) <= min(medians) * _RATIO_MAX + _SPARE_NS
