"""The service that keeps topics as tables: one archive for each topic whose settings ask for it.

Invariants: holds no state. Settings are read from the brokers every few seconds, progress from the
tables, and topics are shared with other services through `table_lease.py`, so it can be killed at
any moment and started anywhere. A topic that fails does not stop the others; it is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Event, Thread
from time import sleep
from typing import Any

from headrace.errors import HeadraceError
from headrace.pipeline.catalog import table_of_topic
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.errors import BrokerUnavailable
from headrace.pipeline.jobs.archive import ArchiveConfig, ArchiveRound, run_archive
from headrace.pipeline.jobs.table_lease import TopicLease
from headrace.pipeline.jobs.table_settings import TableSetting, tables_of
from headrace.pipeline.restarts import is_passing
from headrace.pipeline.warehouse import Place, Warehouse

log = logging.getLogger(__name__)

OnRound = Callable[[ArchiveRound], None]
OnFailure = Callable[[str, str], None]
ALL_TOPICS = "all topics"
"""In place of a topic, where brokers do not say which topics are tables."""


@dataclass(frozen=True)
class TablesConfig:
    """How topics are kept as tables. Times are milliseconds.

    A quiet topic's records are in its table after about `quiet_wait_ms` and a round, a busy one's
    after `round_wait_ms` and a round at most. At most `rounds_max` rounds run at the same time.
    `registry` are the data source's options of the schema registry, `reads` others of it.
    """

    bootstrap: str
    warehouse: Place
    client: dict[str, str] = field(default_factory=dict)
    registry: dict[str, str] = field(default_factory=dict, repr=False)
    reads: dict[str, str] = field(default_factory=dict)
    quiet_wait_ms: int = 2_000
    round_wait_ms: int = 20_000
    round_records_max: int = 1_000_000
    task_records_max: int = 250_000
    maintain_rounds: int | None = 60
    rounds_max: int = 2
    discover_ms: int = 2_000
    retry_ms: int = 5_000
    poll_interval_ms: int = 500

    def archive_of(self, topic: str, setting: TableSetting) -> ArchiveConfig:
        """The archive of one topic. Raises OptionInvalid."""
        values = {} if setting.value == "binary" else {"valueFormat": setting.value}
        place = Warehouse.at(self.warehouse)
        return ArchiveConfig(
            self.bootstrap,
            topic,
            self.warehouse,
            table_of_topic(place, topic).in_spark,
            continuous=True,
            mode="upsert" if setting.mode == "upsert" else "append",
            client=self.client,
            reads=self.reads,
            values={**values, **self.registry} if values else {},
            is_daily=True,
            quiet_wait_ms=self.quiet_wait_ms,
            round_wait_ms=self.round_wait_ms,
            round_records_max=self.round_records_max,
            task_records_max=self.task_records_max,
            maintain_rounds=self.maintain_rounds,
            poll_interval_ms=self.poll_interval_ms,
        )


def serve_tables(
    config: TablesConfig,
    *,
    spark: Any,
    on_round: OnRound = lambda _: None,
    on_failure: OnFailure = lambda _topic, _why: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Serve until stopped.

    Waits while no broker answers, as the service may be started before them; `on_failure` is called
    once for ALL_TOPICS then.
    """
    service = _Service(config, spark, on_round, on_failure)
    try:
        while not should_stop():
            service.step()
            sleep(min(0.2, config.discover_ms / 1000))
    finally:
        service.close()


class _Table(Thread):
    """One topic's archive, tried again until it is stopped."""

    def __init__(self, topic: str, setting: TableSetting, service: _Service) -> None:
        super().__init__(name=f"table of {topic}", daemon=True)
        self.setting = setting
        self.stopping = Event()
        self._topic = topic
        self._service = service

    def run(self) -> None:
        """Archive; a failure is reported once for each cause."""
        service, reported = self._service, ""
        while not self.stopping.is_set():
            try:
                run_archive(
                    service.config.archive_of(self._topic, self.setting),
                    spark=service.spark,
                    on_round=service.on_round,
                    should_stop=self.stopping.is_set,
                    gate=service.gate,
                )
            except Exception as error:  # noqa: BLE001 - one topic's failure stops no other
                text = _reason(error)
                if text != reported:
                    service.on_failure(self._topic, text)
                    log.log(
                        logging.INFO if is_passing(error) else logging.WARNING,
                        "%s: its table is not served; trying again: %s", self._topic, text,
                    )  # fmt: skip
                reported = text
                self.stopping.wait(service.config.retry_ms / 1000)


_CAUSES = (": ", "Caused by: ")
"""How the lines of a trace of Java's begin that say what has happened."""


def _reason(error: Exception) -> str:
    if isinstance(error, HeadraceError):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    causes = [line.split(": ", 1)[1] for line in lines if line.startswith(_CAUSES)]
    shown = " ".join([lines[0], "; ".join(causes[:1] + causes[1:][-1:])])
    return f"{type(error).__name__}: {shown.strip()}"


class _Service:
    """The archives of this process."""

    def __init__(
        self, config: TablesConfig, spark: Any, on_round: OnRound, on_failure: OnFailure
    ) -> None:
        self.config = config
        self.spark = spark
        self.on_round, self.on_failure = on_round, on_failure
        self.gate = BoundedSemaphore(config.rounds_max)
        client = {**config.client, "bootstrap.servers": config.bootstrap}
        self._cluster = ClusterClient(client)
        self._lease = TopicLease(client)
        self._wanted: dict[str, TableSetting] = {}
        self._running: dict[str, _Table] = {}
        self._steps = 0
        self._reported = ""
        self._is_away = False

    def _discover(self) -> None:
        """Look at the topics' settings; without an answer those known before hold."""
        try:
            self._wanted = tables_of(self._cluster)
        except BrokerUnavailable as error:
            if not self._is_away:
                self.on_failure(ALL_TOPICS, str(error))
            self._is_away = True
            return
        self._is_away = False
        self._lease.want(frozenset(self._wanted))

    def step(self) -> None:
        """Start and stop archives by the settings and the lease."""
        if self._steps % max(1, self.config.discover_ms // 200) == 0:
            self._discover()
        self._steps += 1
        owned, problem = self._lease.owned, self._lease.problem
        if problem != self._reported:
            self._reported = problem
            for topic in sorted(self._wanted.keys() - owned) if problem else ():
                self.on_failure(topic, problem)
        for topic, table in list(self._running.items()):
            if not table.is_alive():
                del self._running[topic]
            elif topic not in owned or self._wanted.get(topic) != table.setting:
                table.stopping.set()
        for topic in sorted(owned & self._wanted.keys() - self._running.keys()):
            self._running[topic] = table = _Table(topic, self._wanted[topic], self)
            table.start()

    def close(self) -> None:
        """Stop after the rounds in progress, and give the topics up."""
        for table in self._running.values():
            table.stopping.set()
        for table in self._running.values():
            table.join()
        self._lease.close()
