"""The clients of a run: processes that are started, frozen, killed and replaced.

Invariants: a client is stopped by closing its standard input; one that does not exit in time is
killed and reported. A killed client is replaced by one with another name and other values, like a
restarted service.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace_verify.blackbox.all_parts import chosen, has_records
from headrace_verify.blackbox.context import Spec
from headrace_verify.blackbox.languages import go, java, rocketmq
from headrace_verify.blackbox.parts import RECORDS, Role
from headrace_verify.real_broker import die_with_us
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

TOPICS = {"alpha": 3, "beta": 1, "gamma": 4}
SMALL_LEDGERS = {"segment.bytes": "200000"}
"""Of `gamma`, so that its ledgers roll under load."""
LIBRARY_GROUP, PYTHON_GROUP, ZOMBIE_GROUP = "library", "python", "zombies"


ROLES = (
    Role("librdkafka-idempotent", "librdkafka-producer", 150),
    Role("librdkafka-plain", "librdkafka-producer", 60),
    Role("raw-idempotent", "raw-producer", 80),
    Role("aiokafka-idempotent", "aiokafka-producer", 60, None, "aiokafka", is_quick=False),
    Role("aiokafka-plain", "aiokafka-producer", 30, None, "aiokafka", is_quick=False),
    Role("kafka-python", "kafka-python-producer", 40, None, "kafka", is_quick=False),
    Role("librdkafka-member-a", "librdkafka-member", 0, LIBRARY_GROUP),
    Role("librdkafka-member-b", "librdkafka-member", 0, LIBRARY_GROUP),
    Role("aiokafka-member", "aiokafka-member", 0, PYTHON_GROUP, "aiokafka", is_quick=False),
    Role("kafka-python-member", "kafka-python-member", 0, PYTHON_GROUP, "kafka", is_quick=False),
    Role("java-idempotent", "java-producer", 40, None, is_quick=False, language="java"),
    Role("java-compressed", "java-producer", 30, None, is_quick=False, language="java"),
    Role("java-member", "java-member", 0, LIBRARY_GROUP, is_quick=False, language="java"),
    Role("go-idempotent", "go-producer", 40, None, is_quick=False, language="go"),
    Role("go-member", "go-member", 0, LIBRARY_GROUP, is_quick=False, language="go"),
    Role("raw-reader", "raw-reader"),
    Role("observer", "observer"),
    Role("churn", "churn"),
    Role("zombies", "zombies", 0, ZOMBIE_GROUP),
)
"""Of plain records."""


def roles_of(parts: Sequence[str] = ()) -> list[Role]:
    """The roles of these parts; empty: all."""
    roles = list(ROLES) if has_records(parts) else []
    return roles + [role for part in chosen(parts) for role in part.roles]


def is_installed(library: str | None) -> bool:
    """Whether a client's library is available here."""
    return library is None or importlib.util.find_spec(library) is not None


LANGUAGES = {
    "java": java.find_command,
    "go": go.find_command,
    "rocketmq-python": rocketmq.find_command,
    "rocketmq-java": rocketmq.find_java_command,
    "rocketmq-node": rocketmq.find_node_command,
    "rocketmq-go": rocketmq.find_go_command,
}


@cache
def find_program(language: str) -> list[str] | str:
    """Prepare a language's program and return its command; or the reason why it is unavailable."""
    try:
        return LANGUAGES[language]()
    except HeadraceError as error:
        return str(error)


class Client:
    """One client's process, and its children."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec = spec
        self.history_path = folder / f"{spec.name}.jsonl"
        self.log_path = folder / f"{spec.name}.log"
        command = [sys.executable, "-m", "headrace_verify.blackbox.worker"]
        command += [json.dumps(asdict(spec)), str(self.history_path)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=die_with_us(),  # noqa: PLW1509 - one call of libc
                process_group=0,  # its children are frozen and killed with it
            )

    @property
    def is_running(self) -> bool:
        """Whether it is running."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to it and its children, if it is running."""
        if self.is_running:
            os.killpg(self.process.pid, number)

    def ask_to_end(self) -> None:
        """Request the end of its operations."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it exited in time; it is killed if not."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        """kill -9."""
        self.ask_to_end()
        if self.is_running:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Crew:
    """All clients of a run."""

    def __init__(
        self,
        seed: int,
        bootstrap: str,
        folder: Path,
        *,
        is_quick: bool,
        load: float = 1.0,
        parts: Sequence[str] = (),
        http: str = "",
        rocketmq: str = "",
    ) -> None:
        """`load`: producers' rate as a fraction of the usual; `parts`: empty: all; `http`,
        `rocketmq`: the brokers' addresses of these protocols."""
        self._http = http
        self._rocketmq = rocketmq
        self.folder = folder
        self._load = load
        self._seed = seed
        self._bootstrap = bootstrap
        self._number = 0
        self.clients: list[Client] = []
        """The running clients."""
        self.former: list[Client] = []
        """The killed clients."""
        self.former_histories: list[Path] = []
        """The histories of other writers."""
        self.skipped: dict[str, str] = {}
        self.groups: set[str] = set()
        self._roles = []
        for role in roles_of(parts):
            is_wanted = role.is_quick or not is_quick
            why = self._why_not(role, is_wanted=is_wanted)
            if why is not None:
                self.skipped[role.name] = why
            elif is_wanted:
                self._roles.append(role)

    def _why_not(self, role: Role, *, is_wanted: bool) -> str | None:
        """Why this client is unavailable here, or None."""
        if not is_installed(role.library):
            return f"{role.library} is not installed"
        if role.kind.startswith("rocketmq-") and not (self._rocketmq and is_installed("grpc")):
            return "needs headrace[rocketmq] and grpcio"
        if role.language is None or not is_wanted:
            return None  # takes a while to determine
        found = find_program(role.language)
        return found if isinstance(found, str) else None

    def start(self) -> None:
        """Start all clients."""
        members = {
            role.group
            for role in self._roles
            if role.part == RECORDS and role.kind.endswith("-member")
        }
        self.groups = {group for group in members if group is not None}
        cooperative = seeded(f"strategy {self._seed}").random() < 0.5
        for role in self._roles:
            options: dict[str, Any] = {
                "idempotent": role.name.endswith("idempotent"),
                "strategy": "cooperative-sticky" if cooperative else "range",
                "groups": sorted(self.groups),
                "part": role.part,
                "http": self._http,
                "rocketmq": self._rocketmq,
                "isolation": "read_uncommitted" if role.part == RECORDS else "read_committed",
                **(role.options or {}),
            }
            if role.language is not None:
                options["command"] = find_program(role.language)
                options["compressed"] = role.name.endswith("compressed")
            spec = Spec(
                role.name, role.kind, 0, self._seed, self._bootstrap,
                dict(TOPICS if role.topics is None else role.topics),
                ceil(role.rate_per_s * self._load), role.group, options,
            )  # fmt: skip
            self._begin(spec)

    def _begin(self, spec: Spec) -> Client:
        self._number += 1
        client = Client(replace(spec, number=self._number), self.folder)
        self.clients.append(client)
        return client

    def pick(self, target: int) -> Client:
        """Choose a running client."""
        return self.clients[target % len(self.clients)]

    def kill(self, client: Client) -> None:
        """kill -9: leaves no message and at most a partial line."""
        client.signal(signal.SIGCONT)
        client.kill()
        self.clients.remove(client)
        self.former.append(client)

    def replace(self, client: Client) -> Client:
        """Start a client in place of a killed one."""
        name, _, life = client.spec.name.partition("~")
        return self._begin(replace(client.spec, name=f"{name}~{int(life or 1) + 1}"))

    def end(self, chosen: Iterable[Client], timeout_s: float) -> list[str]:
        """Let them finish; returns the names of those that did not in time."""
        clients = list(chosen)
        for client in clients:
            client.signal(signal.SIGCONT)
            client.ask_to_end()
        return [client.spec.name for client in clients if not client.wait(timeout_s)]

    def producers(self) -> list[Client]:
        """The running clients that write to the run's topics."""
        return [client for client in self.clients if client.spec.kind.endswith("-producer")]

    def of_part(self, part: str) -> list[Client]:
        """The running clients of one part."""
        return [client for client in self.clients if client.spec.options["part"] == part]

    def histories(self) -> list[Path]:
        """All history files, including those of killed clients."""
        clients = [client.history_path for client in (*self.clients, *self.former)]
        return [*clients, *self.former_histories]

    def close(self) -> None:
        """Kill all remaining clients."""
        for client in self.clients:
            client.kill()
