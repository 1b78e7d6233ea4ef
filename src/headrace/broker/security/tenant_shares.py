"""How tenants, and users within a tenant, share a limit of the cluster, or of one broker.

Invariants: pure. What people of tenants make uses up neither another tenant's nor the operators':
one tenant has at most a part of a limit, and all of them together leave such a part to the others.
A user has at most USER_FACTOR times what is left of that, so whoever comes next finds room, and
there is no need to know how many users there are: one alone gets two thirds, two get two fifths
each. What brokers make of themselves, and what was there before they looked, is nobody's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from headrace.broker.security.principal import Principal
from headrace.errors import Retriable, StorageUnavailable
from headrace.metadata.followed_facts import EMPTY_KEPT_S, EMPTY_MAX
from headrace.records.tenant_names import DEFAULT
from headrace.runtime.loop_turns import USER, paced_here

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.metadata.followed_facts import FollowedFacts

Key = TypeVar("Key", bound=Hashable)
PLACES_PARTS: Final = 4
"""Of a broker's places, a tenth would be too few for the people of one tenant."""
USER_FACTOR: Final = 2
NOBODY: Final = ""
"""The user of what belongs to none."""


def user_in(part: object) -> str:
    """For whom a request counts, by what its path has as the user: a principal or an address. A
    broker asks for clients of any user."""
    is_broker = isinstance(part, Principal) and part.is_broker
    return NOBODY if part is None or is_broker else str(part)


def user_here() -> str:
    """For whom the request that runs counts."""
    paced = paced_here()
    return user_in(None if paced is None else paced.path[USER])


class Holder(NamedTuple):
    """For whom something counts."""

    tenant: str = DEFAULT
    user: str = NOBODY


NO_HOLDER: Final = Holder()


class Held:
    """How much there is of one kind, by tenant and by user."""

    __slots__ = ("by_tenant", "by_user")

    def __init__(self) -> None:
        self.by_tenant: Counter[str] = Counter()
        self.by_user: Counter[str] = Counter()

    def add(self, holder: Holder, amount: int = 1) -> None:
        """There is so much more; negative: less."""
        add_count(self.by_tenant, holder.tenant, amount)
        if holder.user:
            add_count(self.by_user, holder.user, amount)

    def add_all(self, other: Held) -> None:
        """Add what another one holds."""
        self.by_tenant.update(other.by_tenant)
        self.by_user.update(other.by_user)


def add_count(counts: Counter[Any], key: object, amount: int) -> None:
    """Count so many more; what there is none of is not in `counts`."""
    counts[key] += amount
    if not counts[key]:
        del counts[key]


class ByTenant(Generic[Key]):
    """What each tenant has of one kind, so that its people do not search all of it."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[Key, None]] = {}

    def note(self, tenant: str, key: Key, *, is_there: bool) -> None:
        """A tenant has something, or no longer."""
        own = self._keys.setdefault(tenant, {})
        if is_there:
            own[key] = None
        else:
            own.pop(key, None)
        if not own:
            del self._keys[tenant]

    def of(self, tenant: str) -> Collection[Key]:
        """What a tenant has, in the order in which it came."""
        return self._keys.get(tenant, {}).keys()

    def counts(self) -> dict[str, int]:
        """How much each tenant has."""
        return {tenant: len(own) for tenant, own in self._keys.items()}


class TenantShares(NamedTuple):
    """The limit of one kind of thing."""

    what: str
    """In the plural, as errors call it."""
    count_max: int
    whose: str = "the cluster"
    parts: int = 10

    def excess(self, tenant: str, counts: Mapping[str, int], amount: int = 1) -> str:
        """Why there can be no further one of a tenant, in words; "": there can. `counts`: how many
        there are, by tenant."""
        count = sum(counts.values())
        if count + amount > self.count_max:
            return f"{self.whose} has {count} {self.what}, its limit"
        part = self.count_max // self.parts
        if tenant == DEFAULT:
            return ""
        own, of_tenants = counts.get(tenant, 0), count - counts.get(DEFAULT, 0)
        if own + amount > part:
            return f"the tenant has {own} {self.what}, the limit of one tenant"
        if of_tenants + amount > self.count_max - part:
            return f"tenants have {of_tenants} {self.what}, the limit of all tenants together"
        return ""

    def excess_of(self, holder: Holder, held: Held, amount: int = 1) -> str:
        """As `excess`, also of a user."""
        counts = held.by_tenant
        if excess := self.excess(holder.tenant, counts, amount):
            return excess
        own = held.by_user.get(holder.user, 0)
        if holder.user and own + amount > USER_FACTOR * self._left(holder.tenant, counts):
            return (
                f"the user has {own} {self.what}: no one can have more than {USER_FACTOR} times as"
                " many as are left for others"
            )
        return ""

    def _left(self, tenant: str, counts: Mapping[str, int]) -> int:
        count = sum(counts.values())
        if tenant == DEFAULT:
            return self.count_max - count
        part = self.count_max // self.parts
        of_tenants = count - counts.get(DEFAULT, 0)
        return min(part - counts.get(tenant, 0), self.count_max - part - of_tenants)


def excess_of_removed(what: str, tenant: str, facts: FollowedFacts) -> str:
    """As `excess`, of the names that are kept for a while after what was stored of them is gone."""
    excess = TenantShares(what, EMPTY_MAX).excess(tenant, facts.empty_counts)
    if not excess:
        return ""
    minutes = f"{EMPTY_KEPT_S / 60:.0f} minutes"
    return (
        f"{excess}: use one of them again, or try again in {minutes}, when they are forgotten if"
        " all brokers have this version"
    )


class SharedPlaces:
    """The places that a broker has for one kind of work, each held while the work lasts."""

    def __init__(
        self, what: str, count_max: int, error: type[Retriable] = StorageUnavailable
    ) -> None:
        """`error`: what is raised if no place is left."""
        self._shares = TenantShares(what, count_max, "this broker", PLACES_PARTS)
        self._error = error
        self._held = Held()

    def take(self, holder: Holder) -> Callable[[], None]:
        """Take a place; returns what gives it back, to be called once."""
        if excess := self._shares.excess_of(holder, self._held):
            raise self._error(f"{excess}: try again when one has ended")
        self._held.add(holder)
        return partial(self._held.add, holder, -1)
