"""Whoever comes next finds room in a bound, however many have come before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.security.principal import ANONYMOUS, BROKER, Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.tenant_shares import (
    NOBODY,
    USER_FACTOR,
    Held,
    Holder,
    SharedPlaces,
    TenantShares,
)
from headrace.broker.services.fair_shares import user_of
from headrace.errors import StorageUnavailable

SHARES = TenantShares("things", 1_000, "this broker", 4)


def fill(shares: TenantShares, held: Held, holder: Holder) -> int:
    """Take all that the holder may have; returns how many that is."""
    count = 0
    while not shares.excess_of(holder, held):
        held.add(holder)
        count += 1
    return count


def test_each_user_leaves_room_for_the_next() -> None:
    held = Held()
    taken = [fill(SHARES, held, Holder("", f"User:{number}")) for number in range(5)]
    assert taken == [667, 222, 74, 25, 8]
    assert "the user has 667 things" in SHARES.excess_of(Holder("", "User:0"), held)


def test_users_of_a_tenant_share_its_part() -> None:
    held = Held()
    assert fill(SHARES, held, Holder("acme", "User:a")) == 167
    assert fill(SHARES, held, Holder("acme", "User:b")) == 56
    assert fill(SHARES, held, Holder("beta", "User:c")) == 167
    assert fill(SHARES, held, Holder("", "User:operator")) == 407


def test_what_is_nobodys_has_the_bound_alone() -> None:
    held = Held()
    assert fill(SHARES, held, Holder("", NOBODY)) == 1_000
    assert "its limit" in SHARES.excess_of(Holder("", "User:a"), held)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "acme"]), st.sampled_from("abc"), st.integers(1, 60), st.booleans()
        ),
        max_size=80,
    )
)
def test_a_user_never_gets_beyond_its_share(steps: list[tuple[str, str, int, bool]]) -> None:
    shares, held = TenantShares("bytes", 400, "this broker", 4), Held()
    model: dict[Holder, list[int]] = {}
    for tenant, user, amount, is_given_back in steps:
        holder = Holder(tenant, f"User:{tenant}{user}")
        mine = model.setdefault(holder, [])
        if is_given_back and mine:
            held.add(holder, -mine.pop())
            continue
        total = sum(map(sum, model.values()))
        of_tenant = sum(sum(one) for key, one in model.items() if key.tenant == tenant)
        left = 400 - total if not tenant else min(100 - of_tenant, 300 - of_tenant)
        may = total + amount <= 400 and amount <= left
        may = may and sum(mine) + amount <= USER_FACTOR * left
        assert (not shares.excess_of(holder, held, amount)) is may
        if may:
            held.add(holder, amount)
            mine.append(amount)
    assert held.by_tenant.total() == sum(map(sum, model.values()))


def test_places_are_given_back_to_their_user() -> None:
    places = SharedPlaces("streams", 64)
    noisy, quiet = Holder("", "User:noisy"), Holder("", "User:quiet")
    taken = [places.take(noisy) for _ in range(43)]
    with pytest.raises(StorageUnavailable, match="the user has 43 streams"):
        places.take(noisy)
    given_back = [places.take(quiet) for _ in range(14)]
    for one in (*taken, *given_back):
        one()
    assert len([places.take(noisy) for _ in range(43)]) == 43


def test_users_are_principals_or_addresses_and_brokers_are_none() -> None:
    def session(principal: Principal | None) -> ClientSession:
        return ClientSession("l", "2001:db8::5", principal)

    assert user_of(session(Principal("alice"))) == "User:alice"
    assert user_of(session(None)) == user_of(session(ANONYMOUS)) == "2001:db8::/64"
    assert user_of(session(Principal("1", BROKER))) == NOBODY
