"""What a tenant's client sees and reads against a model: its own topics, and those that other
tenants share with it, whatever they and it do before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.broker import broker
from tests.kit.cluster import append_at
from tests.unit.kafka.access_rig import codes_in
from tests.unit.kafka.test_shared_topics import fetched, metadata_of
from tests.unit.kafka.test_tenants import CAROL, CONFIG, Tenant

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.services.topic_service import NewTopic
from headrace.broker.services.topic_shares import TopicShares
from headrace.errors import TopicExists, TopicUnknown
from headrace.kafka import apis

if TYPE_CHECKING:
    from headrace.broker.node import Node

OWNERS = "", "gamma", "delta"
NAMES = "canary-a", "canary-b"
OWN = "own-a", "own-b"


class Step(NamedTuple):
    """One thing that somebody does."""

    kind: str
    owner: str
    source: str
    name: str


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(
            (
                *("create", "create", "delete", "share", "share", "unshare"),
                *("accept", "accept", "accept", "leave", "create own", "delete own"),
                *("delete tenant", "create tenant"),
            )
        ),
        st.sampled_from(OWNERS),
        st.sampled_from(NAMES),
        st.sampled_from(OWN),
    ),
    min_size=4,
    max_size=16,
)


def key(tenant: str, name: str) -> str:
    return f"«{tenant}»{name}" if tenant else name


class Model:
    """What there is."""

    def __init__(self) -> None:
        self.topics: dict[tuple[str, str], int] = {}
        """(tenant, name) -> which topic of this name it is."""
        self.shared: set[tuple[str, str, int]] = set()
        self.accepted: dict[str, tuple[str, str, int]] = {}
        self.tenants = {"", "gamma", "delta"}

    def is_shared(self, source: tuple[str, str, int]) -> bool:
        owner, name, number = source
        is_there = self.topics.get((owner, name)) == number and owner in self.tenants
        return is_there and (not owner or source in self.shared)

    def seen(self) -> dict[str, str]:
        """By the reader's names, the value that is in the topic."""
        found = {
            name: f"value of {owner} {source} {number}"
            for name, (owner, source, number) in self.accepted.items()
            if self.is_shared((owner, source, number))
        }
        own = {name: number for (tenant, name), number in self.topics.items() if tenant == "beta"}
        return found | {name: f"value of beta {name} {number}" for name, number in own.items()}


class World:
    """A broker, and what the model says of it."""

    def __init__(self, node: Node) -> None:
        assert node.access is not None
        self.node = node
        self.topics = node.services.topics
        self.shares = TopicShares(node.services)
        self.tenants = node.access.tenants
        self.model = Model()
        self.count = 0

    async def create(self, tenant: str, name: str) -> None:
        if (tenant, name) in self.model.topics:
            return
        if tenant not in {*self.model.tenants, "beta"}:
            return
        try:
            await self.topics.create(NewTopic(key(tenant, name), 1))
        except TopicExists:
            assert tenant == "beta"
            assert name in self.model.seen()
            return
        self.count += 1
        self.model.topics[tenant, name] = self.count
        value = f"value of {tenant} {name} {self.count}".encode()
        await append_at(self.node, self.topics.get(key(tenant, name)), 0, value)

    async def delete(self, tenant: str, name: str) -> None:
        if self.model.topics.pop((tenant, name), None) is not None:
            await self.topics.delete(key(tenant, name))

    async def do(self, step: Step) -> None:
        model, (kind, owner, source, name) = self.model, step
        number = model.topics.get((owner, source))
        match kind:
            case "create":
                await self.create(owner, source)
            case "delete":
                await self.delete(owner, source)
            case "create own":
                await self.create("beta", name)
            case "delete own":
                await self.delete("beta", name)
            case "share" if owner and number is not None:
                await self.shares.share(key(owner, source), "beta")
                model.shared = {one for one in model.shared if one[:2] != (owner, source)}
                model.shared.add((owner, source, number))
            case "unshare" if owner:
                await self.shares.unshare(key(owner, source), "beta")
                model.shared = {one for one in model.shared if one[:2] != (owner, source)}
            case "accept":
                await self.accept(owner, source, name)
            case "leave":
                await self.shares.leave(key("beta", name))
                model.accepted.pop(name, None)
            case "delete tenant" if owner in model.tenants - {""}:
                await self.shares.sharing.forget(owner)
                await self.tenants.delete(owner, is_forced=True)
                model.tenants.discard(owner)
                model.shared = {one for one in model.shared if one[0] != owner}
            case "create tenant" if owner:
                await self.tenants.create(owner, [])
                model.tenants.add(owner)

    async def accept(self, owner: str, source: str, name: str) -> None:
        model, number = self.model, self.model.topics.get((owner, source), 0)
        wanted = owner, source, number
        try:
            await self.shares.accept(key("beta", name), key(owner, source), is_operator=not owner)
        except TopicUnknown:
            assert not model.is_shared(wanted)
        except TopicExists:
            others = {one: other for one, other in model.accepted.items() if one != name}
            assert name in model.seen() or wanted in others.values()
        else:
            assert model.is_shared(wanted)
            model.accepted[name] = wanted

    async def check(self, client: Tenant) -> None:
        answer = await client.ask(apis.METADATA, 12, metadata_of())
        seen = self.model.seen()
        assert {one.name for one in answer.topics if not one.error_code} == {*seen}
        for name in OWN:
            client.transport.out.clear()
            client.asked.clear()
            read = await client.ask(apis.FETCH, 12, fetched(name))
            assert codes_in(read) == ({0} if name in seen else {0, 3})
            assert client.received.count(b"value of") == (name in seen)
            if name in seen:
                assert seen[name].encode() in client.received
            # The values name what the tests' topics are called, and nothing else does.
            left = client.received.replace(seen.get(name, "").encode(), b"")
            assert b"canary" not in left


async def play(asked: list[Step]) -> None:
    async with broker(BrokerConfig(**CONFIG)) as rig:
        world, client = World(rig.node), Tenant(rig, CAROL)
        for tenant in ("gamma", "delta"):
            await world.tenants.create(tenant, [])
        for one in asked:
            await world.do(one)
            await world.check(client)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_a_client_sees_what_the_model_says(asked):
    asyncio.run(play(asked))


SHARED = [
    Step("create", "gamma", "canary-a", ""),
    Step("share", "gamma", "canary-a", ""),
    Step("accept", "gamma", "canary-a", "own-a"),
]


def test_what_ends_a_share_ends_it_in_the_model_as_well():
    """The random histories seldom get that far."""
    for ends in (
        [Step("unshare", "gamma", "canary-a", "")],
        [Step("leave", "", "", "own-a")],
        [Step("delete", "gamma", "canary-a", ""), Step("create", "gamma", "canary-a", "")],
        [Step("delete tenant", "gamma", "", ""), Step("create tenant", "gamma", "", "")],
    ):
        asyncio.run(play([*SHARED, *ends, *SHARED]))
