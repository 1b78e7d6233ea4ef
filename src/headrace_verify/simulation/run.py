"""One simulated run: a cluster, clients, faults, healing, final checks, the verdict.

Invariants: the seed and the list of faults determine everything; no real clock, no real randomness.
After the last fault everything is healed except what the seed leaves broken permanently (a broker,
a bookie: the rest must suffice). Then every partition must accept a new record within a bound of
simulated time, everything must be readable from the first offset to the last, and again after all
brokers and bookies have lost power together.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.coordinators.coordinator_shard import CoordinatorShard
from headrace.storage.bookkeeper.quorum import Quorum
from headrace_verify.checkers import Verdict, check_events
from headrace_verify.history import OK
from headrace_verify.rng import seeded
from headrace_verify.simulation import workload
from headrace_verify.simulation.asker import run_asker
from headrace_verify.simulation.churn import make_topic, run_churn
from headrace_verify.simulation.clock import SimulatedClock
from headrace_verify.simulation.cluster import KAFKA_PORT, Cluster
from headrace_verify.simulation.fault_points import FaultPoints, draw_points
from headrace_verify.simulation.faults import Faults
from headrace_verify.simulation.final import PROGRESS_S, look_at_everything
from headrace_verify.simulation.group import run_member
from headrace_verify.simulation.journal import Journal
from headrace_verify.simulation.loop import Deadlock, Host, SimulatedLoop
from headrace_verify.simulation.nudges import Nudges
from headrace_verify.simulation.prober import run_prober
from headrace_verify.simulation.queue_clients import (
    DELAY_MS_MAX,
    check_audit,
    drain,
    run_ordered_member,
    run_queue_sender,
    run_share_member,
    set_groups_up,
)
from headrace_verify.simulation.schedule import CLUSTER_KINDS, LONE_KINDS, draw_schedule
from headrace_verify.simulation.tables import check_table, run_table
from headrace_verify.simulation.transactions import run_copier, run_transactional
from headrace_verify.simulation.watch import Watch
from headrace_verify.workloads import LOG, QUEUES, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from headrace_verify.simulation.schedule import Fault

LONE_SHARE = 0.2
"""The fraction of seeds with a standalone broker."""
PROBER_SHARE = TABLE_SHARE = 0.6
UP_WITHIN_S = 60.0
SETTLE_S = 20.0
"""After healing and before the final checks: sessions end, partitions move."""
QUORUMS = (
    (3, Quorum(3, 3, 2)),
    (3, Quorum(3, 2, 2)),
    (4, Quorum(3, 3, 2)),
    (4, Quorum(4, 3, 2)),
    (5, Quorum(3, 3, 2)),
)
"""Bookies, and the replication of each ledger."""

EXPECTED_ERRORS = {"lose-chain": "ledger chain", "disk-full": "the disk is full"}
"""Fault -> the error that brokers must log about it."""

log = logging.getLogger(__name__)


class Scenario(NamedTuple):
    """The parameters that a seed determines."""

    seed: int
    seconds: float
    brokers: int
    bookies: int
    """None: a standalone broker."""
    quorum: Quorum
    roles: tuple[str, ...]
    rate_per_s: float
    is_broken_for_good: bool
    schedule: tuple[Fault, ...]
    points: tuple[str, ...] = ()
    """Enabled fault points: see `fault_points`."""
    workload: str = LOG


def draw_scenario(
    seed: int, seconds: float, *, is_lone: bool | None = None, workload: str = LOG
) -> Scenario:
    """The scenario of a seed, which also decides whether it is a standalone broker unless that is
    given."""
    rng, work = seeded(f"simulation {seed}"), WORKLOADS[workload]
    if is_lone is None:
        is_lone = seeded(f"simulation {seed} lone").random() < LONE_SHARE
    bookies, quorum = rng.choice(QUORUMS)
    roles = [*work.always, *(role for role in work.sometimes if rng.random() < 0.6)]
    if workload == LOG and seeded(f"simulation {seed} prober").random() < PROBER_SHARE:
        roles.append("prober")
    if workload == LOG and seeded(f"simulation {seed} table").random() < TABLE_SHARE:
        roles.append("table")
    return Scenario(
        seed,
        seconds,
        1 if is_lone else rng.choice((2, 3, 3, 4)),
        0 if is_lone else bookies,
        quorum,
        tuple(roles),
        rng.choice((0.4, 1.0, 3.0)),
        rng.random() < 0.4,
        tuple(draw_schedule(seed, seconds, LONE_KINDS if is_lone else CLUSTER_KINDS)),
        draw_points(seed),
        workload,
    )


class Result(NamedTuple):
    """The result of a run."""

    scenario: Scenario
    verdict: Verdict
    problems: list[str]
    trace: int
    simulated_s: float
    messages: int
    callbacks: int
    operations: int
    faults: dict[str, int]
    fault_points: dict[str, int]
    """Point -> number of hits."""
    events: list[Any]
    log_lines: list[str]

    @property
    def held(self) -> bool:
        """Whether nothing was wrong."""
        return self.verdict.is_clean and not self.problems

    @property
    def kinds(self) -> set[str]:
        """The kinds of problems."""
        found = set(self.verdict.counts)
        return found | {_kind_of(problem) for problem in self.problems}


def _kind_of(problem: str) -> str:
    text = problem.partition(" s: ")[2]
    return text.partition(":")[0]


_ROLES: dict[str, Callable[[workload.Context], Coroutine[Any, Any, None]]] = {
    "idempotent": workload.run_idempotent,
    "plain": workload.run_plain,
    "reader": workload.run_reader,
    "observer": workload.run_observer,
    "member": run_member,
    "churn": run_churn,
    "asker": run_asker,
    "prober": run_prober,
    "table": run_table,
    "transactional": run_transactional,
    "copier": run_copier,
    "queue-sender": run_queue_sender,
    "share-member": run_share_member,
    "ordered-member": run_ordered_member,
}


class Run:
    """The assembled parts of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.work = WORKLOADS[scenario.workload]
        self.loop = SimulatedLoop()
        self.journal = Journal(self.loop)
        self.journal.is_calendar_set = any(fault.kind == "clock" for fault in scenario.schedule)
        seed = f"simulation {scenario.seed}"
        self.cluster = Cluster(seed, self.loop, scenario.brokers, scenario.bookies, scenario.quorum)
        self.hosts = [Host(f"c{number}-{role}") for number, role in enumerate(scenario.roles, 1)]
        self.cluster.hosts += self.hosts
        self.faults = Faults(self.cluster, self.hosts, self.work.topics)
        self.watch = Watch(self.cluster, self.journal)
        self.loop.fault_points = FaultPoints(seed, scenario.points)
        self.nudges = Nudges(self.cluster, seeded(f"{seed} nudges"))
        self.begun_s = self.loop.now_s
        self.loop.set_exception_handler(self._failed)
        CoordinatorShard.validates = True

    def _failed(self, _loop: Any, context: dict[str, Any]) -> None:
        """Report an exception in a callback. (Those of tasks depend on garbage collection.)"""
        if "handle" in context:
            self.journal.problem(f"callback failed: {context.get('exception')!r}")

    async def play(self) -> None:
        """Run from the start to the final checks."""
        scenario, loop, cluster = self.scenario, self.loop, self.cluster
        cluster.start()
        if not await cluster.wait_up(UP_WITHIN_S):
            self.journal.problem("not up: the brokers do not start")
            return
        over = asyncio.Event()
        contexts = [self._context(number, host, over) for number, host in enumerate(self.hosts, 1)]
        maker = self._context(0, None, over)
        routes = maker.routes()
        for name, partitions in self.work.topics.items():
            configs = self.work.configs.get(name)
            await make_topic(maker, routes, name, partitions, configs)
        if scenario.workload == QUEUES:
            await set_groups_up(maker, routes)
        if self.journal.is_calendar_set:
            self.journal.write(maker.name, OK, "note", what="calendars are set")
        routes.drop()
        tasks = [
            self._as_host(host, _ROLES[role](context), f"{host.name}")
            for host, role, context in zip(self.hosts, scenario.roles, contexts, strict=True)
        ]
        self.watch.start()
        self.nudges.start()
        self.faults.plan(scenario.schedule, loop.now_s)
        await asyncio.sleep(scenario.seconds)
        self.faults.heal_all()
        loop.fault_points.is_over = True
        self._break_for_good()
        await asyncio.sleep(SETTLE_S)
        over.set()
        done, late = await asyncio.wait(tasks, timeout=workload.RETRY_S + 60)
        for task in late:
            self.journal.problem(f"stuck: {task.get_name()} does not end")
        for task in done:
            if task.exception() is not None:
                self.journal.problem(f"client failed: {task.get_name()}: {task.exception()!r}")
        if scenario.workload == QUEUES:
            await self._empty_queues(maker)
        await look_at_everything(self, maker)
        await self._check_tables(maker)
        if scenario.workload == QUEUES:
            await drain(maker._replace(name="last-drain", over=asyncio.Event()))

    async def _check_tables(self, maker: workload.Context) -> None:
        last = maker._replace(over=asyncio.Event())
        for table in self.journal.tables:
            routes = last.routes()
            try:
                async with asyncio.timeout(PROGRESS_S):
                    await check_table(last, routes, table)
            except TimeoutError:
                self.journal.problem(f"no progress: {table.topic} cannot be read at the end")
            routes.drop()

    async def _empty_queues(self, maker: workload.Context) -> None:
        """Wait until all delayed messages are delivered and acknowledged; check the audit."""
        await asyncio.sleep(DELAY_MS_MAX / 1000)
        await drain(maker._replace(name="drain", over=asyncio.Event()))
        await check_audit(maker, is_calendar_set=self.journal.is_calendar_set)

    def _break_for_good(self) -> None:
        """Liveness: heal all but what stays broken permanently."""
        cluster, rng = self.cluster, seeded(f"simulation {self.scenario.seed} broken")
        if not self.scenario.is_broken_for_good:
            return
        if len(cluster.brokers) > 2:
            cluster.brokers.remove(broken := rng.choice(cluster.brokers))
            broken.end(is_notified=rng.random() < 0.5)
        if len(cluster.bookies) > 3:
            cluster.bookies.remove(bookie := rng.choice(cluster.bookies))
            bookie.end(is_notified=rng.random() < 0.5)

    def _context(self, number: int, host: Host | None, over: asyncio.Event) -> workload.Context:
        name = "last-look" if host is None else host.name
        return workload.Context(
            name,
            number + 1,
            self.journal,
            seeded(f"simulation {self.scenario.seed} {name}"),
            SimulatedClock(self.loop),
            [(broker.name, KAFKA_PORT) for broker in self.cluster.brokers],
            [(topic, part) for topic, count in self.work.topics.items() for part in range(count)],
            over,
            self.scenario.rate_per_s,
            self.work.isolation,
            self.cluster.ask_owner,
        )

    def _as_host(
        self, host: Host, work: Coroutine[Any, Any, None], name: str
    ) -> asyncio.Task[None]:
        task: asyncio.Task[None] = host.run(lambda: self.loop.create_task(work, name=name))
        return task

    def result(self, log_lines: list[str]) -> Result:
        """Collect the result."""
        network, events = self.cluster.network, self.journal.events
        return Result(
            self.scenario,
            check_events(events),
            self.journal.problems,
            self.journal.trace,
            self.loop.now_s - self.begun_s,
            network.messages,
            self.loop.callbacks,
            len(events),
            self.faults.done,
            self.loop.fault_points.hits,
            events,
            log_lines,
        )


class _Lines(logging.Handler):
    """Keeps the last log lines, with simulated time; errors count as problems."""

    def __init__(self, run: Run) -> None:
        super().__init__(logging.WARNING)
        self._run = run
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See logging."""
        from headrace_verify.simulation.loop import HOST

        host = HOST.get()
        name = "-" if host is None else host.name
        text = f"{self._run.loop.now_s:.3f} {name} {record.levelname} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        if len(self.lines) < 5_000:
            self.lines.append(text)
        done = self._run.faults.done
        is_expected = any(
            fault in done and words in text for fault, words in EXPECTED_ERRORS.items()
        )
        if record.levelno >= logging.ERROR and not is_expected:
            self._run.journal.problem(f"fault of a broker: {name}: {record.getMessage()[:200]}")


@contextmanager
def _quiet(run: Run) -> Iterator[_Lines]:
    logger = logging.getLogger("headrace")
    lines = _Lines(run)
    before = logger.level, logger.propagate, logger.handlers
    logger.handlers = [lines]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield lines
    finally:
        logger.level, logger.propagate, logger.handlers = before


def simulate(scenario: Scenario) -> Result:
    """Run a scenario to its end; the same one gives the same result in every process."""
    collects = gc.isenabled()
    gc.disable()  # the remains of a dead host must not be finalized in another host's iteration
    run = Run(scenario)
    try:
        with _quiet(run) as lines:
            try:
                run.loop.run_until_complete(run.play())
            except Deadlock as error:
                run.journal.problem(f"deadlock: {error}")
            return run.result(lines.lines)
    finally:
        run.cluster.network.is_over = True
        run.loop.bury(run.cluster.hosts)
        if collects:
            gc.enable()


def replayed(scenario: Scenario, faults: Sequence[Fault]) -> Result:
    """The same run with other faults."""
    return simulate(scenario._replace(schedule=tuple(faults)))
