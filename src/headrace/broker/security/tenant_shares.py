"""How tenants share a limit of the cluster, or of one broker.

Invariants: pure. What people of tenants make uses up neither another tenant's nor the operators':
one tenant has at most a part of a limit, and all of them together leave such a part to the others.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import Retriable, StorageUnavailable
from headrace.records.tenant_names import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLACES_PARTS: Final = 4
"""Of a broker's places, a tenth would be too few for the people of one tenant."""


class TenantShares(NamedTuple):
    """The limit of one kind of thing."""

    what: str
    """In the plural, as errors call it."""
    count_max: int
    whose: str = "the cluster"
    parts: int = 10

    def excess(self, tenant: str, counts: Mapping[str, int]) -> str:
        """Why there can be no further one of a tenant, in words; "": there can. `counts`: how many
        there are, by tenant."""
        count = sum(counts.values())
        if count >= self.count_max:
            return f"{self.whose} has {count} {self.what}, its limit"
        part = self.count_max // self.parts
        if tenant == DEFAULT:
            return ""
        own, of_tenants = counts.get(tenant, 0), count - counts.get(DEFAULT, 0)
        if own >= part:
            return f"the tenant has {own} {self.what}, the limit of one tenant"
        if of_tenants >= self.count_max - part:
            return f"tenants have {of_tenants} {self.what}, the limit of all tenants together"
        return ""


class SharedPlaces:
    """The places that a broker has for one kind of work, each held while the work lasts."""

    def __init__(
        self, what: str, count_max: int, error: type[Retriable] = StorageUnavailable
    ) -> None:
        """`error`: what is raised if no place is left."""
        self._shares = TenantShares(what, count_max, "this broker", PLACES_PARTS)
        self._error = error
        self._held: Counter[str] = Counter()

    def take(self, tenant: str) -> Callable[[], None]:
        """Take a place; returns what gives it back, to be called once."""
        if excess := self._shares.excess(tenant, self._held):
            raise self._error(f"{excess}: try again when one has ended")
        self._held[tenant] += 1
        return partial(self._give_back, tenant)

    def _give_back(self, tenant: str) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
