"""Brokers of two versions beside each other, on one real ZooKeeper and real bookies.

Two brokers of an older commit are replaced by this version's, one after the other, as in a rolling
upgrade. Before, in between and after, what was acknowledged is there at its offset, and groups keep
their positions. While the older one runs, what it would not know is refused with an error that
names it, and clients of tenants see one cluster id.

Invariants: as `older`; needs Java, too. Clients ask both brokers and retry what is refused, as
Kafka's do; an idempotent producer shows whether a retry was stored twice.
"""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from headrace.dev_cluster.cluster import DevCluster
from headrace.dev_cluster.parts import find_parts
from headrace.dev_cluster.settings import ClusterOptions
from headrace.errors import Fatal, HeadraceError
from headrace.records.batch import read_header
from headrace_verify.kafka_wire import METADATA, KafkaWire
from headrace_verify.real_broker import RealBroker, addresses_in
from headrace_verify.upgrade import older
from headrace_verify.upgrade.findings import Findings
from headrace_verify.upgrade.make import batch_of
from headrace_verify.wire.abuse import pause

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    Found = TypeVar("Found")

WHERE: Final = "brokers of two versions"
FACTS: Final = "src/headrace/metadata/followed_facts.py"
GATED: Final = "TENANTS_CLUSTER_IDS"
"""The first fact that the older brokers do not know."""
OPERATOR, OWNER, READER = "root", "acme", "beta"
TOPIC, GROUP, PARTITIONS, BATCHES = "orders", "billing", 4, 3
IDS: Final = (1, 2)
SESSION_MS: Final = 4_000
RETRY_S: Final = 90
ASSIGNED_AT: Final = 16
"""What comes before is assigned by the broker: base offset, size, leader epoch."""


def check_beside(work: Path) -> Findings:
    """Check this version beside an older commit."""
    found = Findings(WHERE)
    commit = older.before(GATED, FACTS)
    if commit is None:
        found.skipped.append("git or the repository's history is not available")
        return found
    try:
        parts = find_parts()
    except HeadraceError as error:
        found.skipped.append(f"no ZooKeeper and BookKeeper: {error}"[:300])
        return found
    options = ClusterOptions(bookie_session_timeout_ms=SESSION_MS)
    with DevCluster(work / "servers", options, parts) as servers:
        pair = _Pair(work, commit, servers.zookeeper_addresses, found)
        try:
            pair.check()
        finally:
            pair.close()
            servers.kill()
    return found


class _Pair:
    """The two brokers, and what they have acknowledged."""

    def __init__(self, work: Path, commit: str, zookeeper: str, found: Findings) -> None:
        self._work, self._zookeeper, self._found = work, zookeeper, found
        self._tree = older.unpack(commit, work / "tree")
        self._brokers = {number: self._broker(number, is_older=True) for number in IDS}
        self._written: dict[int, list[tuple[int, bytes]]] = {at: [] for at in range(PARTITIONS)}
        """By partition: (base offset, batch)."""
        self._producer = (-1, -1)
        self._sequences = dict.fromkeys(range(PARTITIONS), 0)
        self._committed = dict.fromkeys(range(PARTITIONS), -1)

    def _broker(self, number: int, *, is_older: bool) -> RealBroker:
        options = [
            *("--zookeeper", self._zookeeper, "--broker-id", str(number)),
            *("--session-timeout-ms", str(SESSION_MS)),
            *("--authorizer", "acl", "--super-users", f"User:{OPERATOR}"),
            *("--http-security-protocol", "SASL_PLAINTEXT"),
            *("--listener-security-protocol-map", "PLAINTEXT:SASL_PLAINTEXT,ACME:PLAINTEXT"),
            *("--listener-setting", f"listener.name.acme.headrace.tenant={OWNER}"),
            *("--tenants", f"{OWNER}=User:{OWNER};{READER}=User:{READER}"),
        ]
        launch = older.LAUNCH if is_older else ()
        broker = RealBroker(self._work / f"broker-{number}", options, launch, "ACME")
        if is_older:
            broker.environment = older.environment(self._tree)
        return broker

    def close(self) -> None:
        """End both."""
        for broker in self._brokers.values():
            broker.kill()

    def check(self) -> None:
        """See the module. Raises Fatal, Refused, OSError."""
        for user in (OPERATOR, READER):
            _add_user(user, self._zookeeper)
        for broker in self._brokers.values():
            broker.start()
        self._at_any(KafkaWire.create_topic, TOPIC, PARTITIONS, {})
        self._producer = self._at_any(KafkaWire.new_producer)
        self._go_on("with two older brokers")
        for number in reversed(IDS):
            self._brokers[number].terminate()
            self._brokers[number] = self._broker(number, is_older=False)
            self._brokers[number].start()
            is_mixed = number != IDS[0]
            self._go_on("with one older broker" if is_mixed else "with new brokers")
            self._check_gate(is_mixed=is_mixed)
        self._check_reader()

    # --- clients -----------------------------------------------------------------------------

    def _at_any(self, ask: Callable[..., Found], *arguments: Any) -> Found:
        """What a broker answers that does not refuse. Raises OSError in the end."""
        last: OSError | None = None
        for _ in range(RETRY_S * 2):
            for broker in self._brokers.values():
                try:
                    (address,) = addresses_in(broker.listeners["ACME"])
                    with KafkaWire(address, 30) as wire:
                        return ask(wire, *arguments)
                except OSError as error:
                    last = error
            pause(0.5)
        assert last is not None
        raise last

    def _go_on(self, when: str) -> None:
        """Write, commit, and read everything back."""
        for part, written in self._written.items():
            for _ in range(BATCHES):
                sequence = self._sequences[part]
                batch = batch_of(
                    f"{TOPIC}-{part}", len(written), producer=(*self._producer, sequence)
                )
                self._sequences[part] += read_header(batch).record_count
                offset = self._at_any(KafkaWire.produce, TOPIC, part, batch)
                written.append((offset, batch[ASSIGNED_AT:]))
                again = self._at_any(KafkaWire.produce, TOPIC, part, batch)
                self._found.same(f"a retried batch {when}", offset, again)
            self._committed[part] = written[-1][0]
            self._at_any(KafkaWire.commit, GROUP, TOPIC, part, self._committed[part])
        for part, written in self._written.items():
            self._found.same(f"{TOPIC}-{part} {when}", written, self._read(part))
            held = self._at_any(KafkaWire.committed, GROUP, TOPIC, part)
            self._found.same(f"progress in {TOPIC}-{part} {when}", self._committed[part], held)

    def _read(self, part: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        offset, end = 0, 1
        while offset < end:
            data, end = self._at_any(KafkaWire.fetch, TOPIC, part, offset)
            at = 0
            while at < len(data):
                header = read_header(data, at)
                found.append((header.base_offset, data[at + ASSIGNED_AT : at + header.size]))
                offset = header.last_offset + 1
                at += header.size
        return found

    # --- what all brokers have to know -------------------------------------------------------

    def _check_gate(self, *, is_mixed: bool) -> None:
        """At the broker that was replaced first."""
        new, found = self._brokers[IDS[-1]], self._found
        given = {"topic": f"{OWNER}/{TOPIC}", "reader": READER}
        status, answer = _ask(new, "POST", "/v1/shared-topics", given)
        if is_mixed:
            names_it = str(answer.get("detail", "")).endswith(f": {IDS[0]}")
            found.same("sharing beside an older broker", (403, True), (status, names_it))
        else:
            found.same("sharing", 200, _until(new, "POST", "/v1/shared-topics", given))
        _, cluster = _ask(new, "GET", "/v1/cluster")
        shown = [self._shown_id(broker) for broker in self._brokers.values()]
        is_own = [one == cluster["cluster_id"] for one in shown]
        found.same("whether a tenant sees the cluster's own id", [is_mixed] * 2, is_own)
        found.same("the ids that a tenant sees", 1, len({*shown}))

    def _shown_id(self, broker: RealBroker) -> str:
        (address,) = addresses_in(broker.listeners["ACME"])
        with KafkaWire(address, 30) as wire:
            return str(wire.call(METADATA, 5, topics=()).cluster_id)

    def _check_reader(self) -> None:
        """The other tenant reads the topic at both brokers."""
        accepted = {"topic": f"{READER}/partner", "source": f"{OWNER}/{TOPIC}"}
        brokers = [*self._brokers.values()]
        status = _until(brokers[0], "POST", "/v1/accepted-topics", accepted)
        self._found.same("accepting", 200, status)
        path = "/v1/topics/partner/records?partition=0"
        for broker in brokers:
            status = _until(broker, "GET", path, user=READER)
            self._found.same("reading a shared topic", 200, status)


def _until(
    broker: RealBroker, method: str, path: str, body: Any = None, user: str = OPERATOR
) -> int:
    """200 once the answer is no error; the last status if it stays one. Brokers learn late of each
    other."""
    status = 0
    for _ in range(RETRY_S * 2):
        status, _answer = _ask(broker, method, path, body, user)
        if status < http.client.MULTIPLE_CHOICES:
            return int(http.client.OK)
        pause(0.5)
    return status


def _ask(
    broker: RealBroker, method: str, path: str, body: Any = None, user: str = OPERATOR
) -> tuple[int, Any]:
    """Status and body of what a broker answers over HTTP to a user."""
    login = base64.b64encode(f"{user}:{user}".encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}"}
    connection = http.client.HTTPConnection(*broker.http_address, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def _add_user(name: str, zookeeper: str) -> None:
    """A user whose password is the name. Raises Fatal."""
    command = [sys.executable, "-m", "headrace.cli.main", "user", "add", name]
    done = subprocess.run(  # noqa: S603 - our own command
        [*command, "--password-file", "-", "--zookeeper", zookeeper],
        input=name,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Fatal(f"a user cannot be added: {done.stderr[-300:]}")
