"""The broker's work for a request: who measures times must not learn from them what exists.

Invariants: as in `tenants`. Compares CPU time of the broker's process, medians of interleaved
requests with a generous bound, because the time to an answer depends on everything else that runs.
What costs some microseconds, such as one look into memory, is not seen.
"""

from __future__ import annotations

import http.client
import itertools
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from headrace.records.tenant_names import prefix_of
from headrace_verify.security.secured import ADMIN, MALLORY, Secured, basic
from headrace_verify.security.tenants import ABSENT, HELD, VICTIM, two_tenants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace_verify.wire.abuse import Abuse

_REPEATS: Final = 15
_ATTEMPTS: Final = 3
"""A difference must show in each: what else the process does may cause one."""
_RATIO_MAX: Final = 1.3
_SPARE_NS: Final = 200_000
"""A password costs the broker a millisecond or more."""
_REFUSED: Final = frozenset({403, 404})
_ADDRESSES: Final = "127.0.0.{}"
"""An address that fails often waits, whatever user it names."""


def work_does_not_tell_what_exists(abuse: Abuse) -> None:
    if sys.platform != "linux":
        abuse.skipped.append("work that tells what exists: CPU time is compared on Linux only")
        return
    secured = Secured.of(abuse)
    secured.make("hidden")
    made = secured.ask("POST", "/v1/queues/hidden/hidden/receive", basic(ADMIN), {}).status
    abuse.expect(made == 200, f"an operator cannot receive from a queue: {made}")
    _ask(abuse, secured, "hidden", "absent")  # of the client's own tenant, without rights
    with two_tenants(abuse) as secured:
        _ask(abuse, secured, *(prefix_of(VICTIM) + one for one in (HELD, ABSENT)))
        numbers = itertools.count(2)
        users = [
            partial(_log_in, secured, numbers, basic(user, "wrong")) for user in (ADMIN, "nobody")
        ]
        _compare(abuse, secured, "a wrong password of a user", *users)


def _ask(abuse: Abuse, secured: Secured, held: str, absent: str) -> None:
    """By a key: a password takes the broker longer to check than the request."""
    mine = secured.ask("POST", "/v1/keys", basic(MALLORY), {"name": "of times"}).json()
    headers = {"Authorization": f"Bearer {mine.get('key', '')}"}
    for path in ("/v1/topics/{}", "/v1/topics/{}/messages", "/v1/groups/{}"):
        asked = [
            partial(_get, abuse, secured, path.format(quote(name, safe="")), headers)
            for name in (held, absent)
        ]
        _compare(abuse, secured, f"GET {path.format(held)}", *asked)
    secured.ask("DELETE", f"/v1/keys/{mine.get('id', '')}", basic(MALLORY))


def _get(abuse: Abuse, secured: Secured, path: str, headers: Mapping[str, str]) -> None:
    """A request that is refused for what it asks: for a login it would cost the same anyway."""
    status = secured.ask("GET", path, dict(headers)).status
    abuse.expect(status in _REFUSED, f"GET {path} is answered with {status}")


def _log_in(secured: Secured, numbers: Iterator[int], headers: Mapping[str, str]) -> None:
    source = _ADDRESSES.format(next(numbers)), 0
    connection = http.client.HTTPConnection(*secured.broker.http_address, 60, source)
    try:
        connection.request("GET", "/v1/topics", headers=dict(headers))
        connection.getresponse().read()
    finally:
        connection.close()


def _compare(
    abuse: Abuse,
    secured: Secured,
    what: str,
    held: Callable[[], object],
    absent: Callable[[], object],
) -> None:
    pid = secured.broker.pid
    assert pid is not None, "the broker was started"
    clock = ~pid << 3 | 2  # the CPU clock of a process, as of clock_getcpuclockid
    found: list[tuple[int, int]] = []
    while len(found) < _ATTEMPTS and not any(map(_is_alike, found)):
        found.append(_medians(clock, held, absent))
    costs = ", ".join(f"{one // 1000} and {other // 1000} us" for one, other in found)
    abuse.expect(
        any(map(_is_alike, found)),
        f"{what} costs the broker another time if it exists, and if not: {costs}",
    )


def _medians(clock: int, *asked: Callable[[], object]) -> tuple[int, int]:
    spent: tuple[list[int], list[int]] = [], []
    for _ in range(_REPEATS):
        for times, ask in zip(spent, asked, strict=True):
            before = time.clock_gettime_ns(clock)
            ask()
            times.append(time.clock_gettime_ns(clock) - before)
    return statistics.median_low(spent[0]), statistics.median_low(spent[1])


def _is_alike(medians: tuple[int, int]) -> bool:
    return max(medians) <= min(medians) * _RATIO_MAX + _SPARE_NS
