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
    sibling,
    tenant_of,
    written,
)
from headrace.records.written_topics import with_written_topics

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


@given(TENANTS, NAMES)
def test_an_operator_writes_a_tenant_and_its_topic_with_a_slash(tenant: str, name: str) -> None:
    key = prefix_of(tenant) + name
    assert key_of(f"{tenant}/{name}") == key == key_of(key)
    assert written(key) == f"{tenant}/{name}"


@pytest.mark.parametrize("name", ["orders", "", "/", "/a", "A/b", "-a/b", "a.b/c"])
def test_what_names_no_tenant_stays_as_it_is(name: str) -> None:
    assert key_of(name) == written(name) == name


@given(NAMES, TENANTS, NAMES)
def test_names_of_another_tenant_have_no_key_in_the_default_tenant(name, other, rest):
    assert sibling(f"«-»{name}", prefix_of(other) + rest) == ""
    assert tenant_of(sibling(name, rest)) in {tenant_of(name), DEFAULT}


def test_json_for_operators_has_topics_as_they_write_them_and_all_else_as_it_is():
    content = {"key": "«a»t", "value": "«a»t", "headers": [["topic", "«a»t"]]}
    setting = {"name": "errors.deadletterqueue.topic.name", "value": "«a»t", "default": ""}
    shown = with_written_topics(
        {
            "name": "«a»t",
            "partitions": [{"topic": "«a»t", "group": "«a»g", **content}],
            "topics": ["«a»t", {"name": "«a»t"}],
            "origin": {"topic": "«a»t", "group": "«a»g"},
            "to": "«a»t-0:57",
            "acls": [{"resource": one, "name": "«a»t"} for one in ("topic", "group")],
            "config": {"errors.deadletterqueue.topic.name": "«a»t"},
            "settings": [setting],
            "keys": ({"name": "«a»t"},),
        }
    )
    assert shown == {
        "name": "a/t",
        "partitions": [{"topic": "a/t", "group": "«a»g", **content}],
        "topics": ["a/t", {"name": "a/t"}],
        "origin": {"topic": "a/t", "group": "«a»g"},
        "to": "a/t-0:57",
        "acls": [{"resource": "topic", "name": "a/t"}, {"resource": "group", "name": "«a»t"}],
        "config": {"errors.deadletterqueue.topic.name": "a/t"},
        "settings": [setting | {"value": "a/t"}],
        "keys": [{"name": "«a»t"}],
    }
