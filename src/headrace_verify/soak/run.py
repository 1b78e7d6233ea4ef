"""A soak: brokers, their load, their probe, and a sample of them every few seconds.

Invariants: a sample before the load, many under load, and samples after it until resources are
released or a time-out. Only samples after the warm-up are checked for growth.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import HeadraceError
from headrace.runtime.clock import SystemClock
from headrace_verify.real_broker import die_with_us
from headrace_verify.soak import load
from headrace_verify.soak.cluster import SoakedCluster
from headrace_verify.soak.probe import NO_CONTROL, Probed
from headrace_verify.soak.samples import Sample, take
from headrace_verify.soak.targets import BROKER, CLUSTER, WORKERS, OneBroker, Workers
from headrace_verify.soak.verdict import judge, judge_return, warm_up_s
from headrace_verify.verdicts import missing
from headrace_verify.wire.abuse import pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_verify.soak.probe import Round
    from headrace_verify.soak.targets import Soaked

SAMPLES, SAMPLES_MIN = 400, 12
SAMPLE_INTERVAL_S_MIN, SAMPLE_INTERVAL_S_MAX = 0.25, 5.0
SETTLE_S, SETTLE_CLUSTER_S = 45, 90
"""For resources to be released, and garbage to be collected."""
START_S = 120
"""For all clients to complete an operation."""
END_S = 600
"""For the load to stop, and to read everything again."""


class Plan(NamedTuple):
    """The options of a run."""

    seconds: float
    seed: int
    bug: str = ""
    """The bug to plant."""
    target: str = BROKER


class Outcome(NamedTuple):
    """The result of a run."""

    plan: Plan
    before: Sample
    samples: list[Sample]
    after: Sample
    load_report: dict[str, Any]
    """The load's own report."""
    rounds: int
    """The number of probe rounds."""
    figures: dict[str, Any]
    violations: list[str]
    skipped: list[str]
    not_run: list[str]

    @property
    def is_violated(self) -> bool:
        """See Judged."""
        return bool(self.violations)

    @property
    def gaps(self) -> list[str]:
        """See Judged."""
        load_report = self.load_report
        if not load_report:
            return [*self.not_run, "the load has not reported"]
        return [
            *self.not_run,
            *missing(
                {
                    "figures of growth": self.figures,
                    "probe rounds": self.rounds,
                    "acknowledgements": load_report["acknowledged"],
                }
            ),
        ]


def _make_target(target: str, folder: Path, bug: str) -> Soaked:
    """Create it. A bug is planted in brokers, and not in workers. Raises HeadraceError."""
    if target == CLUSTER:
        return SoakedCluster(folder, bug)
    return Workers(folder) if target == WORKERS else OneBroker(folder, bug)


def run_soak(plan: Plan, on_progress: Callable[[float, str], None]) -> Outcome:
    """Soak a broker of our own. Raises HeadraceError if it does not start."""
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as folder:
        target = _make_target(plan.target, Path(folder), plan.bug)
        try:
            target.start()
            return _Soak(plan, target, Path(folder), on_progress).run()
        finally:
            target.stop()


class _Soak:
    """One run."""

    def __init__(
        self,
        plan: Plan,
        target: Soaked,
        folder: Path,
        on_progress: Callable[[float, str], None],
    ) -> None:
        self._plan = plan
        self._target = target
        self._folder = folder
        self._on_progress = on_progress
        self._clock = SystemClock()
        self._begun_ns = self._clock.now_ns()
        self._faults: list[str] = []
        self._not_run: list[str] = []

    @property
    def _at_s(self) -> float:
        return (self._clock.now_ns() - self._begun_ns) / 1e9

    def run(self) -> Outcome:
        load.make_topics(self._target.addresses)
        before = self._first_sample()
        probed = Probed(self._folder / "probe")
        samples: list[Sample] = []
        load_report: dict[str, Any] = {}
        kafka, http = _joined(self._target.addresses), _joined(self._target.http_addresses)
        crew = _start("load", kafka, http, str(self._plan.seed))
        probe = _start("probe", kafka, load.PROBE, str(self._folder / "probe"))
        try:
            self._wait_for(crew, probed)
            samples = self._sample_load(probed)
            _end(probe, 60)
            self._on_progress(1.0, "reading everything again")
            output = _end(crew, END_S)
            with contextlib.suppress(ValueError):
                load_report = json.loads(output)
        finally:
            for process in (probe, crew):
                process.kill()
                process.wait()
        probed.new()
        after = self._settled(before)
        return self._outcome(before, samples, after, load_report, probed)

    def _first_sample(self) -> Sample:
        """`/metrics` becomes available shortly after the broker is ready."""
        while True:
            try:
                return take(self._target, self._at_s)
            except OSError:
                if self._target.ended() or self._at_s > START_S:
                    raise
                pause(0.05)

    def _wait_for(self, crew: subprocess.Popen[bytes], probed: Probed) -> None:
        """Wait until every client is at work: earlier samples would look like growth."""
        stuck = threading.Timer(START_S, crew.kill)
        stuck.start()
        try:
            assert crew.stdout is not None
            crew.stdout.readline()
        finally:
            stuck.cancel()
        end_s = self._at_s + START_S
        while probed.rounds < 5 and not probed.failure and self._at_s < end_s:
            pause(0.05)
            probed.new()

    def _sample_load(self, probed: Probed) -> list[Sample]:
        every_s = min(
            SAMPLE_INTERVAL_S_MAX, max(SAMPLE_INTERVAL_S_MIN, self._plan.seconds / SAMPLES)
        )
        begun_s = self._at_s
        samples: list[Sample] = []
        seconds = self._plan.seconds
        while (gone_s := self._at_s - begun_s) < seconds or (
            # An overloaded machine takes few samples and few rounds of the probe.
            _with_figures(samples) < SAMPLES_MIN and gone_s < seconds + START_S
        ):
            pause(every_s)
            if ended := self._target.ended():
                self._faults.append(f"has exited on its own: {ended}")
                break
            try:
                sample = take(self._target, self._at_s)
            except (OSError, HeadraceError) as error:
                self._not_run.append(f"sampling failed: {error!r}")
                continue
            samples.append(with_latencies(sample, probed.new()))
            processes = sample.processes.values()
            rss = sum(one.rss_bytes or 0 for one in processes) >> 20
            tasks = sum(one.tasks or 0 for one in processes)
            self._on_progress(min(1.0, gone_s / seconds), f"{rss} MiB, {tasks} tasks")
        return samples

    def _settled(self, before: Sample) -> Sample:
        """Return the first sample after the load without a finding, or the last one."""
        is_cluster = self._plan.target == CLUSTER
        end_s = self._at_s + (SETTLE_CLUSTER_S if is_cluster else SETTLE_S)
        while True:
            after = take(self._target, self._at_s)
            is_whole = after.shared is not None or not is_cluster
            if is_whole and (not judge_return(before, after) or self._at_s > end_s):
                return after
            pause(0.2)

    def _outcome(
        self,
        before: Sample,
        samples: list[Sample],
        after: Sample,
        load_report: dict[str, Any],
        probed: Probed,
    ) -> Outcome:
        first_s = samples[0].at_s if samples else 0.0
        judged = [one for one in samples if one.at_s - first_s >= warm_up_s(self._plan.seconds)]
        wrong, figures = judge(judged, load.ENDLESS, {load.RETAINED: load.RETAINED_BYTES_MAX})
        wrong += judge_return(before, after)
        wrong += [*self._faults[:10], *load_report.get("faults", ()), *load_report.get("lost", ())]
        if probed.failure:
            wrong.append(f"the probe: {probed.failure}")
        if after.shared is not None:
            wrong += after.shared.problems
        for path in self._target.logs():
            wrong += _faults_in(path)
        skipped = []
        if any(one.rss_bytes is None for one in before.processes.values()):
            skipped.append("memory, descriptors and threads: not available without /proc")
        return Outcome(
            self._plan, before, samples, after, load_report, probed.rounds, figures, wrong, skipped,
            self._not_run[:10],
        )  # fmt: skip


def with_latencies(sample: Sample, rounds: Sequence[Round]) -> Sample:
    """Build the sample with the figures of these rounds."""
    if not rounds:
        return sample
    produce = sorted(one.produce_us / 1000 for one in rounds)
    fetch = sorted(one.fetch_us / 1000 for one in rounds)
    control = [one.control_us / 1000 for one in rounds if one.control_us != NO_CONTROL]
    p99 = min(len(rounds) - 1, len(rounds) * 99 // 100)
    return sample._replace(
        produce_p50_ms=median(produce),
        produce_p99_ms=produce[p99],
        fetch_p50_ms=median(fetch),
        fetch_p99_ms=fetch[p99],
        control_p50_ms=median(control) if control else None,
    )


def _faults_in(path: Path) -> list[str]:
    lines = path.read_text(errors="replace").splitlines()
    for number, line in enumerate(lines):
        if "Traceback" in line or " ERROR " in line:
            text = "\n".join(lines[max(0, number - 1) : number + 40])
            return [f"a broker's log reports an internal error: {text[:3000]}"]
    return []


def _with_figures(samples: Sequence[Sample]) -> int:
    return sum(one.produce_p50_ms is not None for one in samples)


def _joined(addresses: Sequence[tuple[str, int]]) -> str:
    return ",".join(f"{host}:{port}" for host, port in addresses)


def _start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", f"headrace_verify.soak.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_us(),  # noqa: PLW1509 - one call of libc
    )


def _end(process: subprocess.Popen[bytes], patience_s: float) -> bytes:
    """Close its input and wait; returns its report."""
    try:
        return process.communicate(timeout=patience_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return b""
