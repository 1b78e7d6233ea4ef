"""Plans of changes, done on a small model of ZooKeeper, have the contract's outcome."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import VersionConflict
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata.store import ABSENT, ANY, MultiOperation
from headrace.metadata.zookeeper_plan import Found, plan_changes
from headrace.zookeeper.client import Create, Delete, Put

SESSION = 7
KEYS = ("/a", "/b", "/c")


class Refused(Exception):
    pass


class Nodes:
    """ZooKeeper's rules for a flat set of nodes: path -> (value, version, owner)."""

    def __init__(self):
        self.nodes = {}

    def multi(self, parts):
        nodes = dict(self.nodes)
        for part in parts:
            there = nodes.get(part.path)
            if isinstance(part, Create):
                if there is not None:
                    raise Refused
                nodes[part.path] = (part.value, 0, SESSION if part.is_ephemeral else 0)
            elif there is None or part.version != there[1]:
                raise Refused
            elif isinstance(part, Put):
                nodes[part.path] = (part.value, there[1] + 1, there[2])
            else:
                assert isinstance(part, Delete)
                del nodes[part.path]
        self.nodes = nodes

    def found(self):
        return {
            key: Found(*self.nodes[key][1:]) if key in self.nodes else Found(ABSENT) for key in KEYS
        }


operations = st.builds(
    MultiOperation,
    st.sampled_from(KEYS),
    st.sampled_from((b"1", b"2", None)),
    st.sampled_from((ANY, ABSENT, 0, 1, 2)),
)
calls = st.tuples(st.lists(operations, max_size=5), st.booleans(), st.booleans())


def do_planned(nodes, batch, is_ephemeral, looks):
    """As the store does it: without a look first, if nothing asks for one."""
    session = SESSION if is_ephemeral else None
    blind = not looks and not is_ephemeral and all(op.expected_version != ANY for op in batch)
    found = None if blind else nodes.found()
    try:
        plan = plan_changes(batch, found, session, str)
        nodes.multi(plan.parts)
    except (VersionConflict, Refused):
        if found is not None:
            raise
        plan = plan_changes(batch, nodes.found(), session, str)
        nodes.multi(plan.parts)
    return plan.versions


async def do_by_contract(store, batch, is_ephemeral):
    if not is_ephemeral:
        return list(await store.multi(batch))
    (operation,) = batch
    return [await store.put(*operation, ephemeral=True)]


@given(st.lists(calls, max_size=12))
def test_a_plan_has_the_outcome_of_the_contract(history):
    async def run():
        shared, nodes = MemoryMetadata(), Nodes()
        store = MemoryMetadataStore(shared)
        for batch, is_ephemeral, looks in history:
            one = [op for op in batch if op.value is not None][:1]
            if is_ephemeral and not one:
                continue
            wanted = one if is_ephemeral else batch
            try:
                expected = await do_by_contract(store, wanted, is_ephemeral)
            except VersionConflict as error:
                expected = error.fields
            try:
                actual = do_planned(nodes, wanted, is_ephemeral, looks)
            except VersionConflict as error:
                actual = error.fields
            assert actual == expected
            there = {key: entry[1:] for key, entry in shared.entries.items()}
            assert {key: node[:2] for key, node in nodes.nodes.items()} == there
            if is_ephemeral and isinstance(actual, list):
                assert nodes.nodes[wanted[0].key][2] == SESSION
        await store.close()

    asyncio.run(run())
