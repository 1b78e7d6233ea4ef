"""What clients of the protocols with member epochs share: a bad network, and one run of a group.

Of consumer groups (KIP-848) and streams groups (KIP-1071); `migration_world` adds classic clients.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.unit.coordination.group_rig import GroupHarness

from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.kit.topic_view import TopicShape
from headrace.errors import (
    GroupFull,
    InstanceIdFenced,
    InstanceIdUnreleased,
    MemberEpochFenced,
    MemberUnknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 20_000
INTERVAL_MS = 2_000
SIZE_MAX = 7
ROUNDS_MAX = 150
CLIENTS_MAX = 5
REFUSALS = (
    MemberEpochFenced, MemberUnknown, InstanceIdUnreleased, InstanceIdFenced, GroupFull
)  # fmt: skip


class ChangingTopics:
    """Topics as a TopicView."""

    def __init__(self) -> None:
        self.version = 0
        self.topics: dict[str, TopicShape] = {}
        self._last_id = 0

    def create(self, name: str, count: int) -> None:
        self._last_id += 1
        racks = tuple(("r1", "r2", None)[number % 3] for number in range(count))
        self.topics[name] = TopicShape(UUID(int=self._last_id), count, racks)
        self.version += 1

    def grow(self, name: str, count: int) -> None:
        self.topics[name] = self.topics[name]._replace(partition_count=count)
        self.version += 1

    def delete(self, name: str) -> None:
        del self.topics[name]
        self.version += 1

    def shape(self, name: str) -> TopicShape | None:
        return self.topics.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        return next((n for n, shape in self.topics.items() if shape.id == topic_id), None)

    def matching(self, pattern: str) -> list[str]:
        return [name for name in self.topics if re.fullmatch(pattern, name)]


@dataclass(kw_only=True)
class Member:
    """A client: what it has and sends, whatever it is that members of its group are assigned."""

    member_id: str
    instance_id: str | None
    epoch: int = 0
    owned: set[Any] = field(default_factory=set)
    finished: set[Any] = field(default_factory=set)
    target: set[Any] | None = None
    asked: set[Any] | None = None
    busy_with: set[Any] | None = None
    said: set[Any] | None = None
    """What it has sent last of what it owns."""
    request: Any = None
    reply: Any = None
    is_running: bool = True

    def assign(self, asked: set[Any]) -> None:
        if asked != self.asked:  # the same assignment again is no news to a client
            self.asked = self.target = asked

    def fail(self, error: Exception) -> None:
        """It was refused."""
        assert isinstance(error, REFUSALS), f"a client met {error!r}"
        self.begin_anew()
        if isinstance(error, InstanceIdFenced):
            self.is_running = False

    def begin_anew(self) -> None:
        self.epoch, self.owned, self.finished, self.target = 0, set(), set(), None
        self.asked = self.busy_with = self.said = None

    def forget(self) -> None:
        """A request or its answer was lost: it sends again what it owns."""
        self.said = None

    def reconcile(self) -> None:
        """One step: begin with the last assignment (give up), or end it (take, and report)."""
        if self.busy_with is not None:
            self.owned = self.finished = self.busy_with
            self.busy_with = None
        elif self.target is not None:
            self.owned = self.owned & self.target
            self.busy_with, self.target = self.target, None

    def has_work(self) -> bool:
        return self.target is not None or self.busy_with is not None


class MemberHistory:
    """One run: a seed decides all of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        config = GroupConfig(
            consumer_group_size_max=SIZE_MAX,
            streams_group_size_max=SIZE_MAX,
            consumer_session_timeout_ms=SESSION_MS,
            streams_session_timeout_ms=SESSION_MS,
            assignment_interval_ms=self.random.choice([0, 200, 1_000]),
        )
        self.rig = GroupHarness(config, check_purity=seed % 100 == 0)
        self.world = ChangingTopics()
        self.clients: list[Any] = []
        self.count = 0
        self.prepare()
        for _ in range(self.random.randint(1, 4)):
            self.start_client()
        if self.random.random() < 0.7:
            self.settle()

    # --- what a kind of group adds -----------------------------------------------------------

    def prepare(self) -> None:
        """Choose settings, and make topics."""
        raise NotImplementedError

    def new_client(self, instance_id: str | None) -> Any:
        raise NotImplementedError

    def build(self, client: Any) -> Any:
        """Its next request."""
        raise NotImplementedError

    def change_topics(self) -> None:
        raise NotImplementedError

    def change(self) -> None:
        """A subscription or a setting."""
        raise NotImplementedError

    def check(self) -> None:
        """What must hold at any time."""
        raise NotImplementedError

    def is_quiet(self) -> bool:
        raise NotImplementedError

    def check_settled(self) -> None:
        """What must hold once nothing happens any more."""
        raise NotImplementedError

    # --- steps -------------------------------------------------------------------------------

    def step(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.start_client, 3),
            (self.send, 16),
            (self.arrive, 16),
            (self.deliver, 16),
            (self.lose, 2),
            (self.reconcile, 16),
            (self.leave, 1),
            (self.vanish, 1),
            (self.wait, 4),
            (self.crash, 1),
            (self.change_topics, 1),
            (self.change, 1),
        ]
        chosen = self.random.choices([s for s, _ in steps], [w for _, w in steps])[0]
        chosen()
        self.check()

    def start_client(self) -> None:
        if len(self.running()) >= CLIENTS_MAX:
            return
        self.count += 1
        instance_id = self.random.choice([None, None, "i1", "i2"])
        if any(c.instance_id == instance_id for c in self.running() if instance_id):
            instance_id = None
        self.clients.append(self.new_client(instance_id))

    def running(self) -> list[Any]:
        return [client for client in self.clients if client.is_running]

    def any_of(self, clients: list[Any]) -> Any:
        return self.random.choice(clients) if clients else None

    def is_free(self, client: Any) -> bool:
        return client.request is None and client.reply is None

    def send(self) -> None:
        client = self.any_of([c for c in self.running() if self.is_free(c)])
        if client is not None:
            client.request = self.build(client)

    def arrive(self) -> None:
        client = self.any_of([c for c in self.clients if c.request is not None])
        if client is not None:
            self.submit(client)

    def submit(self, client: Any) -> None:
        request, client.request = client.request, None
        client.reply = self.rig.send(request)

    def deliver(self) -> None:
        client = self.any_of([c for c in self.running() if c.reply is not None])
        if client is not None:
            self.take(client)

    def take(self, client: Any) -> None:
        reply, client.reply = client.reply, None
        client.take(reply)

    def lose(self) -> None:
        client = self.any_of([c for c in self.running() if c.request or c.reply])
        if client is not None:
            client.request = client.reply = None
            client.forget()

    def reconcile(self) -> None:
        client = self.any_of([c for c in self.running() if c.has_work()])
        if client is not None:
            client.reconcile()

    def leave(self) -> None:
        client = self.any_of([c for c in self.running() if self.is_free(c)])
        if client is not None:
            self.leave_as(client)

    def leave_as(self, client: Any) -> None:
        client.is_running, client.owned = False, set()
        client.epoch = -1 if client.instance_id is None or self.random.random() < 0.3 else -2
        client.forget()
        command = self.build(client)
        command.owned = None
        if self.random.random() < 0.9:
            self.rig.send(command)

    def vanish(self) -> None:
        """A client dies; what it has sent may still arrive."""
        client = self.any_of(self.running())
        if client is not None:
            client.is_running, client.owned = False, set()

    def wait(self) -> None:
        self.rig.advance(self.random.choice([100, 500, 3_000, 6_000]))

    def crash(self) -> None:
        self.rig.crash()
        for client in self.running():
            client.request = client.reply = None
            client.forget()

    def settle(self) -> None:
        """Without faults, everything comes to the members, and nothing else happens."""
        for client in self.clients:
            if not client.is_running:
                client.request = client.reply = None
        for _ in range(ROUNDS_MAX):
            for client in self.running():
                if self.is_free(client):
                    client.request = self.build(client)
                if client.request is not None:
                    self.submit(client)
                if client.reply is not None:
                    self.take(client)
                self.check()
                for _ in range(2 if isinstance(client, Member) else 0):
                    client.reconcile()
                    self.check()
            if self.is_quiet():
                break
            self.rig.advance(300)
            self.check()
        self.check_settled()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.settle()
