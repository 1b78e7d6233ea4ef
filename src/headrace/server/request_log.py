"""The log of slow requests, as the settings want it, and what requests of this broker wait for.

Invariants: follows `headrace.log.slow.request.ms` from the start on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.runtime.slow_requests import SlowRequests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.runtime.loop_lag import LoopLag
    from headrace.storage.files.wal_sync import Counters

SETTING: Final = "headrace.log.slow.request.ms"
OFF: Final = "-1"


class RequestLog(SlowRequests):
    """See the module."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """`given`: settings at start-up."""
        super().__init__()
        self.set_threshold(int(given.get(SETTING, OFF)))

    def follow(self, name: str, value: Any) -> None:
        """Apply a change of the setting; ignores others."""
        if name == SETTING:
            self.set_threshold(value)

    def name_causes(self, lag: LoopLag, counters: Counters | None) -> None:
        """`counters`: None if the ledgers are not on this machine."""
        self.causes.append(("the event loop was last late", lambda: lag.last_ns))
        if counters is not None:
            self.causes.append(
                ("the last sync of the write-ahead log ran", lambda: counters.sync_ns_last)
            )
