"""What must hold after every case of abuse, and how it is checked.

Invariants: checks from outside: /proc, the log file, the well-behaved client's records, `/healthz`.
What a machine does not support is skipped and reported.
"""

from __future__ import annotations

import http.client
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import headrace
from headrace.runtime.clock import SystemClock
from headrace_verify.wire.abuse import pause
from headrace_verify.wire.process import Usage, forget_peak, usage
from headrace_verify.wire.reference_client import percentile_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.real_broker import RealBroker
    from headrace_verify.wire.abuse import Abuse
    from headrace_verify.wire.control import Control
    from headrace_verify.wire.reference_client import ReferenceWrites

MIB = 1 << 20
GROWN_BYTES_MAX = 64 * MIB
PEAK_BYTES_MAX = 512 * MIB
"""Above the previous value: a batch may decompress to 64 MiB, a request may be 100 MiB large."""
P99_MS_MAX, P99_MS_MAX_BUSY = 500, 2000
WORST_MS_MAX, WORST_MS_MAX_BUSY = 2000, 5000
"""For a single write; the machine's own delays (`control`) are added."""
CONTROL_TIMES = 3
"""A write waits for the machine more than once: for a CPU at either end, and for the disk."""
WRITES_MIN = 500
"""A short case is judged together with earlier writes: a dozen have no p99, and that of 200 is the
second slowest, for which there is a limit of its own."""
DESCRIPTORS_MAX, THREADS_MAX = 32, 16
"""Additional ones: new topics have files, pools have threads."""
LOG_LINES_MAX = 50
"""Warnings and above."""
LOG_LINE_BYTES_MAX = 16_000
"""2,000 characters, each of which may be escaped."""
_CONTROLS = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]")
_QUIET = re.compile(rb"^\S+ \S+ (DEBUG|INFO) ")
SETTLE_S = 20
REFERENCE_S = 60
HTTP_S = 30


class Before(NamedTuple):
    """The state before a case."""

    held: Usage | None
    log_bytes: int
    at_ns: int


class Checks:
    """Of one broker."""

    def __init__(
        self,
        broker: RealBroker,
        reference: ReferenceWrites,
        control: Control,
        canaries: Sequence[bytes] = (),
    ) -> None:
        self._broker = broker
        self._control = control
        self._reference = reference
        self._clock = SystemClock()
        self.skipped: list[str] = []
        self._secrets = [
            b"Traceback (most recent call last)",
            b'File "/',
            os.fsencode(broker.data_dir),
            os.fsencode(Path(headrace.__file__).parent),
            *canaries,
        ]
        self._canaries = canaries

    def before(self) -> Before:
        """Record the state before a case."""
        pid = self._broker.pid
        assert pid is not None
        forget_peak(pid)
        held = usage(pid)
        if held is None and not self.skipped:
            self.skipped.append("memory, descriptors and threads: not available without /proc")
        return Before(held, self._broker.log_path.stat().st_size, self._clock.now_ns())

    def after(self, before: Before, abuse: Abuse) -> tuple[list[str], dict[str, Any]]:
        """(violations, figures). The case's connections are already closed."""
        wrong: list[str] = []
        figures: dict[str, Any] = {}
        if self._broker.has_ended:
            return [f"the broker has exited: {self._broker.log_tail()}"], figures
        self._check_reference(before, wrong, figures)
        self._check_http(wrong)
        if before.held is not None:
            self._check_process(before.held, wrong, figures)
        self._check_log(before.log_bytes, wrong, figures)
        wrong += [f"the client receives {one!r}" for one in self._secrets if one in abuse.received]
        return wrong, figures

    def _check_reference(self, before: Before, wrong: list[str], figures: dict[str, Any]) -> None:
        end_ns = self._clock.now_ns()
        while not self._reference.since(end_ns) and not self._reference.failure:
            if self._clock.now_ns() - end_ns > REFERENCE_S * 1_000_000_000:
                wrong.append(f"the reference client has written nothing for {REFERENCE_S} s")
                break
            pause(0.02)
        if self._reference.failure:
            wrong.append(f"the reference client: {self._reference.failure}")
        writes = self._reference.since(before.at_ns)
        judged = self._reference.writes[-max(WRITES_MIN, len(writes)) :]
        p99 = percentile_ms(judged, 0.99)
        worst = percentile_ms(writes, 1)
        figures |= {
            "writes": len(writes),
            "p50_ms": round(percentile_ms(writes, 0.5), 1),
            "p99_ms": round(p99, 1),
            "max_ms": round(worst, 1),
        }
        is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
        since_ns = judged[0].at_ns - judged[0].latency_us * 1000 if judged else before.at_ns
        control = CONTROL_TIMES * self._control.worst_ms(since_ns)
        figures["control_ms"] = round(control / CONTROL_TIMES, 1)
        limit = (P99_MS_MAX_BUSY if is_busy else P99_MS_MAX) + control
        if p99 > limit:
            wrong.append(f"the reference client's p99 is {p99:.0f} ms: at most {limit:.0f} ms")
        limit = (WORST_MS_MAX_BUSY if is_busy else WORST_MS_MAX) + control
        if worst > limit:
            wrong.append(
                f"a write of the reference client took {worst:.0f} ms: at most {limit:.0f} ms"
            )

    def _check_http(self, wrong: list[str]) -> None:
        client = http.client.HTTPConnection(*self._broker.http_address, timeout=HTTP_S)
        try:
            client.request("GET", "/healthz")
            status = client.getresponse().status
            if status != 200:
                wrong.append(f"/healthz returns {status}")
        except (OSError, http.client.HTTPException) as error:
            wrong.append(f"/healthz does not respond: {error!r}")
        finally:
            client.close()

    def _check_process(self, held: Usage, wrong: list[str], figures: dict[str, Any]) -> None:
        pid = self._broker.pid
        assert pid is not None
        end_ns = self._clock.now_ns() + SETTLE_S * 1_000_000_000
        now = usage(pid)
        while now is not None and _excess(held, now) and self._clock.now_ns() < end_ns:
            pause(0.05)
            now = usage(pid)
        if now is None:
            wrong.append("the broker has exited")
            return
        peak = now.peak_bytes - held.memory_bytes
        figures |= {
            "memory_grown_mib": round((now.memory_bytes - held.memory_bytes) / MIB, 1),
            "peak_grown_mib": round(peak / MIB, 1),
            "memory_mib": round(now.memory_bytes / MIB, 1),
            "descriptors_grown": now.descriptors - held.descriptors,
            "threads_grown": now.threads - held.threads,
        }
        wrong += _excess(held, now)
        if peak > PEAK_BYTES_MAX:
            wrong.append(f"at its worst it took {peak // MIB} MiB more than before")

    def _check_log(self, log_bytes: int, wrong: list[str], figures: dict[str, Any]) -> None:
        with self._broker.log_path.open("rb") as file:
            file.seek(log_bytes)
            data = file.read()
        wrong += [f"the log contains the secret {one!r}" for one in self._canaries if one in data]
        # Split at line ends only: other characters that a terminal treats as such must not occur.
        every = data.split(b"\n")
        wrong += [
            f"a line of the log has {len(line)} bytes: {line[:200]!r}"
            for line in every
            if len(line) > LOG_LINE_BYTES_MAX
        ][:3]
        wrong += [
            f"a line of the log has control characters: {line[:200]!r}"
            for line in every
            if _CONTROLS.search(line)
        ][:3]
        lines = [line for line in every if line and not _QUIET.search(line)]
        figures["log_lines"] = len(lines)
        if len(lines) > LOG_LINES_MAX:
            wrong.append(f"{len(lines)} lines of log: at most {LOG_LINES_MAX}; {lines[0][:200]!r}")
        faults = [line for line in lines if b"Traceback" in line or b" ERROR " in line]
        if faults:
            text = b"\n".join(lines[lines.index(faults[0]) :][:60]).decode(errors="replace")
            wrong.append(f"the broker's log reports an internal error: {text[:4000]}")


def _excess(held: Usage, now: Usage) -> list[str]:
    grown = now.memory_bytes - held.memory_bytes
    found = []
    if grown >= GROWN_BYTES_MAX:
        found.append(f"memory has grown by {grown // MIB} MiB")
    if now.descriptors > held.descriptors + DESCRIPTORS_MAX:
        found.append(f"{now.descriptors - held.descriptors} descriptors are not released")
    if now.threads > held.threads + THREADS_MAX:
        found.append(f"{now.threads - held.threads} threads more than before")
    return found
