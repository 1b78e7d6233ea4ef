"""Access control lists with real clients: librdkafka, kafka-python, and `headrace acl`."""

from __future__ import annotations

import functools
import json
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import kafka
import pytest
from click.testing import CliRunner
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.integration.broker import Broker
from tests.integration.java import session
from tests.s3_server import Proxy
from tests.waiting import wait_until

from headrace.cli.failures import CommandFailed
from headrace.cli.main import cli
from headrace.cli.pipeline_looks import sample_group
from headrace.cli.produce import Delivery
from headrace.cli.session import CliSession
from headrace.dev_cluster.ports import free_port
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.direct_writer import DirectWriter
from headrace.pipeline.errors import LeaseHeld, ProgressRefused, ReadRefused, RecordRefused
from headrace.pipeline.fetch import read_range
from headrace.pipeline.jobs import transfer
from headrace.pipeline.jobs.backlog import retention_of
from headrace.pipeline.jobs.table_lease import TopicLease
from headrace.pipeline.jobs.table_settings import GROUP
from headrace.pipeline.jobs.transfer import JobMarks, JobState
from headrace.pipeline.jobs.windows import Connection, Window
from headrace.pipeline.library_writer import LibraryWriter
from headrace.pipeline.options import SinkOptions, SourceOptions
from headrace.pipeline.planning import OffsetRange
from headrace.pipeline.restarts import is_passing
from headrace.pipeline.written import RowToWrite
from headrace.records.cluster_ids import tenants_cluster_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import KafkaError

TIMEOUT_S, LONG_S = 20, 60
PASSWORD = "a-password-of-the-test"
ADDRESSES: list[str] = []
"""Of the plaintext and of the authenticating listener."""
OPTIONS = (
    "--super-users=User:ANONYMOUS",
    "--listener-security-protocol-map=PLAINTEXT:PLAINTEXT,SECURE:SASL_PLAINTEXT",
    "--sasl-enabled-mechanisms=SCRAM-SHA-256",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose plaintext clients are its administrators; ACLs are on because a listener
    authenticates its clients."""
    broker = Broker(tmp_path_factory.mktemp("acls"), *OPTIONS)
    plain, secure = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    broker.kafka = f"PLAINTEXT://{plain},SECURE://{secure}"
    broker.start()
    ADDRESSES[:] = [plain, secure]
    for tenant, user in (("acme", "tina"), ("beta", "tom")):
        made = run("tenant", "create", tenant, "--principal", f"User:{user}")
        assert made == {"tenant": tenant, "existed": False, "dry_run": False}
    yield broker
    broker.stop()


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(cli, ["--bootstrap", ADDRESSES[0], *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@functools.cache
def admin_of(address: str) -> AdminClient:
    """Kept: one that is dropped ends its requests."""
    return AdminClient({"bootstrap.servers": address})


def settings_of(user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": ADDRESSES[1],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        **more,
    }


def add_user(name: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    added = UserScramCredentialUpsertion(name, info, PASSWORD.encode())
    admin_of(ADDRESSES[0]).alter_user_scram_credentials([added])[name].result(TIMEOUT_S)


def send(user: str, topic: str) -> str | None:
    """The name of the error of a record that is sent; None: it was stored."""
    errors: list[Any] = []
    producer = Producer(settings_of(user, **{"message.timeout.ms": 8_000}))
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT_S)
    (error,) = errors
    return None if error is None else str(error.name())


def produce(user: str, topic: str) -> subprocess.Popen[str]:
    """`headrace produce` as a user, which reads what is written to it."""
    where = ("--bootstrap", ADDRESSES[1])
    options = [part for pair in settings_of(user).items() for part in ("-X", "=".join(pair))]
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", *where, *options, "produce", topic],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(topic: str) -> int:
    request = {TopicPartition(topic, 0): OffsetSpec.latest()}
    (found,) = admin_of(ADDRESSES[0]).list_offsets(request).values()
    return int(found.result(TIMEOUT_S).offset)


def remove_user(name: str) -> None:
    gone = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256)
    admin_of(ADDRESSES[0]).alter_user_scram_credentials([gone])[name].result(TIMEOUT_S)


def remove_right(name: str) -> None:
    run("acl", "remove", "--principal", f"User:{name}")


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("withdraw", "cause"),
    [
        (remove_right, "the user has no right to this topic"),
        (remove_user, "the login was refused"),
    ],
)
def test_produce_ends_with_the_reason_when_it_may_not_write_any_more(withdraw, cause):
    user = withdraw.__name__.replace("_", "-")
    add_user(user)
    run("topic", "create", "withdrawn", "--if-not-exists")
    run("acl", "add", "--principal", f"User:{user}", "--role", "producer", "--topic", "withdrawn")
    before = end_of("withdrawn")
    process = produce(user, "withdrawn")
    assert process.stdin is not None
    sent = 0
    with suppress(BrokenPipeError):
        while process.poll() is None:
            process.stdin.write("".join(f"{number}\n" for number in range(sent, sent + 1_000)))
            sent += 1_000
            if sent == 2_000:
                wait_until(lambda: end_of("withdrawn") > before or process.poll(), LONG_S)
                withdraw(user)
            time.sleep(0.01)  # lines come, faster than they are needed
    _, said = process.communicate(timeout=LONG_S)
    assert process.returncode == 1, said
    assert cause in said
    assert f"records not stored in 'withdrawn'; the rest of the input was not read: {cause}" in said


@pytest.mark.usefixtures("served")
def test_produce_does_not_take_a_lost_connection_for_a_login_that_was_refused():
    """The client calls both _AUTHENTICATION, for instance when a broker stops in that moment."""
    delivery, errors = Delivery(), []

    def lose_logins(data: bytes) -> None:
        if data[4:6] == b"\0\x11":  # SaslHandshake
            proxy.close()

    def note(error: KafkaError) -> None:
        errors.append(error.name())
        delivery.note(error)

    proxy = Proxy(int(ADDRESSES[1].rpartition(":")[2]), lose_logins)
    add_user("patient")
    addresses = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "error_cb": note}
    producer = Producer(settings_of("patient", log_level=0, **addresses))
    wait_until(lambda: producer.poll(0.1) or "_AUTHENTICATION" in errors, LONG_S)
    assert not delivery.is_hopeless
    wrong = {"sasl.password": "another", "error_cb": note, "log_level": 0}
    producer = Producer(settings_of("patient", **wrong))
    wait_until(lambda: producer.poll(0.1) or delivery.is_hopeless, LONG_S)


def test_produce_goes_on_while_a_token_cannot_be_renewed():
    delivery, errors = Delivery(), []
    tokens = iter([("token", time.time() + 1)])

    def note(error: KafkaError) -> None:
        errors.append(error.name())
        delivery.note(error)

    client = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT"}
    oauth = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: next(tokens)}
    producer = Producer({**client, **oauth, "error_cb": note, "log_level": 0})
    wait_until(lambda: producer.poll(0.1) or "_AUTHENTICATION" in errors, LONG_S)
    assert not delivery.is_hopeless


@pytest.mark.usefixtures("served")
def test_a_user_may_do_what_the_rules_allow_and_nothing_else():
    for topic in ("orders", "secret"):
        created = admin_of(ADDRESSES[0]).create_topics([NewTopic(topic, 1)])
        created[topic].result(TIMEOUT_S)
    for user in ("alice", "bob"):
        add_user(user)
    assert send("alice", "orders") == "TOPIC_AUTHORIZATION_FAILED"
    added = run(
        "acl", "add", "--principal", "User:alice", "--role", "producer", "--topic", "orders"
    )["added"]
    assert [row["operation"] for row in added] == ["WRITE", "CREATE"]
    wait_until(lambda: send("alice", "orders") is None, TIMEOUT_S)
    assert send("bob", "orders") == "TOPIC_AUTHORIZATION_FAILED"
    client = AdminClient(settings_of("alice"))
    seen = client.list_topics(timeout=TIMEOUT_S).topics
    assert set(seen) == {"orders"}

    run("acl", "add", "--principal", "User:bob", "--role", "consumer", "--topic", "ord",
        "--group", "g", "--prefix")  # fmt: skip
    consumer = Consumer(settings_of("bob", **{"group.id": "g-1", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["orders"])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.value() == b"v"

    # A right that is removed ends at once, also for a connection that is open.
    run("acl", "remove", "--principal", "User:bob")
    producer = Producer({"bootstrap.servers": ADDRESSES[0]})
    producer.produce("orders", b"later")
    producer.flush(TIMEOUT_S)
    after = consumer.poll(5)
    assert after is None or after.error() is not None, after.value()
    consumer.close()


@pytest.mark.usefixtures("served")
def test_a_service_of_tables_that_may_not_join_its_group_says_so_until_it_may():
    admin_of(ADDRESSES[0]).create_topics([NewTopic("kept", 1)])["kept"].result(TIMEOUT_S)
    add_user("tables")
    topic = ("--principal", "User:tables", "--operation", "READ", "--topic", "kept")
    run("acl", "add", *topic)
    lease = TopicLease(settings_of("tables"))
    try:
        lease.want(frozenset({"kept"}))
        wait_until(lambda: lease.problem)
        assert f"the consumer group {GROUP}, and gets no topics" in lease.problem
        assert "needs READ on that group" in lease.problem
        assert not lease.owned
        group = ("--principal", "User:tables", "--operation", "READ", "--group", GROUP)
        run("acl", "add", *group)
        wait_until(lambda: lease.owned)
        assert (lease.owned, lease.problem) == ({"kept"}, "")
    finally:
        lease.close()


@pytest.mark.usefixtures("served")
def test_a_job_that_may_not_keep_its_progress_ends_with_the_reason():
    """Not after ten restarts: no restart gives it the right."""
    admin_of(ADDRESSES[0]).create_topics([NewTopic("copied", 1)])["copied"].result(TIMEOUT_S)
    add_user("copier")
    user = ("--principal", "User:copier", "--operation", "READ")
    run("acl", "add", *user, "--topic", "copied")
    marks = JobMarks(Connection(ADDRESSES[1], settings_of("copier")), "headrace-replay.copied")
    ends = {"copied": {"0": 5}}
    state = JobState("spec", Window({"copied": {"0": 0}}, ends, {}), ends, {})
    for ask in (marks.read, lambda: marks.write(state)):
        with pytest.raises(
            ProgressRefused, match=r"group headrace-replay\.copied.* read"
        ) as failed:
            ask()
        assert not is_passing(failed.value)
    allow = re.search(r"headrace (acl add [^;]+);", str(failed.value))
    assert allow is not None
    run(*shlex.split(allow[1]))
    marks.write(state)
    assert marks.read() == state


@pytest.mark.usefixtures("served")
def test_a_tenants_job_without_a_right_says_how_operators_write_the_command():
    """A client does not know of which tenant it is."""
    run("tenant", "create", "closed", "--principal", "User:closed", "--access", "rules")
    add_user("closed")
    run("topic", "create", "closed/worked")
    producer = Producer({"bootstrap.servers": ADDRESSES[0]})
    producer.produce("«closed»worked", b"v", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    options = SourceOptions(client=settings_of("closed"))

    def read() -> int:
        batches = read_range(OffsetRange("worked", 0, 0, 1), options)
        return sum(batch.num_rows for batch in batches)

    with pytest.raises(ReadRefused, match="operators write TENANT/NAME") as refused:
        read()
    command = named_in(str(refused.value)).replace("--topic worked", "--topic closed/worked")
    assert "--topic closed/worked" in command
    run(*shlex.split(command))

    def is_read() -> bool:
        with suppress(ReadRefused):
            return read() == 1
        return False

    wait_until(is_read, TIMEOUT_S)


def named_in(text: str) -> str:
    """The command that an error names."""
    found = re.search(r"headrace (acl add [^.;)]*)", text)
    assert found is not None, text
    return found[1]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_job_without_a_right_names_the_command_that_gives_it(is_direct):
    user, topic, group = f"worker-{is_direct}", f"worked-{is_direct}", f"working-{is_direct}"
    admin_of(ADDRESSES[0]).create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)
    admin_of(ADDRESSES[0]).alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])]
    )[group].result(TIMEOUT_S)
    add_user(user)
    by_library = {} if is_direct else {"client.rack": "a"}
    options = SourceOptions(client=settings_of(user, **by_library))
    cluster = ClusterClient(options.client)
    session = CliSession(ADDRESSES[1], TIMEOUT_S, settings_of(user))
    writer = DirectWriter if is_direct else LibraryWriter
    describe = cluster.describe if is_direct else session.describe_topics

    def read() -> None:
        assert sum(batch.num_rows for batch in read_range(OffsetRange(topic, 0, 0, 1), options))

    def write() -> None:
        sink = writer(SinkOptions(options.client), lambda _topic: 1_000_000)
        try:
            sink.produce([RowToWrite(topic, 0, None, b"v", (), 0)], [b"mark"])
            sink.flush()
        finally:
            sink.close()

    for act, right in (
        (lambda: describe([topic]), "describe --topic"),
        (write, "write --topic"),
        (read, "read --topic"),
        (lambda: sample_group(session, group, topic, 0.0), "describe --group"),
    ):
        with pytest.raises((ReadRefused, RecordRefused, CommandFailed)) as refused:
            act()
        said = f"{refused.value} {getattr(refused.value, 'next_step', '')}"
        command = named_in(said)
        assert f"--principal User:{user} --operation {right} " in command
        run(*shlex.split(command))
        act()
    # Settings are for advice alone, but for those of tables.
    with pytest.raises(ReadRefused, match=r"acl add .*--operation describe_configs --topic"):
        cluster.configurations()
    assert retention_of(cluster, topic)[0] == -1
    (advice,) = retention_of(cluster, topic)[1]
    run(*shlex.split(named_in(advice)))
    assert retention_of(cluster, topic) == (604_800_000, [])


@pytest.mark.usefixtures("served")
def test_explain_names_the_rule():
    run("acl", "add", "--principal", "User:carol", "--operation", "READ", "--topic", "t")
    run("acl", "add", "--principal", "User:*", "--operation", "ALL", "--topic", "t",
        "--host", "10.0.0.9", "--deny")  # fmt: skip
    asked = ("acl", "explain", "--principal", "User:carol", "--operation", "DESCRIBE")
    allowed = run(*asked, "--topic", "t")
    assert allowed["allowed"]
    assert "allow User:carol READ from * on topic t" in allowed["reason"]
    denied = run(*asked, "--topic", "t", "--host", "10.0.0.9")
    assert not denied["allowed"]
    assert "deny User:* ALL from 10.0.0.9 on topic t" in denied["reason"]
    nothing = run(*asked, "--topic", "u")
    assert not nothing["allowed"]
    assert "no rule applies" in nothing["reason"]
    tenant = run("acl", "explain", "--principal", "User:tina", "--operation", "READ",
                 "--topic", "«beta»t")  # fmt: skip
    assert not tenant["allowed"]
    assert "is of acme tenant" in tenant["reason"]
    assert "at a listener or server name of a tenant the answer may differ" in tenant["reason"]
    root = run("acl", "explain", "--principal", "User:ANONYMOUS", "--operation", "ALTER",
               "--cluster")  # fmt: skip
    assert "super.users" in root["reason"]


@pytest.mark.usefixtures("served")
def test_librdkafka_creates_describes_and_deletes_rules():
    """As in its own test 0081."""
    admin = admin_of(ADDRESSES[0])
    rules = [
        AclBinding(ResourceType.TOPIC, "acl-1", ResourcePatternType.PREFIXED, "User:t1", "*",
                   AclOperation.READ, AclPermissionType.ALLOW),
        AclBinding(ResourceType.TOPIC, "acl-2", ResourcePatternType.LITERAL, "User:t1", "*",
                   AclOperation.WRITE, AclPermissionType.ALLOW),
        AclBinding(ResourceType.GROUP, "acl-g", ResourcePatternType.PREFIXED, "User:t2", "*",
                   AclOperation.ALL, AclPermissionType.DENY),
    ]  # fmt: skip
    for future in admin.create_acls(rules).values():
        future.result(TIMEOUT_S)
    wanted = AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, "User:t1", None,
                              AclOperation.ANY, AclPermissionType.ANY)  # fmt: skip
    assert set(admin.describe_acls(wanted).result(TIMEOUT_S)) == set(rules[:2])
    match = AclBindingFilter(ResourceType.TOPIC, "acl-1-x", ResourcePatternType.MATCH, None, None,
                             AclOperation.ANY, AclPermissionType.ANY)  # fmt: skip
    assert admin.describe_acls(match).result(TIMEOUT_S) == rules[:1]
    assert set(admin.delete_acls([wanted])[wanted].result(TIMEOUT_S)) == set(rules[:2])
    assert admin.describe_acls(wanted).result(TIMEOUT_S) == []


def test_rules_that_are_deleted_are_named_in_the_audit_log(served):
    run("acl", "add", "--principal", "User:audited", "--role", "producer", "--topic", "audited")
    run("acl", "remove", "--principal", "User:audited", "--topic", "audited")
    lines = [json.loads(line[line.index("{") :]) for line in audit_lines(served, "DeleteAcls")]
    (found,) = [one for one in lines if "audited" in str(one["resources"])]
    assert found["event"] == "changed"
    assert found["resources"] == ["audited User:audited"]
    assert found["principal"] == "User:ANONYMOUS"


def audit_lines(served: Broker, request: str) -> list[str]:
    lines = served.log_path.read_text().splitlines()
    return [line for line in lines if "headrace.audit" in line and f'"{request}"' in line]


@pytest.mark.usefixtures("served")
def test_a_user_that_rotates_its_own_password_is_told_the_new_one():
    add_user("rita")
    run("acl", "add", "--principal", "User:rita", "--operation", "ALTER", "--cluster")
    run("acl", "add", "--principal", "User:rita", "--operation", "DESCRIBE", "--cluster")
    wait_until(lambda: "rita" in as_user("rita", PASSWORD, "user", "list").stdout, LONG_S)
    done = as_user("rita", PASSWORD, "user", "rotate", "rita", "--generate", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["mechanisms"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert as_user("rita", told["password"], "user", "list").exit_code == 0
    refused = as_user("rita", PASSWORD, "user", "list")
    assert refused.exit_code == 1
    assert "invalid credentials" in refused.output


def as_user(user: str, password: str, *command: str) -> Any:
    settings = settings_of(user, **{"sasl.password": password})
    options = [part for pair in settings.items() for part in ("-X", "=".join(pair))]
    return CliRunner().invoke(cli, ["--bootstrap", ADDRESSES[1], *options, *command])


def test_a_user_without_the_right_may_not_change_rules(served):
    add_user("mallory")
    admin = AdminClient(settings_of("mallory"))
    rule = AclBinding(ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:mallory", "*",
                      AclOperation.ALL, AclPermissionType.ALLOW)  # fmt: skip
    with pytest.raises(KafkaException) as refused:
        admin.create_acls([rule])[rule].result(TIMEOUT_S)
    assert refused.value.args[0].name() == "CLUSTER_AUTHORIZATION_FAILED"
    lines = served.log_path.read_text().splitlines()
    denied = [line for line in lines if "CreateAcls" in line and '"event":"denied"' in line]
    assert denied
    assert "User:mallory" in denied[0]
    assert all(PASSWORD not in line for line in lines)


@pytest.mark.usefixtures("served")
def test_kafka_python_creates_describes_and_deletes_rules():
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        KafkaAdminClient,
        ResourcePattern,
        ResourcePatternFilter,
    )
    from kafka.admin import ACLResourcePatternType as Pattern
    from kafka.admin import ResourceType as Kind

    admin = KafkaAdminClient(bootstrap_servers=ADDRESSES[0])
    try:
        rule = ACL("User:p", "*", ACLOperation.READ, ACLPermissionType.ALLOW,
                   ResourcePattern(Kind.TOPIC, "kafka-python", Pattern.LITERAL))  # fmt: skip
        made = admin.create_acls([rule])
        assert made["failed"] == []
        wanted = ACLFilter("User:p", None, ACLOperation.ANY, ACLPermissionType.ANY,
                           ResourcePatternFilter(Kind.ANY, None, Pattern.ANY))  # fmt: skip
        assert admin.describe_acls(wanted)[0] == [rule]
        ((_, deleted, _),) = admin.delete_acls([wanted])
        assert deleted == [rule]
    finally:
        admin.close()


@pytest.mark.usefixtures("served")
def test_two_tenants_have_a_topic_a_group_and_a_transaction_of_the_same_names():
    """With unmodified clients: librdkafka by a group and with transactions, kafka-python by a
    pattern. Each reads its own records, and sees its own names, without a prefix."""
    for user in ("tina", "tom"):
        add_user(user)
    for user in ("tina", "tom"):
        admin = AdminClient(settings_of(user))
        admin.create_topics([NewTopic("payments", 2)])["payments"].result(TIMEOUT_S)
        producer = Producer(settings_of(user, **{"transactional.id": "loader"}))
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for number in range(4):
            producer.produce("payments", f"{user} {number}".encode(), partition=number % 2)
        producer.commit_transaction(TIMEOUT_S)
    for user in ("tina", "tom"):
        expected = {f"{user} {number}".encode() for number in range(4)}
        admin = AdminClient(settings_of(user))
        assert set(admin.list_topics(timeout=TIMEOUT_S).topics) == {"payments"}
        for protocol in ("classic", "consumer"):
            more = {
                "group.id": f"readers-{protocol}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
            }
            consumer = Consumer(settings_of(user, **more))
            consumer.subscribe(["^pay.*"])
            found: set[bytes | None] = set()

            def is_read(consumer: Consumer = consumer, found: set[bytes | None] = found) -> bool:
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    found.add(message.value())
                return len(found) == 4

            wait_until(is_read, TIMEOUT_S)
            assert found == expected
            consumer.commit(asynchronous=False)
            consumer.close()
        groups = admin.list_consumer_groups().result(TIMEOUT_S).valid
        assert {one.group_id for one in groups} == {"readers-classic", "readers-consumer"}
        old = kafka.KafkaConsumer(
            bootstrap_servers=ADDRESSES[1],
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username=user,
            sasl_plain_password=PASSWORD,
            group_id="old-readers",
            auto_offset_reset="earliest",
            consumer_timeout_ms=TIMEOUT_S * 1_000,
        )
        old.subscribe(pattern="pay.*")
        values = {next(old).value for _ in range(4)}
        old.close()
        assert values == expected
    names = {"«acme»payments", "«beta»payments"}
    assert names <= set(admin_of(ADDRESSES[0]).list_topics(timeout=TIMEOUT_S).topics)
    (described,) = run("topic", "describe", "acme/payments")
    assert described["topic"] == "acme/payments"
    listed = {one["topic"] for one in run("topic", "list", "acme/*")}
    assert "acme/payments" in listed
    assert all(one.startswith("acme/") for one in listed)


def run_plainly(*arguments: str) -> None:
    done = CliRunner().invoke(cli, ["--bootstrap", ADDRESSES[0], *arguments])
    assert done.exit_code == 0, done.output


def run_as(user: str, *arguments: str) -> Any:
    """Of the command line, as a user who logs in."""
    options = [part for pair in settings_of(user).items() for part in ("-X", "=".join(pair))]
    asked = ["--bootstrap", ADDRESSES[1], *options, *arguments, "--json"]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.usefixtures("served")
def test_operators_name_groups_of_tenants_and_tenants_see_no_prefix(tmp_path):
    """Also where the default tenant has a group that is called so."""
    add_user("tina")
    for admin in (AdminClient(settings_of("tina")), admin_of(ADDRESSES[0])):
        admin.create_topics([NewTopic("bills", 1)])["bills"].result(TIMEOUT_S)
    anonymous = {"bootstrap.servers": ADDRESSES[0]}
    for settings, group in ((settings_of("tina"), "billing"), (anonymous, "acme/billing")):
        with_group = Consumer({**settings, "group.id": group})
        with_group.commit(offsets=[TopicPartition("bills", 0, 0)], asynchronous=False)
        with_group.close()

    def named() -> set[str]:
        return {one["group"] for one in run("group", "list") if "billing" in one["group"]}

    assert named() == {"acme/billing", "/acme/billing"}
    assert "billing" in {one["group"] for one in run_as("tina", "group", "list")}
    for group, topic in (("acme/billing", "acme/bills"), ("/acme/billing", "bills")):
        (described,) = run("group", "describe", group)
        assert described["group"] == group
        assert [one["topic"] for one in described["partitions"]] == [topic]
        moved = run("group", "reset", group, "--topic", topic, "--to", "latest")
        assert moved["group"] == group
    rule = ("--principal", "User:tina", "--operation", "READ", "--group", "acme/billing", "--deny")
    (added,) = run("acl", "add", *rule)["added"]
    assert added["name"] == "acme/billing"
    assert [one["name"] for one in run("acl", "list", "--group", "acme/billing")["acls"]] == [
        "acme/billing"
    ]
    assert "acme/billing" not in {
        one["name"] for one in run("acl", "list", "--group", "/acme/billing")["acls"]
    }
    run("acl", "remove", *rule[:-1])
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    for name in ("acme/ann", "/acme/ann"):
        run_plainly("user", "add", name, "--password-file", str(file))
    users = {one["user"] for one in run("user", "list")["users"]}
    assert {"acme/ann", "/acme/ann"} <= users
    assert [one["user"] for one in run("user", "list", "--tenant", "acme")["users"]] == ["ann"]
    for name in ("acme/ann", "/acme/ann"):
        run_plainly("user", "remove", name, "--yes")
    assert not users & {one["user"] for one in run("user", "list")["users"]} & {"acme/ann"}
    run("group", "delete", "acme/billing")
    assert named() == {"/acme/billing"}
    run("group", "delete", "/acme/billing")
    assert named() == set()


@pytest.mark.usefixtures("served")
def test_people_of_a_tenant_make_its_rules_with_their_usual_tools(tmp_path):
    """By the command line, by librdkafka and by Kafka's own tool, without a prefix anywhere; once
    the tenant is closed, these rules are what gives rights."""
    run("tenant", "create", "delta", "--principal", "User:dan", "--principal", "User:eve")
    for user in ("dan", "eve"):
        add_user(user)
    admin = AdminClient(settings_of("dan"))
    admin.create_topics([NewTopic("t", 1)])["t"].result(TIMEOUT_S)
    run("tenant", "set", "delta", "--access", "rules")
    to_dan = ("--principal", "User:dan", "--operation", "ALL", "--tenant", "delta")
    (added,) = run("acl", "add", *to_dan)["added"]
    assert (added["resource"], added["name"]) == ("CLUSTER", "delta/kafka-cluster")
    assert send("eve", "t") == "TOPIC_AUTHORIZATION_FAILED"
    eves = ("--principal", "User:eve", "--operation", "WRITE", "--topic", "t")
    (rule,) = run_as("dan", "acl", "add", *eves)["added"]
    assert (rule["name"], rule["pattern"]) == ("t", "LITERAL")
    wait_until(lambda: send("eve", "t") is None, TIMEOUT_S)
    assert [one["name"] for one in run("acl", "list", "--topic", "delta/t")["acls"]] == [
        "delta/t"
    ] * 2
    found = admin.describe_acls(
        AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None,
            AclOperation.ANY, AclPermissionType.ANY,
        )
    ).result(TIMEOUT_S)  # fmt: skip
    assert {(one.name, one.principal) for one in found} == {
        ("kafka-cluster", "User:dan"), ("t", "User:eve"),
    }  # fmt: skip
    config = tmp_path / "dan.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    login = f'{module} required username="dan" password="{PASSWORD}";'
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.jaas.config={login}\n"
    )

    def tool(*arguments: str, main: str = "org.apache.kafka.tools.AclCommand") -> str:
        at = ("--bootstrap-server", ADDRESSES[1], "--command-config", str(config))
        return session().run(main, *at, *arguments)

    run_as("dan", "quota", "set", "producer_byte_rate=1MiB", "--user", "eve")
    users = ("--entity-type", "users", "--entity-name", "eve")
    shown = tool("--describe", *users, main="kafka.admin.ConfigCommand")
    assert "producer_byte_rate=1048576.0" in shown
    assert "delta" not in shown
    tool("--alter", *users, "--delete-config", "producer_byte_rate",
         main="kafka.admin.ConfigCommand")  # fmt: skip
    assert run("quota", "list")["quotas"] == []

    everything = ("--allow-principal", "User:eve", "--operation", "Read", "--topic", "*")
    assert "name=*" in tool("--add", *everything)
    listed = tool("--list")
    assert "name=kafka-cluster" in listed
    assert "delta" not in listed
    patterns = {(one["name"], one["pattern"]) for one in run("acl", "list")["acls"]}
    assert ("delta/", "PREFIXED") in patterns
    assert "name=*" not in tool("--remove", "--force", *everything)
    run_as("dan", "acl", "remove", "--principal", "User:eve")
    assert {one["name"] for one in run_as("dan", "acl", "list")["acls"]} == {"kafka-cluster"}
    wait_until(lambda: send("eve", "t") == "TOPIC_AUTHORIZATION_FAILED", TIMEOUT_S)
    run("acl", "remove", *to_dan)


def test_clients_of_two_tenants_see_two_clusters(served, tmp_path):
    """Librdkafka, Java's, and commands, which compare what Kafka and HTTP say: over HTTP everybody
    is an operator here."""
    found = {"": run("info")["cluster_id"]}
    for user in ("tina", "tom"):
        add_user(user)
        admin = AdminClient(settings_of(user))
        found[user] = admin.list_topics(timeout=TIMEOUT_S).cluster_id
        assert admin.describe_cluster().result(TIMEOUT_S).cluster_id == found[user]
        config = tmp_path / f"{user}.properties"
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            f'sasl.jaas.config={module} required username="{user}" password="{PASSWORD}";\n'
        )
        at = ("--bootstrap-server", ADDRESSES[1], "--config", str(config))
        shown = session().run("org.apache.kafka.tools.ClusterTool", "cluster-id", *at)
        assert f"Cluster ID: {found[user]}" in shown
        assert run_as(user, "info")["cluster_id"] == found[user]
        assert run_as(user, "tenant", "list", "--http", served.http)["tenants"]
    assert found == {
        "": found[""],
        "tina": tenants_cluster_id(found[""], "acme"),
        "tom": tenants_cluster_id(found[""], "beta"),
    }


@pytest.mark.usefixtures("served")
def test_a_tenants_job_and_an_operators_that_keep_progress_in_one_group_exclude_each_other(
    tmp_path, monkeypatch
):
    """They see other cluster ids, and other names of the group."""
    monkeypatch.setattr(transfer, "cache_folder", lambda: tmp_path)
    add_user("tina")
    by_tina = Connection(ADDRESSES[1], settings_of("tina"))
    by_operator = Connection(ADDRESSES[0])
    with JobMarks(by_tina, "copy").lease():
        with pytest.raises(LeaseHeld), JobMarks(by_operator, "«acme»copy").lease():
            pass
        for group in ("copy", "«beta»copy"):
            with JobMarks(by_operator, group).lease():
                pass
    with (
        JobMarks(by_operator, "«acme»copy").lease(),
        pytest.raises(LeaseHeld),
        JobMarks(by_tina, "copy").lease(),
    ):
        pass


@pytest.mark.usefixtures("served")
def test_clients_of_a_tenant_see_kafkas_errors_at_its_limits():
    """With librdkafka: of stored bytes, groups and connections."""
    made = run("tenant", "create", "gamma", "--principal", "User:gus")
    assert not made["existed"]
    add_user("gus")
    admin = AdminClient(settings_of("gus"))
    admin.create_topics([NewTopic("payments", 1)])["payments"].result(TIMEOUT_S)

    def limit(text: str) -> None:
        run("tenant", "set", "gamma", "--limit", text)

    def used(what: str) -> int:
        return int(run("tenant", "describe", "gamma")["used"][what])

    def read(group: str) -> str | None:
        """The error of a consumer, or None: it got a record."""
        more = {"group.id": group, "auto.offset.reset": "earliest"}
        consumer = Consumer(settings_of("gus", **more))
        consumer.subscribe(["payments"])
        found: list[Any] = []

        def is_answered() -> bool:
            message = consumer.poll(0.2)
            # Errors below 0 are the client's own, as of a broker that answers late.
            if message is not None and (message.error() is None or message.error().code() > 0):
                found.append(message.error())
            return bool(found)

        wait_until(is_answered, LONG_S)
        consumer.close()
        return None if found[0] is None else str(found[0].name())

    wait_until(lambda: send("gus", "payments") is None, LONG_S)
    limit("groups=1")
    assert read("one") is None
    wait_until(lambda: used("groups") == 1, LONG_S)
    assert read("two") == "POLICY_VIOLATION"
    wait_until(lambda: send("gus", "payments") is None, LONG_S)
    assert read("one") is None
    limit("stored_bytes=10")
    wait_until(lambda: used("stored_bytes") > 10, LONG_S)
    wait_until(lambda: send("gus", "payments") == "POLICY_VIOLATION", LONG_S)
    limit("stored_bytes=")
    wait_until(lambda: send("gus", "payments") is None, LONG_S)
    limit("connections=1")
    wait_until(lambda: used("connections") >= 1, LONG_S)
    refused = send("gus", "payments")
    assert refused in {"_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_TRANSPORT"}, refused
    add_user("tina")
    AdminClient(settings_of("tina")).list_topics(timeout=LONG_S)  # others are not limited
    limit("connections=")
    wait_until(lambda: send("gus", "payments") is None, LONG_S)
    assert set(admin.list_topics(timeout=LONG_S).topics) == {"payments"}
