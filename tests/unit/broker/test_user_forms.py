"""Users that do not exist look like those that do, whatever made these."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from headrace.broker.security.users import CredentialChange, Users
from headrace.metadata.memory import MemoryMetadataStore
from headrace.runtime.scram import (
    HASHES,
    SHA_256,
    SHA_512,
    ScramCredential,
    form_of,
    salt_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SECRET = b"s" * 32
ABSENT = [f"nobody-{number}" for number in range(1_000)]
Look = tuple[object, ...]


def credential(salt: bytes, iterations: int) -> ScramCredential:
    return ScramCredential(salt, b"stored", b"server", iterations)


def of_kafka(user: int) -> Mapping[str, ScramCredential]:
    return {
        one: credential(salt_text(3**90 + user + at * 2**100), 4_096)
        for at, one in enumerate(HASHES)
    }


def of_librdkafka(user: int) -> Mapping[str, ScramCredential]:
    return {SHA_512: credential(bytes([255]) * 63 + bytes([user]), 10_000)}


def of_old_versions(user: int) -> Mapping[str, ScramCredential]:
    """One salt, of 26 digits whatever its number, for both mechanisms."""
    return {one: credential(b"z" * 25 + b"%d" % (user % 10), 8_192) for one in HASHES}


def of_scripts(user: int) -> Mapping[str, ScramCredential]:
    return {SHA_256: credential(b"salt%d" % (user % 10), 16_384)}


def stored(*makers: Callable[[int], Mapping[str, ScramCredential]]) -> Users:
    """Ten users of each kind: `user-0`, `user-1` ..."""
    users = Users(MemoryMetadataStore())
    names = iter(f"user-{number}" for number in range(10 * len(makers)))
    changes = [
        CredentialChange(name, mechanism, one)
        for maker in makers
        for number, name in zip(range(10), names, strict=False)
        for mechanism, one in maker(number).items()
    ]
    results = asyncio.run(users.change(changes))
    assert set(results.values()) == {None}
    return users


def answered(users: Users, user: str, mechanism: str) -> ScramCredential:
    if not users.has_user(user):
        return users.forms(user).absent(mechanism, SECRET, user)
    own = users.credential(user, mechanism)
    return own or users.forms(user).lacking(mechanism, SECRET, user)


def look(users: Users, user: str) -> Look:
    """What a prober sees of a user, by both mechanisms."""
    both = [answered(users, user, mechanism) for mechanism in HASHES]
    is_shared = both[0].salt == both[1].salt
    return *map(form_of, both), is_shared


ALL = of_kafka, of_librdkafka, of_old_versions, of_scripts


@pytest.mark.parametrize("makers", [ALL, *((one,) for one in ALL)])
def test_absent_users_have_the_looks_of_users_and_as_often(makers):
    users = stored(*makers)
    own = Counter(look(users, name) for name in users.names())
    absent = Counter(look(users, name) for name in ABSENT)
    assert set(own) <= set(absent)
    for mechanism in HASHES:
        shares = [
            Counter(form_of(answered(users, name, mechanism)) for name in names)
            for names in (users.names(), ABSENT)
        ]
        for form in {*shares[0], *shares[1]}:
            # Of 26 digits made by chance, one in 20 is a number that new salts could be, too. And
            # by chance the looks of 40 users that lack the mechanism differ from those of 1,000.
            difference = shares[1][form] / len(ABSENT) - shares[0][form] / len(users.names())
            assert abs(difference) < (0.1 if len(makers) == 1 else 0.2)


def test_the_answers_to_an_absent_user_are_the_same_on_every_broker_and_differ_by_name():
    first, second = stored(*ALL), stored(*reversed(ALL))
    for mechanism in HASHES:
        answers = [answered(first, name, mechanism) for name in ABSENT]
        assert answers == [answered(second, name, mechanism) for name in ABSENT]
        longer = {one.salt for one in answers if len(one.salt) > 10}
        assert len(longer) == sum(len(one.salt) > 10 for one in answers)


def test_users_that_came_and_went_leave_no_trace_in_the_answers():
    users = stored(*ALL)
    before = [answered(users, name, one) for name in ABSENT for one in HASHES]
    names = [f"other-{number}" for number in range(50)]
    forms = [credential(b"z" * 26, 5_000 + number) for number in range(50)]
    for credentials in (forms, reversed(forms), [None] * 50):
        changes = [
            CredentialChange(name, SHA_256, one)
            for name, one in zip(names, credentials, strict=True)
        ]
        assert set(asyncio.run(users.change(changes)).values()) == {None}
        looks = {answered(users, name, SHA_256).iterations for name in ABSENT}
        assert bool(looks & {*range(5_000, 5_050)}) == (changes[0].credential is not None)
    assert [answered(users, name, one) for name in ABSENT for one in HASHES] == before


def test_few_absent_users_change_when_a_user_is_added_and_then_the_salt_does_too():
    users = stored(*ALL)
    before = {name: answered(users, name, SHA_512) for name in ABSENT}
    new = CredentialChange("new", SHA_512, of_librdkafka(99)[SHA_512])
    assert asyncio.run(users.change([new])) == {"new": None}
    changed = [name for name in ABSENT if answered(users, name, SHA_512) != before[name]]
    assert len(changed) < len(ABSENT) / 10
    for name in changed:
        assert answered(users, name, SHA_512).salt != before[name].salt


def test_a_password_of_an_absent_user_costs_what_one_of_a_user_does():
    users = stored(*ALL)
    own = {users.any_credential(name) for name in users.names()}
    costs = Counter((one[0], one[1].iterations) for one in own if one)
    absent = Counter(
        (mechanism, one.iterations)
        for mechanism, one in (users.forms(name).absent_password(SECRET, name) for name in ABSENT)
    )
    assert set(absent) == set(costs)
    for count in absent.values():
        assert abs(count / len(ABSENT) - 1 / len(ALL)) < 0.1


def test_without_users_absent_ones_look_like_those_that_will_be_made():
    users = Users(MemoryMetadataStore())
    forms = {form_of(answered(users, name, one)) for name in ABSENT for one in HASHES}
    assert forms == {form_of(of_kafka(1)[SHA_256])}
