"""Users of a tenant's own: two tenants may each have an alice, and neither is the other's.

Every listener here has logins. Which tenant a connection is for is known before the first message.
"""

from __future__ import annotations

import base64
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker
from tests.unit.kafka.test_sasl import SaslClient, set_password

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.acls import Acl, Entry, Pattern, PatternType, Permission, Question
from headrace.broker.security.api_keys import NewKey
from headrace.broker.security.authentication import Authentication
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.listener import ListenerSecurity
from headrace.broker.security.logins import MECHANISMS
from headrace.broker.security.plain import PLAIN, NamedPassword, write_plain
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.users import check_name
from headrace.broker.services.access_control import super_users_of
from headrace.errors import AuthenticationFailed, CredentialInvalid, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.dispatch import KafkaFace
from headrace.kafka.error_codes import CLUSTER_AUTHORIZATION_FAILED, SASL_AUTHENTICATION_FAILED
from headrace.kafka.tenancy import NAMES
from headrace.metadata.store import ABSENT, MetadataEntry
from headrace.metadata.user_facts import user_key
from headrace.runtime.scram import HASHES, SHA_256, ScramClient, salted_password
from headrace.runtime.security_protocols import SASL_PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OPEN = ListenerSecurity("OPEN", SASL_PLAINTEXT)
ACME = ListenerSecurity("ACME", SASL_PLAINTEXT, tenant="acme")
BETA = ListenerSecurity("BETA", SASL_PLAINTEXT, tenant="beta")
GHOST = ListenerSecurity("GHOST", SASL_PLAINTEXT, tenant="ghost")
LISTENERS = (OPEN, ACME, BETA, GHOST)
OWN = [PLAIN, *HASHES]
CONFIG: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
PASSWORDS = {
    "«acme»alice": "of acme",
    "«beta»alice": "of beta",
    "«beta»boss": "of the boss",
    "alice": "of the cluster",
    "bob": "of bob",
    "root": "of root",
    "«ghost»alice": "of a ghost",
}
"""bob is a user of the cluster that is of acme."""


@asynccontextmanager
async def tenants() -> AsyncIterator[BrokerHarness]:
    async with broker(BrokerConfig(**CONFIG)) as rig:
        services = rig.node.services
        assert services.access is not None
        await services.access.tenants.create("acme", ["User:bob"])
        await services.access.tenants.create("beta", [])
        logins = services.authentication.logins
        await logins.secret.load()
        listeners = {one.name: MECHANISMS for one in LISTENERS}
        services.authentication = Authentication(logins, listeners, is_required=True)
        await rig.face.close()
        rig.face = KafkaFace(rig.node)
        for user, password in PASSWORDS.items():
            await set_password(rig, user, password)
        yield rig


async def log_in(
    rig: BrokerHarness, listener: ListenerSecurity, user: str, password: str, mechanism: str = PLAIN
) -> tuple[int, Principal | None, SaslClient]:
    """The error of the login, and the client's principal after it."""
    client = SaslClient(rig.face, listener)
    answer = await client.log_in(mechanism, user, password)
    return int(answer.error_code), client.connection.session.principal, client


@pytest.mark.parametrize("mechanism", OWN)
async def test_a_name_is_a_user_of_the_tenant_that_the_listener_is_for(mechanism):
    async with tenants() as rig:
        for listener, user, key in (
            (ACME, "alice", "«acme»alice"),
            (BETA, "alice", "«beta»alice"),
            (OPEN, "alice", "alice"),
            (ACME, "bob", "bob"),
            (OPEN, "bob", "bob"),
            (ACME, "root", "root"),
            (GHOST, "root", "root"),
        ):
            error, principal, _ = await log_in(rig, listener, user, PASSWORDS[key], mechanism)
            assert (error, principal) == (0, Principal(key, mechanism=mechanism)), (listener, user)


@pytest.mark.parametrize("mechanism", OWN)
async def test_a_user_of_one_tenant_never_logs_in_at_another(mechanism):
    """By the right password, in whichever way its name is written."""
    async with tenants() as rig:
        at_home = {("ACME", "«acme»alice"), ("BETA", "«beta»alice"), ("BETA", "«beta»boss")}
        at_home |= {("OPEN", one) for one in ("alice", "bob", "root")}
        at_home |= {("ACME", "bob"), ("ACME", "root"), ("BETA", "root"), ("GHOST", "root")}
        at_home.add(("GHOST", "«ghost»alice"))  # without any right, as there is no such tenant
        for listener in LISTENERS:
            for key, password in PASSWORDS.items():
                short = key.partition("»")[2] or key
                for written in {key, short, f"acme/{short}", f"«acme»{key}", f"«?»{short}"}:
                    is_home = (listener.name, key) in at_home and written == short
                    found = await logged_in(rig, listener, written, password, mechanism)
                    assert found == (key if is_home else None), (listener.name, written)


async def logged_in(
    rig: BrokerHarness, listener: ListenerSecurity, user: str, password: str, mechanism: str
) -> str | None:
    """Who that is, without the waiting that follows failures."""
    logins = rig.node.services.authentication.logins
    login = logins.begin(mechanism, MECHANISMS, listener.place_of(""))
    try:
        if mechanism == PLAIN:
            answer = await login.answer(write_plain(user, password))
        else:
            scram = ScramClient(mechanism, user, password, "nonce")
            first = await login.answer(scram.first())
            answer = await login.answer(scram.final(first.data))
    except AuthenticationFailed:
        return None
    assert answer.identity is not None
    return answer.identity.principal.name


async def test_unknown_users_look_like_the_users_of_their_tenant():
    """Iterations and salts of a name say neither whether it is a user's nor whether it is another
    tenant's, and differ by tenant."""

    async with tenants() as rig:
        for user, iterations in (("«acme»alice", 9_000), ("«beta»alice", 12_000)):
            await set_password(rig, user, "other", iterations)
        await set_password(rig, "«beta»boss", None)

        async def looks(listener: ListenerSecurity, name: str) -> tuple[str, int, str]:
            client = SaslClient(rig.face, listener)
            await client.handshake(SHA_256)
            first = (
                await client.authenticate(ScramClient(SHA_256, name, "x", "n").first())
            ).auth_bytes
            _, salt, iterations = bytes(first).decode().split(",")
            return salt, len(salt), iterations

        absent = [f"nobody-{number}" for number in range(20)]
        for listener, iterations in ((ACME, "i=9000"), (BETA, "i=12000")):
            names = ["alice", "carol", "«beta»alice", "«acme»alice", *absent]
            found = [await looks(listener, name) for name in names]
            assert {one[1:] for one in found} == {(found[0][1], iterations)}
            assert found == [await looks(listener, name) for name in names], "every time"
        of_acme, of_beta = [
            [(await looks(listener, name))[0] for name in absent] for listener in (ACME, BETA)
        ]
        assert of_acme != of_beta


async def test_a_password_of_an_absent_user_is_hashed_at_every_place():
    """So that the time reveals nothing; and the right one of another tenant's user is not
    remembered."""

    async with tenants() as rig:
        logins = rig.node.services.authentication.logins
        hashed = 0
        run = logins.threads.run

        def counting(call: Any) -> Any:
            nonlocal hashed
            hashed += 1
            return run(call)

        logins.threads.run = counting  # type: ignore[method-assign]
        place = ACME.place_of(""), BETA.place_of("")
        given = NamedPassword("alice", "of acme")
        assert (await logins.check_password(given, place[0])).principal.name == "«acme»alice"
        assert logins.is_remembered(given, place[0])
        for name, where in (
            ("alice", place[1]),
            ("boss", place[0]),
            ("x", place[0]),
            ("alice", None),
        ):
            one = NamedPassword(name, "of acme")
            assert not logins.is_remembered(one, where)
            with pytest.raises(AuthenticationFailed):
                await logins.check_password(one, where)
        assert hashed == 5


async def test_tenants_see_and_change_their_own_users_only_if_a_rule_lets_them():
    async with tenants() as rig:
        access = rig.node.services.access
        assert access is not None

        async def describe(client: SaslClient, *names: str) -> Any:
            return await client.ask(
                apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": one} for one in names]}
            )

        async def set_own(client: SaslClient, name: str, password: str) -> int:
            salted = salted_password(SHA_256, password, b"salt", 4_096)
            change = {"name": name, "mechanism": 1, "iterations": 4_096, "salt": b"salt"}
            answer = await client.ask(
                apis.ALTER_USER_SCRAM_CREDENTIALS,
                0,
                {"deletions": [], "upsertions": [change | {"salted_password": salted}]},
            )
            return int(answer.results[0].error_code)

        _, _, boss = await log_in(rig, BETA, "boss", "of the boss")
        assert int((await describe(boss)).error_code) == CLUSTER_AUTHORIZATION_FAILED
        assert await set_own(boss, "carol", "new") == CLUSTER_AUTHORIZATION_FAILED
        all_own = Pattern(ResourceType.USER, "User:«beta»", PatternType.PREFIXED)
        rule = Entry("User:«beta»boss", "*", Operation.ALTER, Permission.ALLOW)
        assert await access.create([Acl(all_own, rule)]) == [None]
        listed = await describe(boss)
        assert [one.user for one in listed.results] == ["alice", "boss"]
        assert await set_own(boss, "carol", "new") == 0
        assert (await log_in(rig, BETA, "carol", "new", SHA_256))[0] == 0
        assert (await log_in(rig, ACME, "carol", "new", SHA_256))[0] == SASL_AUTHENTICATION_FAILED
        for foreign in ("«acme»alice", "acme/alice", "bob", "root"):
            found = (await describe(boss, foreign)).results[0]
            assert (int(found.error_code), found.user) == (91, foreign), "as one that is nowhere"
            assert "«beta»" not in found.error_message
        assert await set_own(boss, "alice", "mine now") == 0
        assert (await log_in(rig, ACME, "alice", "of acme"))[0] == 0
        assert (await log_in(rig, OPEN, "alice", "of the cluster"))[0] == 0
        _, _, other = await log_in(rig, ACME, "alice", "of acme")
        assert int((await describe(other, "carol")).error_code) == CLUSTER_AUTHORIZATION_FAILED
        _, _, root = await log_in(rig, ACME, "root", "of root")
        seen = [one.user for one in (await describe(root)).results]
        assert seen == sorted([*PASSWORDS, "«beta»carol"])
        assert await set_own(root, "«nowhere»alice", "x") == 93


async def test_rules_and_the_audit_log_name_the_tenants_own_user(caplog):
    async with tenants() as rig:
        access = rig.node.services.access
        assert access is not None
        own, shared = "User:«acme»alice", "User:alice"
        topic = Pattern(ResourceType.TOPIC, "«acme»t")
        rules = {one: Entry(one, "*", Operation.READ, Permission.DENY) for one in (own, shared)}
        _, _, client = await log_in(rig, ACME, "alice", "of acme")
        session = client.connection.session

        def may(kind: ResourceType, name: str, operation: Operation = Operation.READ) -> bool:
            return access.allows(session, operation, kind, name)

        assert may(ResourceType.TOPIC, "«acme»t")
        await access.create([Acl(topic, rules[shared])])
        assert may(ResourceType.TOPIC, "«acme»t"), "the rule is about the cluster's alice"
        await access.create([Acl(topic, rules[own])])
        assert not may(ResourceType.TOPIC, "«acme»t")
        for kind, name in (
            (ResourceType.TOPIC, "«beta»t"),
            (ResourceType.TOPIC, "t"),
            (ResourceType.CLUSTER, CLUSTER_NAME),
            (ResourceType.USER, "User:alice"),
            (ResourceType.USER, "User:«beta»alice"),
        ):
            every = Entry("User:*", "*", Operation.ALL, Permission.ALLOW)
            await access.create([Acl(Pattern(kind, name), every)])
            assert not may(kind, name), (kind, name)
            asked = Question(own, "*", Operation.READ, kind, name)
            assert not access.explain(asked).is_allowed
        # Nor does a rule about all users open a tenant's to people of the default tenant.
        _, _, of_none = await log_in(rig, OPEN, "alice", "of the cluster")
        everything = Entry("User:*", "*", Operation.ALL, Permission.ALLOW)
        await access.create([Acl(Pattern(ResourceType.USER, "*"), everything)])
        granted = [
            access.allows(
                of_none.connection.session, Operation.CREATE_TOKENS, ResourceType.USER, one
            )
            for one in ("User:bob", "User:«acme»alice")
        ]
        assert granted == [True, False]
        with caplog.at_level(logging.INFO, "headrace.audit"):
            await client.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
        noted = json.loads(caplog.messages[-1])
        shown = "User:acme/alice"  # as operators write it
        assert (noted["event"], noted["principal"]) == ("denied", shown)


async def test_users_of_a_tenant_that_is_deleted_have_no_rights_until_it_is_there_again():
    async with tenants() as rig:
        access = rig.node.services.access
        assert access is not None
        _, _, client = await log_in(rig, ACME, "alice", "of acme")
        session = client.connection.session
        await access.tenants.delete("acme", is_forced=True)
        assert not access.allows(session, Operation.READ, ResourceType.TOPIC, "«acme»t")
        assert not access.allows(session, Operation.READ, ResourceType.TOPIC, "t")
        await access.tenants.create("acme", [])
        assert access.allows(session, Operation.READ, ResourceType.TOPIC, "«acme»t")


async def test_a_tenants_own_user_is_none_of_the_clusters_once_no_setting_names_the_tenant():
    """No fact says that there were tenants."""
    config = BrokerConfig(**CONFIG, tenants="acme=User:bob")
    async with broker(config) as rig:
        await set_password(rig, "«acme»alice", "of acme")
        everybody = Entry("User:*", "*", Operation.ALL, Permission.ALLOW)
        access = rig.node.services.access
        assert access is not None
        assert await access.create([Acl(Pattern(ResourceType.TOPIC, "*"), everybody)]) == [None]
        made = await rig.node.services.issuers.keys.create(NewKey("k", Principal("«acme»alice")))
        rig.config = BrokerConfig(**CONFIG)
        services = (await rig.restart()).services
        logins, access = services.authentication.logins, services.access
        assert access is not None
        assert not access.has_tenants
        await logins.secret.load()
        for place in (None, ACME.place_of("")):
            for name in ("«acme»alice", "alice"):
                with pytest.raises(AuthenticationFailed):
                    await logins.check_password(NamedPassword(name, "of acme"), place)
        session = ClientSession("OPEN", "127.0.0.1", services.issuers.keys.find(made[0]).principal)
        assert not access.allows(session, Operation.READ, ResourceType.TOPIC, "t")
        other = ClientSession("OPEN", "127.0.0.1", Principal("bob"))
        assert access.allows(other, Operation.READ, ResourceType.TOPIC, "t")


async def test_a_name_with_the_tenant_twice_is_refused_hidden_and_can_be_deleted_by_operators():
    """As clients of a tenant write it that add their tenant by themselves."""
    async with tenants() as rig:
        users, access = rig.node.services.authentication.users, rig.node.services.access
        assert access is not None
        with pytest.raises(CredentialInvalid, match="without --tenant"):
            check_name("«acme»«acme»alice")
        stored = await rig.metadata.get(user_key("«acme»alice"))
        twice = user_key("«acme»«acme»alice")  # by an earlier version
        users.apply(
            twice,
            MetadataEntry(twice, stored.value, await rig.metadata.put(twice, stored.value, ABSENT)),
        )
        assert await logged_in(rig, ACME, "«acme»alice", "of acme", SHA_256) is None
        all_own = Pattern(ResourceType.USER, "User:«acme»", PatternType.PREFIXED)
        rule = Entry("User:«acme»alice", "*", Operation.ALTER, Permission.ALLOW)
        assert await access.create([Acl(all_own, rule)]) == [None]
        _, _, alice = await log_in(rig, ACME, "alice", "of acme")
        _, _, root = await log_in(rig, OPEN, "root", "of root")

        async def listed(client: SaslClient, *names: str) -> Any:
            asked = {"users": [{"name": one} for one in names]}
            found = (await client.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, asked)).results
            return [(one.user, int(one.error_code)) for one in found]

        async def change(client: SaslClient, name: str, *, is_deletion: bool) -> int:
            salted = salted_password(SHA_256, "x", b"salt", 4_096)
            new = {"iterations": 4_096, "salt": b"salt", "salted_password": salted}
            credential = {"name": name, "mechanism": 1}
            body = {
                "deletions": [credential] if is_deletion else [],
                "upsertions": [] if is_deletion else [credential | new],
            }
            answer = await client.ask(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, body)
            return int(answer.results[0].error_code)

        assert await listed(alice) == [("alice", 0)]
        assert await listed(alice, "«acme»alice") == [("«acme»alice", 91)]
        assert await change(alice, "«acme»alice", is_deletion=True) == 91
        assert await change(alice, "«acme»alice", is_deletion=False) == 93
        assert await change(alice, "«acme»carol", is_deletion=False) == 93
        assert ("«acme»«acme»alice", 0) in await listed(root)
        assert await change(root, "«acme»«acme»alice", is_deletion=True) == 0
        assert "«acme»«acme»carol" not in users.names()


async def test_an_own_user_may_be_called_like_a_super_user_and_is_none():
    async with tenants() as rig:
        access = rig.node.services.access
        assert access is not None
        for user in ("«acme»root", "«acme»User:root", "«acme»ANONYMOUS"):
            await set_password(rig, user, "of acme")
            name = user.removeprefix("«acme»")
            _, principal, client = await log_in(rig, ACME, name, "of acme")
            assert principal == Principal(user, mechanism=PLAIN)
            session = client.connection.session
            assert (access.sees_all(session), access.tenant(session)) == (False, "acme")
            rights = {
                "«acme»t": access.allows(session, Operation.READ, ResourceType.TOPIC, "«acme»t"),
                "t": access.allows(session, Operation.READ, ResourceType.TOPIC, "t"),
                "«beta»t": access.allows(session, Operation.READ, ResourceType.TOPIC, "«beta»t"),
            }
            assert rights == {"«acme»t": True, "t": False, "«beta»t": False}
            assert not access.allows(session, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        assert await logged_in(rig, OPEN, "root", "of acme", PLAIN) is None
        assert await logged_in(rig, OPEN, "root", "of root", PLAIN) == "root"
        assert await logged_in(rig, BETA, "root", "of root", PLAIN) == "root"


async def test_a_delegation_token_of_an_own_user_counts_where_its_password_does():
    async with tenants() as rig:
        tokens = rig.node.services.issuers.tokens
        root = Principal("root")
        for user, homes in (("«acme»alice", {"ACME"}), ("alice", {one.name for one in LISTENERS})):
            token = await tokens.create(Principal(user), root, (), -1)
            password = base64.b64encode(tokens.hmac_of(token.id)).decode()
            for listener in LISTENERS:
                client = SaslClient(rig.face, listener)
                answer = await client.log_in(SHA_256, token.id, password, is_token=True)
                assert (int(answer.error_code) == 0) == (listener.name in homes), listener.name


def test_who_sees_all_tenants_is_not_a_user_of_one():
    with pytest.raises(RequestInvalid, match="a user of a tenant's own"):
        super_users_of("User:root;User:«acme»alice")


async def test_a_tenants_own_user_is_given_to_no_tenant():
    async with tenants() as rig:
        access = rig.node.services.access
        assert access is not None
        with pytest.raises(CredentialInvalid, match="not a tenant's own user"):
            await access.tenants.change("beta", ["User:«acme»alice"])


def test_a_tenants_users_are_administered_by_names():
    assert {apis.DESCRIBE_USER_SCRAM_CREDENTIALS, apis.ALTER_USER_SCRAM_CREDENTIALS} <= {*NAMES}
