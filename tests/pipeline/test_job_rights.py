"""A job that lacks rights names the commands that give them, and has written nothing until then."""

import re
import shlex
import subprocess
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.integration.broker import Broker
from tests.pipeline.test_dead_letters import share

from headrace.dev_cluster.ports import free_port
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import ReadRefused, RightsMissing
from headrace.pipeline.jobs.redrive import RedriveConfig, run_redrive
from headrace.pipeline.jobs.replay import ReplayConfig, run_replay
from headrace.pipeline.jobs.resend import ResendConfig, run_resend
from headrace.pipeline.jobs.windows import Connection

PASSWORD, TIMEOUT_S = "a-password-of-the-test", 20
OPTIONS = (
    "--super-users=User:ANONYMOUS",
    "--listener-security-protocol-map=PLAINTEXT:PLAINTEXT,SECURE:SASL_PLAINTEXT",
    "--sasl-enabled-mechanisms=SCRAM-SHA-256",
)
TOPICS = ("source", "mirror", "copy", "origin", "letters", "letters.all")
WRITING = "--operation read --operation write --operation describe_configs"


def groups(kind):
    return f"--operation read --group {kind}. --group headrace-sink.{kind}. --prefix"


JOBS = {
    "replay": (
        ["replay", "source", "--to", "copy"],
        lambda at: lambda spark: run_replay(ReplayConfig(at, "source", "copy"), spark=spark),
        ["--operation read --topic source", f"{WRITING} --topic copy", groups("headrace-replay")],
    ),
    "resend": (
        ["resend", "source", "--from-topic", "mirror"],
        lambda at: (
            lambda spark: run_resend(ResendConfig(at, "source", source="mirror"), spark=spark)
        ),
        ["--operation read --topic mirror", f"{WRITING} --topic source", groups("headrace-resend")],
    ),
    # What letters say of their origins is known once they are read.
    "redrive": (
        ["dead", "redrive", "letters", "--where", "offset < 3"],
        lambda at: (
            lambda spark: run_redrive(RedriveConfig(at, "letters", "offset < 3"), spark=spark)
        ),
        [
            "--operation read --topic letters",
            groups("headrace-redrive"),
            "--operation describe --topic origin",
            "--operation write --operation describe_configs --topic letters",
            f"{WRITING} --topic origin",
        ],
    ),
    "redrive of all": (
        ["dead", "redrive", "letters.all"],
        lambda at: lambda spark: run_redrive(RedriveConfig(at, "letters.all"), spark=spark),
        [
            "--operation read --topic letters.all",
            groups("headrace-redrive"),
            "--operation describe --topic origin",
            f"{WRITING} --topic origin",  # and none to write letters that are kept: none is
        ],
    ),
}


class Served:
    """A broker with access control lists, and who gives rights: its operators, or people of a
    tenant in which no rule means no right."""

    def __init__(self, folder, tenant):
        self.tenant, self.key = tenant, f"«{tenant}»" * bool(tenant)
        self.broker = Broker(folder, *OPTIONS)
        self.plain, self.secure = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.broker.kafka = f"PLAINTEXT://{self.plain},SECURE://{self.secure}"
        self.broker.start()
        self.admin = AdminClient({"bootstrap.servers": self.plain})
        if tenant:
            self.run("tenant", "create", tenant, "--access", "rules")
            self.add("boss")
            self.run("acl", "add", "--principal", "User:boss", "--operation", "ALTER",
                     "--tenant", tenant)  # fmt: skip
        for name in TOPICS:
            create_topic(self.plain, self.key + name, 1, {"retention.ms": "-1"})
        producer = Producer({"bootstrap.servers": self.plain})
        for number in range(5):
            producer.produce(f"{self.key}source", b"%d" % number)
            producer.produce(f"{self.key}mirror", b"%d" % (number + 5))
            for name in ("letters", "letters.all"):
                producer.produce(self.key + name, b"v", headers=share("origin", number))
        assert producer.flush(TIMEOUT_S) == 0

    def add(self, user):
        login = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        made = UserScramCredentialUpsertion(user, login, PASSWORD.encode())
        self.admin.alter_user_scram_credentials([made])[user].result(TIMEOUT_S)
        if self.tenant:
            self.run("tenant", "set", self.tenant, "--add", f"User:{user}")

    def settings(self, user):
        return {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user, "sasl.password": PASSWORD,
        }  # fmt: skip

    def headrace(self, *words, user=None):
        login = [] if user is None else [f"-X{n}={v}" for n, v in self.settings(user).items()]
        at = self.plain if user is None else self.secure
        command = [sys.executable, "-m", "headrace", "--bootstrap", at, *login, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def run(self, *words):
        done = self.headrace(*words, user="boss" if self.tenant and words[:1] == ("acl",) and
                             "--tenant" not in words else None)  # fmt: skip
        assert done.returncode == 0, done.stderr

    def give(self, text):
        """Run the commands that an error names, as they are; returns them without the user."""
        found = re.findall(r"headrace (acl add [^;\n]*)", text)
        assert found, text
        for one in found:
            self.run(*shlex.split(one))
        return [re.sub(r"acl add --principal User:\S+ ", "", one) for one in found]

    def ends(self):
        cluster = ClusterClient({"bootstrap.servers": self.plain})
        names = tuple(self.key + name for name in TOPICS)
        return cluster.latest(cluster.partitions_of(names, None))


@pytest.fixture(scope="module", params=["", "acme"], ids=["cluster", "tenant"])
def served(request, tmp_path_factory):
    found = Served(tmp_path_factory.mktemp("rights"), request.param)
    yield found
    found.broker.stop()


READING = {
    "proof": ["proof", "source"],
    "backlog": ["backlog", "group", "source"],
    "replay": ["replay", "source", "--to", "copy"],
}


@pytest.mark.parametrize("job", READING)
def test_a_job_that_may_not_send_its_result_says_so_before_it_runs(served, job):
    user = f"{job}-results"
    served.add(user)
    refused = served.headrace("pipeline", *READING[job], "--results", "mirror", user=user)
    assert (refused.returncode, "Nothing was written" in refused.stderr) == (1, True), refused
    assert "Spark" not in refused.stderr
    given = served.give(refused.stderr)
    assert {"--operation read --topic source", "--operation write --topic mirror"} <= {*given}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_without_rights_names_the_commands_that_give_them(served, spark, job):
    words, made, wanted = JOBS[job]
    user = job.replace(" ", "-")
    served.add(user)
    before = served.ends()
    refused = served.headrace("pipeline", *words, user=user)
    assert (refused.returncode, "Nothing was written" in refused.stderr) == (1, True), refused
    given = served.give(refused.stderr)
    run = made(Connection(served.secure, served.settings(user)))
    while len(given) < len(wanted):
        with pytest.raises((ReadRefused, RightsMissing)) as failed:
            run(spark)
        assert served.ends() == before
        given += served.give(str(failed.value))
    assert run(spark).is_done
    assert given == wanted
    assert served.ends() != before
