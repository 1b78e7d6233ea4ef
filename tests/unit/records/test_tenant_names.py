"""The keys of names in tenants: one for each tenant and name, and none that is a topic's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.identifiers import is_topic_name
from headrace.records.tenant_names import (
    DEFAULT,
    key_of,
    name_in,
    prefix_of,
    shown_name,
    sibling,
    tenant_of,
    written,
    written_topic,
)
from headrace.records.written_names import with_written_names

NAMES = st.text(st.sampled_from("ab1_./«»:"), max_size=8)
TENANTS = st.text(st.sampled_from("ab1"), min_size=1, max_size=4)


@pytest.mark.parametrize(
    "name", ["orders", "", "a/b", "«", "«»", "«X»a", "«-a»a", "«a.b»a", "x«a»a"]
)
def test_other_names_are_the_default_tenants_and_stored_as_they_are(name: str) -> None:
    assert (tenant_of(name), name_in(name)) == (DEFAULT, name)
    assert sibling(name, "other") == "other"
    assert prefix_of(DEFAULT) == ""


@given(TENANTS, NAMES, TENANTS, NAMES)
def test_two_tenants_or_names_have_two_keys(one: str, name: str, two: str, other: str) -> None:
    key = prefix_of(one) + name
    assert (tenant_of(key), name_in(key)) == (one, name)
    assert not is_topic_name(key)
    assert (key == prefix_of(two) + other) == ((one, name) == (two, other))
    assert tenant_of(sibling(key, other)) == one


@given(TENANTS, NAMES, TENANTS)
def test_clients_write_a_name_without_their_tenant_and_none_of_another(tenant, name, other):
    for user in ("", "User:"):
        key = user + prefix_of(tenant) + name
        assert shown_name(key, tenant) == user + name
        assert other == tenant or shown_name(key, other) is None
        if tenant_of(name.removeprefix("User:")) == DEFAULT:
            assert shown_name(user + name, other) == user + name


@given(TENANTS, NAMES)
def test_an_operator_writes_a_tenant_and_its_name_with_a_slash(tenant: str, name: str) -> None:
    key = prefix_of(tenant) + name
    assert key_of(f"{tenant}/{name}") == key == key_of(key)
    assert written(key) == f"{tenant}/{name}" == written_topic(written_topic(key))
    assert key_of(f"User:{tenant}/{name}") == f"User:{key}"


PARTS = ["a", "b", "1", "-", "/", "«", "»", "User:", "A"]
WRITTEN = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


@given(WRITTEN, WRITTEN)
def test_each_key_is_written_in_one_way_and_each_text_but_a_key_is_how_one_is(one, other):
    assert key_of(written(one)) == one
    assert (written(one) == written(other)) == (one == other)
    is_key = tenant_of(one.removeprefix("User:")) != DEFAULT
    assert is_key or written(key_of(one)) == one


@pytest.mark.parametrize("name", ["orders", "", "/", "/a", "A/b", "-a/b", "a.b/c", "user:a/b"])
def test_what_names_no_tenant_stays_as_it_is(name: str) -> None:
    assert key_of(name) == written(name) == name


@pytest.mark.parametrize("name", ["acme/billing", "/acme/billing", "//a/", "User:acme/alice"])
def test_names_that_look_like_those_of_tenants_have_one_more_slash(name: str) -> None:
    kind, user = ("User:", name[5:]) if name.startswith("User:") else ("", name)
    assert written(name) == f"{kind}/{user}"


@given(NAMES, TENANTS, NAMES)
def test_names_of_another_tenant_have_no_key_in_the_default_tenant(name, other, rest):
    assert sibling(f"«-»{name}", prefix_of(other) + rest) == ""
    assert tenant_of(sibling(name, rest)) in {tenant_of(name), DEFAULT}


def test_json_for_operators_has_names_as_they_write_them_and_all_else_as_it_is():
    content = {"key": "«a»t", "value": "«a»t", "headers": [["topic", "«a»t"]]}
    setting = {"name": "errors.deadletterqueue.topic.name", "value": "«a»t", "default": ""}
    shown = with_written_names(
        {
            "name": "«a»t",
            "partitions": [{"topic": "«a»t", "group": "«a»g", **content}],
            "topics": ["«a»t", {"name": "«a»t"}],
            "origin": {"topic": "«a»t", "group": "«a»g"},
            "to": "«a»t-0:57",
            "acls": [{"resource": one, "name": "«a»t"} for one in ("topic", "group")],
            "config": {"errors.deadletterqueue.topic.name": "«a»t"},
            "settings": [setting],
            "keys": ({"name": "«a»t", "principal": "User:«a»u"},),
            "listed": {
                "name": "b/k",
                "group": "b/g",
                "entity": {"user": "«a»u", "client_id": "b/c"},
            },
            "detail": "the group «a»g is unknown",
        }
    )
    assert shown == {
        "name": "a/t",
        "partitions": [{"topic": "a/t", "group": "a/g", **content}],
        "topics": ["a/t", {"name": "a/t"}],
        "origin": {"topic": "a/t", "group": "a/g"},
        "to": "a/t-0:57",
        "acls": [{"resource": "topic", "name": "a/t"}, {"resource": "group", "name": "a/t"}],
        "config": {"errors.deadletterqueue.topic.name": "a/t"},
        "settings": [setting | {"value": "a/t"}],
        "keys": [{"name": "«a»t", "principal": "User:a/u"}],
        "listed": {"name": "b/k", "group": "/b/g", "entity": {"user": "a/u", "client_id": "b/c"}},
        "detail": "the group a/g is unknown",
    }
