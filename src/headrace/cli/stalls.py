"""Why a reader gets no records: an error that the client library retries in silence, or an open
transaction.

Invariants: reads only. Asks the leaders with a Fetch request of its own for what the client library
does not show, and only after a silence.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.cli.broker_calls import ask_broker
from headrace.cli.client import kafka
from headrace.cli.failures import CommandFailed
from headrace.cli.output import say
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.cli.positions import Partition
    from headrace.cli.session import CliSession

FETCH: Final = 1, 12
"""The newest version that names topics."""
SILENCE_S: Final = 2.0
"""The silence after which leaders are asked, and the interval between questions."""
NO_ERROR: Final = 0
_PASSING: Final = {
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "OFFSET_NOT_AVAILABLE",
    "OFFSET_OUT_OF_RANGE",
}
"""The client library refreshes its metadata, or resets its offset."""


class Stalls:
    """Watches one reader; `read_uncommitted`: open transactions do not hold it up."""

    def __init__(self, session: CliSession, *, read_uncommitted: bool) -> None:
        self._session = session
        self._read_uncommitted = read_uncommitted
        self._quiet_since_s = self._asked_at_s = time.monotonic()
        self._failing_since_s: float | None = None
        self._said: set[str] = set()

    def moved(self) -> None:
        """Call this after records were read."""
        self._quiet_since_s = time.monotonic()
        self._failing_since_s = None
        self._said.clear()

    def check(self, positions: Callable[[], Mapping[Partition, int]]) -> None:
        """Call this while there are no records: reports each reason once. `positions`
        returns the next offsets.

        Raises CommandFailed if a partition cannot be read for as long as `--timeout`.
        """
        now_s = time.monotonic()
        if now_s - max(self._quiet_since_s, self._asked_at_s) < SILENCE_S:
            return
        failure: CommandFailed | None = None
        try:
            for partition, offset in positions().items():
                failure = self._cause(partition, offset) or failure
        except (CommandFailed, kafka().KafkaException):
            return  # no leader answers: the client library reports that itself
        finally:
            self._asked_at_s = time.monotonic()
        if failure is None:
            self._failing_since_s = None
            return
        self._failing_since_s = self._failing_since_s or now_s
        if now_s - self._failing_since_s >= self._session.timeout_s:
            raise failure
        self._say(f"{failure.message}; trying again for {self._session.timeout_s:g} s")

    def _cause(self, partition: Partition, offset: int) -> CommandFailed | None:
        """The error of reading at an offset. Reports an open transaction."""
        metadata = self._session.cluster_metadata()
        leader = metadata.brokers[
            metadata.topics[partition.topic].partitions[partition.number].leader
        ]
        body = {
            "replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1,
            "isolation_level": int(not self._read_uncommitted), "session_id": 0,
            "session_epoch": -1, "forgotten_topics_data": (), "rack_id": "",
            "cluster_id": None,
            "topics": ({"topic": partition.topic, "partitions": ({
                "partition": partition.number, "current_leader_epoch": -1, "fetch_offset": offset,
                "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1,
            },)},),
        }  # fmt: skip
        answer = ask_broker(self._session, f"{leader.host}:{leader.port}", FETCH, body)
        found = answer.responses[0].partitions[0]
        name = f"{partition.topic}-{partition.number}"
        if int(found.error_code) != NO_ERROR:
            error = kafka().KafkaError(int(found.error_code))
            if error.name() in _PASSING:
                return None
            return self._session.failure(
                error, f"read {name} at offset {offset}", Right("read", "topic", partition.topic)
            )
        end, stable = int(found.high_watermark), int(found.last_stable_offset)
        if not self._read_uncommitted and stable <= offset < end:
            self._say(
                f"{name}: {end - offset:,} records from offset {offset} on wait behind an open"
                " transaction; list them with `headrace txn list`, or read with --uncommitted"
            )
        return None

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            say(text)
