"""A run: one broker, one well-behaved client, one case of abuse after another.

Invariants: cases with a fixed length run as they are; the others share the remaining time. After
each, the checks run; at the end, all acknowledged records are read again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import Fatal
from headrace.runtime.clock import SystemClock
from headrace_verify.kafka_wire import KafkaWire
from headrace_verify.real_broker import HAS_ROCKETMQ, RealBroker, die_with_us
from headrace_verify.self_proof import spoiled_launch
from headrace_verify.verdicts import missing
from headrace_verify.wire import batches, crowds, frames, grammar, streams, web
from headrace_verify.wire.abuse import Abuse, Case, pause
from headrace_verify.wire.control import Control
from headrace_verify.wire.reference_client import ReferenceWrites, find_lost, percentile_ms
from headrace_verify.wire.verdict import Checks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CASES: tuple[Case, ...] = (
    *frames.CASES,
    *crowds.CASES,
    *batches.CASES,
    *web.CASES,
    *streams.CASES,
    *grammar.CASES,
)
GOOD_TOPIC = "wire-good"
SHARE_S_MIN = 0.3
LONG_S = 10
"""A shorter run skips the long cases."""
START_S = 120
ROCKETMQ = ("--rocketmq", "127.0.0.1:0") if HAS_ROCKETMQ else ()


class Plan(NamedTuple):
    """The options of a run."""

    seconds: float
    seed: int
    only: tuple[str, ...] = ()
    """Parts of names; empty: all cases."""
    bug: str = ""
    """The bug to plant."""
    mode: str = "wire"
    """The package below `verify` with the cases and bugs."""
    table: tuple[Case, ...] = CASES
    canaries: tuple[tuple[str, str], ...] = ()
    """Secrets in the broker's environment, by name, which must never appear anywhere."""
    log_level: str = "warning"

    def cases(self) -> list[Case]:
        """The selected cases."""
        return [
            case
            for case in self.table
            if (case.listener != streams.LISTENER or HAS_ROCKETMQ)
            and (
                (not self.only and not (case.is_long and self.seconds < LONG_S))
                or any(words.lower() in case.name for words in self.only)
            )
        ]


class Result(NamedTuple):
    """The result of a case."""

    case: Case
    seconds: float
    checked: int
    sent_bytes: int
    sent: bytes
    wrong: list[str]
    skipped: list[str]
    figures: dict[str, Any]


class Outcome(NamedTuple):
    """The result of a run."""

    plan: Plan
    results: list[Result]
    lost: list[str]
    writes: int
    p99_ms: float
    skipped: list[str]

    @property
    def is_violated(self) -> bool:
        """See Judged."""
        return bool(self.lost) or any(one.wrong for one in self.results)

    @property
    def gaps(self) -> list[str]:
        """See Judged."""
        cases = {f"checks of the case {one.case.name!r}": one.checked for one in self.results}
        return missing(
            {"writes of the well-behaved client": self.writes, "cases": self.results} | cases
        )


def run_wire(plan: Plan, on_progress: Callable[[float, str], None]) -> Outcome:
    """Abuse a broker of our own. Raises Fatal if it does not start."""
    launch = spoiled_launch(plan.mode, plan.bug) if plan.bug else ()
    with tempfile.TemporaryDirectory(prefix=f"headrace-{plan.mode}-") as folder:
        broker = RealBroker(Path(folder), ROCKETMQ, launch)
        broker.environment = dict(plan.canaries)
        broker.log_level = plan.log_level
        broker.start()
        try:
            return _abuse(plan, broker, Path(folder), on_progress)
        finally:
            broker.terminate()


def _abuse(
    plan: Plan, broker: RealBroker, folder: Path, on_progress: Callable[[float, str], None]
) -> Outcome:
    wire = KafkaWire(broker.address, START_S)
    wire.create_topic(GOOD_TOPIC, 1, {})
    configs = {"compression.type": "uncompressed", "max.message.bytes": str(32 << 20)}
    wire.create_topic(batches.TOPIC, 1, configs)
    wire.create_topic(batches.KEPT_TOPIC, 1, {})
    wire.create_topic(batches.TIMED_TOPIC, 1, {})
    wire.create_topic(grammar.TEXT, 1, {})
    wire.close()
    reference = ReferenceWrites(folder / "reference")
    client = _start_reference(broker, folder / "reference")
    try:
        _wait_for(reference)
        with Control(folder / "control") as control:
            secrets = [secret.encode() for _name, secret in plan.canaries]
            checks = Checks(broker, reference, control, secrets)
            results = _run_cases(plan, broker, checks, on_progress)
    finally:
        assert client.stdin is not None
        client.stdin.close()
        try:
            client.wait(90)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()
    reference.read_new()
    writes = reference.writes
    lost = ["the broker has exited"]
    if not broker.has_ended:
        lost = find_lost(broker.address, GOOD_TOPIC, writes)
    left_out = [
        f"{case.name}: {_why_left_out(plan, case)}"
        for case in plan.table
        if case not in plan.cases()
    ]
    skipped = [*checks.skipped, *left_out]
    return Outcome(plan, results, lost, len(writes), percentile_ms(writes, 0.99), skipped)


def _why_left_out(plan: Plan, case: Case) -> str:
    if case.listener == streams.LISTENER and not HAS_ROCKETMQ:
        return "needs the package headrace[rocketmq]"
    return "not selected" if plan.only else "only in longer runs"


def _start_reference(broker: RealBroker, path: Path) -> subprocess.Popen[bytes]:
    host, port = broker.address
    arguments = [host, str(port), GOOD_TOPIC, str(path)]
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "headrace_verify.wire.reference_client", *arguments],
        stdin=subprocess.PIPE,
        preexec_fn=die_with_us(),  # noqa: PLW1509 - one call of libc
    )


def _wait_for(reference: ReferenceWrites) -> None:
    clock = SystemClock()
    end_ns = clock.now_ns() + START_S * 1_000_000_000
    while len(reference.writes) < 20:
        if reference.failure or clock.now_ns() > end_ns:
            raise Fatal(f"the reference client does not start: {reference.failure or 'no write'}")
        pause(0.02)
        reference.read_new()


def _run_cases(
    plan: Plan, broker: RealBroker, checks: Checks, on_progress: Callable[[float, str], None]
) -> list[Result]:
    clock = SystemClock()
    begun_ns = clock.now_ns()
    cases = plan.cases()
    results: list[Result] = []
    for number, case in enumerate(cases):
        on_progress(number / len(cases), case.name)
        spent_s = (clock.now_ns() - begun_ns) / 1e9
        seconds = _share(case, cases[number:], plan.seconds - spent_s)
        results.append(_run_case(case, plan.seed, seconds, broker, checks))
        if broker.has_ended:
            break
    return results


def _share(case: Case, rest: Sequence[Case], left_s: float) -> float:
    shares = sum(one.share for one in rest) or 1
    # Reserve time for cases with a fixed length: some tenths of a second each.
    left_s -= 0.3 * sum(1 for one in rest if not one.share)
    return max(SHARE_S_MIN, left_s * case.share / shares)


def _run_case(case: Case, seed: int, seconds: float, broker: RealBroker, checks: Checks) -> Result:
    before = checks.before()
    abuse = Abuse(broker, f"{seed} {case.name}", seconds)
    try:
        case.run(abuse)
    except OSError as error:
        abuse.faults.append(f"cannot connect to the listener: {error}")
    finally:
        abuse.close()
    wrong, figures = checks.after(before, abuse)
    taken_s = (SystemClock().now_ns() - before.at_ns) / 1e9
    return Result(
        case,
        taken_s,
        abuse.checked,
        abuse.sent_bytes,
        bytes(abuse.sent),
        [*abuse.faults, *wrong],
        abuse.skipped,
        figures,
    )
