"""One black-box run: load, faults, healing, liveness, a full read, the checkers.

Invariants: all random draws derive from the seed. A run fails if it checked nothing, or if a client
gave up that should have continued.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import HeadraceError
from headrace.records.codec import iterate_records
from headrace_verify.blackbox import archive
from headrace_verify.blackbox.all_parts import chosen, has_records
from headrace_verify.blackbox.context import Context, Spec
from headrace_verify.blackbox.crew import SMALL_LEDGERS, TOPICS, Crew
from headrace_verify.blackbox.fault_injection import Done, FaultInjector
from headrace_verify.blackbox.figures import Tally
from headrace_verify.blackbox.link import Network
from headrace_verify.blackbox.producers import PATIENCE_S
from headrace_verify.blackbox.raw_clients import encoded, note_committed, note_ends
from headrace_verify.blackbox.read_back import read_back
from headrace_verify.blackbox.routing import Connection, Group, Place
from headrace_verify.blackbox.schedule import Fault, draw_schedule
from headrace_verify.blackbox.targets import SINGLE, kinds_of, make_target
from headrace_verify.checkers import Verdict, check_history, without_collector
from headrace_verify.checkers.facts import gather
from headrace_verify.checkers.share_ends import count_messages
from headrace_verify.history import NOTE, OK, SEND, History, now_ns, read_history, write_merged
from headrace_verify.verdicts import CANNOT_RUN, HELD, missing, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace_verify.blackbox.archive import Archived
    from headrace_verify.blackbox.cluster import Cluster
    from headrace_verify.blackbox.crew import Client

PROBE_TOPIC = "probe"
WARM_UP_S = 20.0
"""For all clients to start; imports take time on a small machine."""
CALM_SHARE = 0.2
"""Load without faults at the end, as a fraction of the bound: all clients get a chance to
recover."""
DRAIN_SHARE = 8
"""For groups to read everything, as a fraction of the bound: a killed member is removed after its
session time-out of 6 s, and a machine's disk may stall for minutes."""
DRAIN_SHARE_OF_BUGS = 0.75
LIBRARY_S = 120 * 1.2 + 20
"""The time within which RocketMQ's own clients must reach a broker that is well."""
HISTORY = "history.jsonl"
CRITICAL_KINDS = ("send ok", "poll ok", "commit ok", "committed ok", "offsets ok", "assign ok")
"""If one of these never happened, the run has not tested anything useful."""


class Plan(NamedTuple):
    """The options of a run."""

    seconds: float
    seed: int
    is_quick: bool = False
    bug: str | None = None
    kinds: tuple[str, ...] = ()
    """Kinds of faults; empty: all that the target supports."""
    target: str = SINGLE
    with_archive: bool = False
    """Whether the pipeline's archive runs, too."""
    load: float = 1.0
    """Producers' rate as a fraction of the usual: lower on a slow machine, or for hours."""
    parts: tuple[str, ...] = ()
    """Parts whose clients run (`all_parts.NAMES`); empty: all."""


@dataclass(slots=True)
class Outcome:
    """The result."""

    plan: Plan
    folder: Path
    schedule: list[Fault]
    done: Done = field(default_factory=Done)
    violations: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)
    tally: Tally = field(default_factory=Tally)
    counts: dict[str, int] = field(default_factory=dict)
    messages: dict[str, dict[str, int]] = field(default_factory=dict)
    """Share group -> how many messages were sent, and their outcomes."""
    event_count: int = 0
    begun_ns: int = 0
    healed_ns: int = 0
    ended_ns: int = 0
    judged_s: float = 0.0
    log_tail: str = ""
    archive: Archived | None = None

    not_run: list[str] = field(default_factory=list)
    """Why the run, or a part of it, could not run."""

    @property
    def is_violated(self) -> bool:
        """See Judged."""
        return bool(self.violations) or not self.verdict.is_clean

    @property
    def gaps(self) -> list[str]:
        """See Judged."""
        sent = sum(counts["sent"] for counts in self.messages.values())
        acknowledged = self.tally.operations.get(SEND, {}).get(OK, 0)
        evidence = {"acknowledgements": sent + acknowledged}
        evidence["records read"] = self.tally.records_read + sent
        if self.schedule:
            evidence["faults that took effect"] = len(self.done.injected)
        return [*self.not_run, *missing(evidence)]

    @property
    def held(self) -> bool:
        """Whether there is evidence, and nothing was wrong."""
        return verdict_of(self) == HELD


def run_blackbox(plan: Plan, folder: Path, on_progress: Callable[[float, str], None]) -> Outcome:
    """Run it in `folder`, which keeps the history."""
    kinds = plan.kinds or kinds_of(plan.target)
    outcome = Outcome(plan, folder, draw_schedule(plan.seed, plan.seconds, kinds))
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="headrace-blackbox-"))
    network = Network()
    try:
        cluster = make_target(plan, work, network)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    crew = Crew(
        plan.seed, cluster.bootstrap, work,
        is_quick=plan.is_quick, load=plan.load, parts=plan.parts, http=cluster.http,
        rocketmq=cluster.rocketmq,
    )  # fmt: skip
    own = work / "run.jsonl"
    run = _Run(outcome, cluster, crew, History(own, "run"), on_progress)
    try:
        run.go()
    except CANNOT_RUN as error:
        outcome.not_run.append(f"the run failed: {type(error).__name__}: {error}")
    except HeadraceError as error:
        outcome.violations.append(f"the run failed: {type(error).__name__}: {error}")
    finally:
        outcome.ended_ns = now_ns()
        crew.close()
        if run.archive is not None:
            run.archive.close()
        outcome.log_tail = cluster.log_tail(0)
        _keep_logs({path.name: path for path in work.glob("*.log")} | dict(cluster.logs()), folder)
        cluster.close()
        network.close()
        run.injector.close()
    outcome.skipped |= crew.skipped | outcome.done.skipped
    outcome.violations += outcome.done.wrong
    try:
        _judge(outcome, [own, *crew.histories()])
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return outcome


def _keep_logs(logs: Mapping[str, Path], folder: Path) -> None:
    for name, log in logs.items():
        if log.exists() and log.stat().st_size:
            shutil.copyfile(log, folder / name)


def _judge(outcome: Outcome, histories: list[Path]) -> None:
    """Merge, count, and run the checkers."""
    begun_ns = now_ns()
    merged = outcome.folder / HISTORY
    outcome.event_count = write_merged([path for path in histories if path.exists()], merged)
    with without_collector():
        facts = gather(outcome.tally.passing(read_history(merged)))
        outcome.verdict = check_history(facts)
        outcome.messages = count_messages(facts)
    outcome.counts = facts.counts
    outcome.judged_s = (now_ns() - begun_ns) / 1e9
    outcome.violations += [f"a client gave up: {why}" for why in outcome.tally.gave_up]
    parts = outcome.plan.parts
    wanted = list(CRITICAL_KINDS) if has_records(parts) else []
    wanted += [kind for part in chosen(parts) for kind in part.critical_kinds]
    missing = [kind for kind in dict.fromkeys(wanted) if not facts.counts.get(kind)]
    if missing:
        outcome.violations.append(f"nothing was checked: there was no {', no '.join(missing)}")
    if not outcome.done.injected:
        outcome.violations.append("nothing was checked: no fault was injected")
    for name, counts in outcome.tally.clients.items():
        if "send invoke" in counts and not counts.get("send ok"):
            outcome.violations.append(f"nothing was checked: {name} got no acknowledgements")


class _Run:
    """The phases, one after the other."""

    def __init__(
        self,
        outcome: Outcome,
        cluster: Cluster,
        crew: Crew,
        history: History,
        on_progress: Callable[[float, str], None],
    ) -> None:
        self._outcome = outcome
        self._cluster = cluster
        self._crew = crew
        self._history = history
        self._on_progress = on_progress
        self._plan = outcome.plan
        self._parts = chosen(outcome.plan.parts)
        topics = TOPICS | {PROBE_TOPIC: 1}
        spec = Spec("run", "run", 0, self._plan.seed, cluster.bootstrap, topics, 0)
        spec.options |= {"http": cluster.http, "rocketmq": cluster.rocketmq}
        self._context = Context(spec, history)
        self.injector = FaultInjector(cluster, crew, history, self._plan.seconds)
        outcome.done = self.injector.done
        self.archive: archive.Archive | None = None

    def go(self) -> None:
        """Run all phases. Raises HeadraceError, OSError."""
        outcome = self._outcome
        self._on_progress(0, "starting")
        self._cluster.start()
        self._make_topics()
        self._crew.start()
        self._begin_archive()
        self._warm_up()
        outcome.begun_ns = now_ns()
        self._inject_faults()
        outcome.healed_ns = now_ns()
        self._check_liveness()
        self._check_alive()
        self._wait(self._cluster.liveness_s * CALM_SHARE, "calm")
        self._end_producers()
        self._drain()
        for part in self._parts:
            self._on_progress(1, f"{part.name}: finishing")
            within_s = self._drain_s()
            outcome.violations += part.settle(self._crew, self._context, within_s)
        late = self._crew.end(self._crew.clients, 20)
        outcome.violations += [f"{name} did not exit" for name in late]
        self._read_back("final-1")
        self._cluster.kill()
        self._cluster.start()
        self._read_back("final-2")
        outcome.violations += self._cluster.complaints()
        if self.archive is not None:
            self._on_progress(1, "the archive is finishing")
            outcome.archive = self.archive.finish()
            outcome.violations += outcome.archive.problems

    def _begin_archive(self) -> None:
        if not self._plan.with_archive:
            return
        why = archive.why_not()
        if why is not None:
            self._outcome.skipped["archive"] = why
            return
        spec, folder = self._context.spec, self._crew.folder
        self.archive = archive.Archive(spec.bootstrap, folder, spec.seed, self._history)
        self.archive.start()

    def _read_back(self, process: str) -> None:
        self._on_progress(1, "reading everything back")
        path = self._crew.folder / f"{process}.jsonl"
        self._crew.former_histories.append(path)
        history = History(path, process)
        context = Context(self._context.spec, history)
        self._outcome.violations += read_back(context, TOPICS | {PROBE_TOPIC: 1})
        for part in self._parts:
            self._outcome.violations += part.read_back(context)
        history.close()

    def _warm_up(self) -> None:
        """Wait until every client is at work: earlier faults would affect no client."""
        self._on_progress(0, "clients are starting")
        deadline_ns = now_ns() + int(WARM_UP_S * 1e9)
        waiting = list(self._crew.clients)
        while waiting and now_ns() < deadline_ns:
            time.sleep(0.1)
            waiting = [client for client in waiting if not _is_at_work(client.history_path)]

    def _make_topics(self) -> None:
        connection = Connection(self._context, 30)
        wire = connection.wire()
        for topic, partitions in TOPICS.items():
            wire.create_topic(topic, partitions, SMALL_LEDGERS if topic == "gamma" else {})
        wire.create_topic(PROBE_TOPIC, 1, {})
        for part in self._parts:
            for topic, partitions in part.topics.items():
                wire.create_topic(topic, partitions, {})
            part.prepare(self._context)
        connection.drop()

    def _wait(self, seconds: float, what: str) -> None:
        self._on_progress(1, what)
        time.sleep(seconds)

    def _inject_faults(self) -> None:
        injector = self.injector

        def show() -> None:
            passed = (now_ns() - self._outcome.begun_ns) / 1e9
            state = f"{len(injector.done.injected)} faults healed {injector.now}"
            self._on_progress(min(1.0, passed / self._plan.seconds), state)

        injector.run(self._outcome.schedule, self._outcome.begun_ns, show)
        left_s = self._plan.seconds - (now_ns() - self._outcome.begun_ns) / 1e9
        time.sleep(max(0.0, left_s))

    def _check_alive(self) -> None:
        for node in range(self._cluster.node_count):
            if not self._cluster.is_alive(node):
                words = self._cluster.log_tail(node)
                name = self._cluster.name(node)
                self._outcome.violations.append(f"{name} has exited on its own: {words}")
                self._cluster.kill(node)
                self._cluster.start(node)

    def _check_liveness(self) -> None:
        """Check that a new client writes and reads, through the links, within the bound."""
        within_s = self._cluster.liveness_s
        deadline_ns = now_ns() + int(within_s * 1e9)
        value, data = self._context.begin_send(PROBE_TOPIC, 0, again=True)
        why: object = "no try"
        connection = Connection(self._context, 2.0)
        while now_ns() < deadline_ns:
            try:
                wire = connection.wire(Place(PROBE_TOPIC, 0))
                try:
                    offset = wire.produce(PROBE_TOPIC, 0, encoded([data]))
                    self._context.end_send(OK, PROBE_TOPIC, 0, value, offset=offset)
                    since_ns = now_ns()
                    fetched, _ = wire.fetch(PROBE_TOPIC, 0, offset)
                finally:
                    connection.drop()
                records = [(0, one.offset, one.value) for one in iterate_records(fetched)]
                if self._context.polled(since_ns, PROBE_TOPIC, records):
                    return
            except OSError as error:
                why = error
                connection.drop()
                time.sleep(0.1)
        violation = f"not alive: no write and read within {within_s} s after healing: {why}"
        self._outcome.violations.append(violation)

    def _end_producers(self) -> None:
        self._on_progress(1, "producers are finishing")
        producers = self._crew.producers()
        self._wait_for_libraries([one for one in producers if "-library-" in one.spec.kind])
        for name in self._crew.end(producers, PATIENCE_S + 20):
            self._outcome.violations.append(
                f"not alive: {name} could not send its remaining records"
            )
        self._acknowledged_since_healing([client.spec.name for client in producers])

    def _wait_for_libraries(self, producers: list[Client]) -> None:
        """Libraries that connect by gRPC's own schedule wait up to two minutes, plus a fifth,
        before they try again a broker that was often away."""
        deadline_ns = self._outcome.healed_ns + int(LIBRARY_S * 1e9)
        while now_ns() < deadline_ns:
            if all(self._has_recovered(one.history_path) for one in producers):
                return
            time.sleep(1)

    def _acknowledged_since_healing(self, names: list[str]) -> None:
        """Check that each producer got an acknowledgement for a record sent after the healing."""
        for client in self._crew.producers():
            if client.spec.name in names and not self._has_recovered(client.history_path):
                violation = f"not alive: {client.spec.name} wrote nothing after the last healing"
                self._outcome.violations.append(violation)

    def _has_recovered(self, path: Path) -> bool:
        """Whether it got an acknowledgement for a record sent, or deliberately resent, since."""
        since_ns = self._outcome.healed_ns
        sends_again = "raw-" in path.name
        sent = set()
        for event in read_history(path):
            if event.get("what") == "started" and event["t"] > since_ns:
                return True  # it replaced a killed one, and had no time to do anything
            if event["f"] != "send" or event["t"] < since_ns:
                continue
            if event["k"] == "invoke":
                sent.add(event["value"])
            elif event["k"] == OK and (sends_again or event["value"] in sent):
                return True
        return False

    def _drain_s(self) -> float:
        share = DRAIN_SHARE_OF_BUGS if self._plan.bug else DRAIN_SHARE
        return self._cluster.liveness_s * share

    def _drain(self) -> None:
        """Wait until every group has read and committed everything."""
        self._on_progress(1, "groups are catching up")
        within_s = self._drain_s()
        deadline_ns = now_ns() + int(within_s * 1e9)
        waiting = set(self._crew.groups)
        lag: dict[str, int] = {}
        connection = Connection(self._context)
        while waiting and now_ns() < deadline_ns:
            time.sleep(0.2)
            try:
                self._check_groups(connection, waiting, lag)
            except OSError as error:
                connection.failed(error)  # the group's coordinator may still be loading
        connection.drop()
        for group in sorted(waiting):
            violation = f"not alive: group {group} still lags {lag.get(group)} after {within_s} s"
            self._outcome.violations.append(violation)

    def _check_groups(self, connection: Connection, waiting: set[str], lag: dict[str, int]) -> None:
        """Remove groups that have committed everything from `waiting`. Raises OSError."""
        ends = {
            place: note_ends(self._context, connection.wire(place), *place)[1]
            for place in (Place(topic, part) for topic, n in TOPICS.items() for part in range(n))
        }
        for group in sorted(waiting):
            committed = note_committed(self._context, connection.wire(Group(group)), group)
            lag[group] = sum(end - max(0, committed.get(at, 0)) for at, end in ends.items())
            if not lag[group]:
                waiting.discard(group)
                self._history.write(OK, "drained", group=group)


def _is_at_work(path: Path) -> bool:
    """Whether a client has done anything after its start."""
    return path.exists() and any(event["f"] != NOTE for event in read_history(path))


def replays(outcome: Outcome) -> Iterator[str]:
    """The command that repeats it."""
    plan = outcome.plan
    yield (
        f"headrace verify blackbox --seed {plan.seed} --time {plan.seconds:g}s"
        + (f" --target {plan.target}" if plan.target != SINGLE else "")
        + (" --quick" if plan.is_quick else "")
        + (" --with-archive" if plan.with_archive else "")
        + (f" --load {plan.load:g}" if plan.load != 1 else "")
        + "".join(f" --clients {name}" for name in plan.parts)
        + (f" --planted '{plan.bug}'" if plan.bug else "")
    )
