"""The cluster ids that clients of tenants see: one for each tenant, made from the cluster's own.

Invariants: pure. Without the cluster's own id, a tenant's id says neither which tenant it is nor
whether another tenant's id is of the same cluster. With it, the id of any tenant is recognised
without a list of tenants, so that whoever recognises one does not tell which tenants there are.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from hashlib import sha256
from typing import Final
from uuid import UUID

from headrace.records.identifiers import kafka_uuid
from headrace.records.tenant_names import DEFAULT

_HALF: Final = 8
"""Bytes: the first half is of the tenant, the second one of the cluster and the first half."""


WORKER: Final = "-worker-"
"""Precedes the number of one of several processes in what names of its objects begin with. Do not
change: stored."""


def _half(cluster_id: str, what: bytes) -> bytes:
    return sha256(b"headrace cluster id\0%b\0%b" % (cluster_id.encode(), what)).digest()[:_HALF]


def _completed(cluster_id: str, first: bytes) -> str:
    """Raises ValueError if it is no first half."""
    return kafka_uuid(UUID(bytes=first + _half(cluster_id, first)))


def tenants_cluster_id(cluster_id: str, tenant: str) -> str:
    """The id that clients of a tenant see. Do not change: jobs and tools keep it."""
    if tenant == DEFAULT:
        return cluster_id
    return _completed(cluster_id, _half(cluster_id, tenant.encode()))


def is_id_of(cluster_id: str, shown: str) -> bool:
    """Whether clients of a cluster see this id: those of some tenant, or all others."""
    if shown == cluster_id:
        return True
    try:
        return shown == _completed(cluster_id, urlsafe_b64decode(f"{shown}==")[:_HALF])
    except ValueError:
        return False


def split_prefix(prefix: str) -> tuple[str, str]:
    """What names of objects begin with, in two: the cluster's id, and which process's they are."""
    cluster_id, worker, number = prefix.partition(WORKER)
    return cluster_id, worker + number


def are_of_one_cluster(one: str, other: str) -> bool:
    """Whether two clients that see these ids are of one cluster; clients of different tenants are
    not, as far as either can know."""
    return is_id_of(one, other) or is_id_of(other, one)
