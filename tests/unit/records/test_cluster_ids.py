"""Cluster ids of tenants: one for each, which only the cluster's own id relates to another."""

from __future__ import annotations

from base64 import urlsafe_b64decode

from hypothesis import given
from hypothesis import strategies as st

from headrace.records.cluster_ids import (
    are_of_one_cluster,
    is_id_of,
    split_prefix,
    tenants_cluster_id,
)
from headrace.records.identifiers import kafka_uuid
from headrace.records.tenant_names import DEFAULT, TENANT

OWN = st.uuids().map(kafka_uuid)
TENANTS = st.from_regex(TENANT, fullmatch=True)


@given(OWN, TENANTS)
def test_a_tenant_has_an_id_of_its_own_that_looks_like_any(own, tenant):
    shown = tenants_cluster_id(own, tenant)
    assert shown != own
    assert len(urlsafe_b64decode(f"{shown}==")) == 16
    assert (len(shown), tenants_cluster_id(own, tenant)) == (22, shown)
    assert tenants_cluster_id(own, DEFAULT) == own
    assert is_id_of(own, shown)
    assert are_of_one_cluster(own, shown)
    assert are_of_one_cluster(shown, own)


@given(OWN, OWN, TENANTS, TENANTS)
def test_ids_of_two_tenants_or_two_clusters_are_of_two_clusters(own, other, one, two):
    shown = [tenants_cluster_id(cluster, name) for cluster in {own, other} for name in {one, two}]
    assert len({*shown}) == len({own, other}) * len({one, two})
    for first in shown:
        assert [second for second in shown if are_of_one_cluster(first, second)] == [first]
    if own != other:
        assert not are_of_one_cluster(tenants_cluster_id(own, one), other)


@given(OWN, st.text())
def test_no_text_is_taken_for_an_id(own, text):
    assert is_id_of(own, text) == (text == own)
    assert not are_of_one_cluster(own, text)


@given(OWN, TENANTS, st.integers(0, 21), st.sampled_from("AZaz09-_.= !«"))
def test_an_id_with_another_character_is_none(own, tenant, at, character):
    shown = tenants_cluster_id(own, tenant)
    changed = shown[:at] + character + shown[at + 1 :]
    assert is_id_of(own, changed) == (changed == shown)
    assert not is_id_of(own, f"{shown}{character}")


def test_an_id_stays_as_it_is():
    """Tools and jobs keep it."""
    own = "r5yYkI4bTp2mB7s0Qm9XzA"
    assert tenants_cluster_id(own, "acme") == "ctAk2hRYbA9VsmVCa-ALhQ"


def test_names_of_objects_begin_with_an_id_and_a_process():
    assert split_prefix("r5yYkI4b") == ("r5yYkI4b", "")
    assert split_prefix("r5yYkI4b-worker-12") == ("r5yYkI4b", "-worker-12")
