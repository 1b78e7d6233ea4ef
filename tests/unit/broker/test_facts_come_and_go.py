"""What is left of removed users, rules and quotas: nothing after a while, bounded until then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.kit.cluster import Cluster
from tests.waiting import until

from headrace.broker.ownership.shared_ownership import SharedOwnership
from headrace.broker.security.acls import Acl, AclFilter, Entry, Pattern, PatternType, Permission
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.services.access_control import AccessControl
from headrace.broker.services.client_quotas import ClientQuotas
from headrace.coordination.quotas.entities import PRODUCER
from headrace.errors import PolicyViolation
from headrace.metadata import followed_facts
from headrace.metadata.acl_facts import ACLS
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.quota_facts import QUOTAS
from headrace.metadata.store import ANY
from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    import pytest


def _rule(name: str) -> Acl:
    pattern = Pattern(ResourceType.TOPIC, name, PatternType.LITERAL)
    return Acl(pattern, Entry("User:a", "*", Operation.READ, Permission.ALLOW))


async def _create(access: AccessControl, name: str) -> object:
    (error,) = await access.create([_rule(name)])
    return error


async def test_rules_and_quotas_that_come_and_go_leave_nothing():
    store = MemoryMetadataStore()
    access, quotas = AccessControl(store), ClientQuotas(store, SystemClock())
    for number in range(5):
        assert await _create(access, f"t{number}") is None
        await quotas.change([("user", f"u{number}")], {PRODUCER: 1.0})
        await quotas.change([("user", f"u{number}")], {PRODUCER: None})
    assert len(await access.delete(AclFilter())) == 5
    assert await _create(access, "t0") is None
    for facts in (access.facts, quotas.facts):
        await facts.sweep(lambda: True)
        assert len(await store.list(facts.prefix)) == 5, "kept for a while"
        await facts.sweep(lambda: True)
    assert [one.pattern.name for one in access.find(AclFilter())] == ["t0"]
    assert len(await store.list(ACLS)) == 1
    assert not await store.list(QUOTAS)
    assert await _create(access, "t1") is None, "its version begins anew"
    assert len(await access.delete(AclFilter())) == 2


async def test_what_is_left_is_counted_by_tenant_as_it_comes_and_goes():
    """Not where a rule is made: of 100,000 names that would take the loop for 0.2 s each time."""
    store = MemoryMetadataStore()
    access, quotas = AccessControl(store), ClientQuotas(store, SystemClock())
    names = ["«acme»a", "«acme»b", "«beta»c", "d"]
    for name in names:
        assert await _create(access, name) is None
        await quotas.change([("user", name)], {PRODUCER: 1.0})
        assert not access.facts.empty_counts
        await quotas.change([("user", name)], {PRODUCER: None})
    await access.delete(AclFilter())
    for facts in (access.facts, quotas.facts):
        assert facts.empty_counts == {"acme": 2, "beta": 1, "": 1}
    assert await _create(access, "«acme»a") is None
    assert access.facts.empty_counts == {"acme": 1, "beta": 1, "": 1}
    for _ in range(2):
        await access.facts.sweep(lambda: True)
    assert not access.facts.empty_counts


async def test_a_fact_that_has_content_again_or_of_which_another_broker_decides_is_kept():
    store = MemoryMetadataStore()
    access = AccessControl(store)
    await _create(access, "t")
    await access.delete(AclFilter())
    await access.facts.sweep(lambda: True)
    await access.facts.sweep(lambda: False)
    await access.facts.sweep(lambda: True)
    assert len(await store.list(ACLS)) == 1, "the time begins anew once it may be deleted"
    await _create(access, "t")
    await access.facts.sweep(lambda: True)
    assert len(access.find(AclFilter())) == len(await store.list(ACLS)) == 1


async def test_names_of_which_the_rules_were_removed_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(followed_facts, "EMPTY_MAX", 3)
    access = AccessControl(MemoryMetadataStore())
    for number in range(3):
        await _create(access, f"t{number}")
        await access.delete(AclFilter())
    refused = await _create(access, "t3")
    assert isinstance(refused, PolicyViolation)
    assert "try again then, or use one of them again" in str(refused)
    assert await _create(access, "t1") is None, "a name that is known costs nothing more"
    assert await _create(access, "t3") is None


async def test_one_broker_deletes_facts_and_none_while_there_is_an_older_one():
    cluster = Cluster()
    try:
        for broker_id in (1, 2):
            await cluster.start(broker_id)
        first, second = cluster.nodes[1], cluster.nodes[2]
        await until(first.cluster.may_delete_facts)
        assert not second.cluster.may_delete_facts()
        assert isinstance(second.ownership, SharedOwnership)
        member = second.ownership._membership
        assert member is not None
        older = replace(member._fact, facts_version=None)
        await second.metadata.put(member._key, older.encode(), ANY, ephemeral=True)
        await until(lambda: not first.cluster.may_delete_facts())
        await second.metadata.put(member._key, member._fact.encode(), ANY, ephemeral=True)
        await until(first.cluster.may_delete_facts)
    finally:
        for broker_id in list(cluster.nodes):
            await cluster.stop(broker_id)
