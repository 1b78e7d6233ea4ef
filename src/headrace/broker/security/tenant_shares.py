"""How tenants share a limit of the cluster.

Invariants: pure. What people of tenants make uses up neither another tenant's nor the operators':
one tenant has at most a tenth of a limit, and all of them together leave a tenth to the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.records.tenant_names import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping


class TenantShares(NamedTuple):
    """The limit of one kind of thing."""

    what: str
    """In the plural, as errors call it."""
    count_max: int

    def excess(self, tenant: str, counts: Mapping[str, int]) -> str:
        """Why there can be no further one of a tenant, in words; "": there can. `counts`: how many
        there are, by tenant."""
        count = sum(counts.values())
        if count >= self.count_max:
            return f"the cluster has {count} {self.what}, its limit"
        part = self.count_max // 10
        if tenant == DEFAULT:
            return ""
        own, of_tenants = counts.get(tenant, 0), count - counts.get(DEFAULT, 0)
        if own >= part:
            return f"the tenant has {own} {self.what}, the limit of one tenant"
        if of_tenants >= self.count_max - part:
            return f"tenants have {of_tenants} {self.what}, the limit of all tenants together"
        return ""
