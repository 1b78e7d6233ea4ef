"""The guides are followed: each command runs on one broker, after what its reader has done before.

What is not run is listed with the reason, so that the list says what readers alone would notice.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.documents.commands import ROOT, blocks
from tests.integration.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 180
_COMMAND = re.compile(r"headrace |curl |kafka-[a-z-]+\.sh |spark-pipelines ")

KAFKAS_TOOL = "a tool of Apache Kafka, which tests/integration runs"
ENDLESS = "runs until it is stopped"
SERVE = "starts a broker: tests/integration starts them with these options"
CLUSTER = "needs a cluster, which tests/cluster has"
SPARK = "needs Spark, or tables that it has made: tests/pipeline"
SEALED = "needs a full ledger, which tests/unit/inspection has"
ATTACKS = "attacks brokers of its own: tests/wire"
LOGIN = "needs a user that has logged in: tests/integration/test_sasl.py"
DAMAGE = "needs damaged data, which tests/integration/test_salvage.py has"

OPEN_WITH_RULES = ("--authorizer", "acl", "--super-users", "User:ANONYMOUS")
RECORDS = """
headrace topic create orders
seq 8 | jq -c '{key: "customer-\\(. % 4 + 6)", value: {amount: (. * 100)}, headers:
        {region: "eu", "headrace-tag": "vip", "headrace-message-id": "order-\\(. + 13)"}}' \\
    | headrace produce orders --format json
"""
LETTERS = """
headrace group set workers --dead-letter-topic orders.dead --start earliest
headrace config set headrace.share.key.order=true --group workers
headrace topic create orders.dead orders.later orders.retry --partitions 1
rejected=$(headrace queue receive orders workers --max 2 --wait 60s --json | jq -r .[].receipt)
headrace queue settle orders workers $(printf -- "--dead-letter %s " $rejected)
until headrace dead list orders.dead | grep -q workers; do sleep 0.2; done
"""
HALF = """
headrace topic alter orders --set headrace.message.attributes=read
for number in 17 18 19; do
    printf 1 | headrace produce orders -H headrace-half=shop -H headrace-message-id=order-$number
done
for id in order-17 order-18; do
    printf 1 | headrace produce orders -H headrace-delay=3600000 -H headrace-message-id=$id
done
"""

TRANSACTION = """
headrace topic create orders
python -c '
import os
from confluent_kafka import Producer
bootstrap = os.environ["HEADRACE_BOOTSTRAP"]
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "ID"})
producer.init_transactions()
producer.begin_transaction()
producer.produce("orders", b"1")
producer.commit_transaction()'
"""


class Guide(NamedTuple):
    """What a page supposes."""

    before: str = ""
    """A script: what its reader has done already."""
    replaced: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    """What the reader replaces, by his own values or by what there is here: shell code."""
    not_run: dict[str, str] = {}  # noqa: RUF012
    """The reasons, by how a command begins."""
    options: tuple[str, ...] = ()
    """Of its broker; `{folder}` is the test's."""


GUIDES = {
    "ADMINISTRATION": Guide(not_run={"kafka-": KAFKAS_TOOL}),
    "CLUSTER": Guide(
        not_run={"headrace serve": SERVE, "headrace cluster": CLUSTER},
    ),
    "COMPACTION": Guide(),
    "CONFIGURATION": Guide(
        replaced={
            "--broker 2": "--broker 0",
            "s3://backups/monday --data-dir /var/lib/headrace-restored": "file://$PWD/objects/monday"
            " --data-dir downloaded",
            "s3://backups": "file://$PWD/objects",
            "/var/lib/headrace-restored": "restored",
            "/var/lib/headrace": "$DATA",
            "/backup/": "",
        },
        not_run={"headrace serve": SERVE},
    ),
    "GROUPS": Guide(f"{RECORDS}headrace consume orders --group billing --count 3"),
    "HTTP": Guide(
        not_run={"headrace serve": SERVE, "curl -N": ENDLESS},
    ),
    "INSPECTION": Guide(
        f"{RECORDS}{LETTERS}headrace consume orders --group billing --count 3\n"
        "headrace backup copy --data-dir $DATA && headrace restore copy --data-dir headrace-data",
        replaced={
            "./headrace-data 5": "./headrace-data $(headrace dump ledgers ./headrace-data --json"
            " | jq -s .[0].ledger)",
        },
        not_run={
            "headrace dump segment": SEALED,
            "headrace dump footer": SEALED,
            "headrace salvage": DAMAGE,
        },
    ),
    "MONITORING": Guide(),
    "MOVING": Guide(
        """
        headrace topic create orders
        echo '{"value": "1", "headers": {"routing-key": "a"}}' > messages.jsonl
        """,
    ),
    "PIPELINE": Guide(
        "headrace topic create orders; headrace topic create customers",
        not_run={
            "headrace pipeline": SPARK,
            "headrace table status": SPARK,
            "headrace find": SPARK,
            "spark-pipelines": SPARK,
        },
    ),
    "PRODUCTION": Guide(
        replaced={
            "--secure /etc/headrace --data-dir /var/lib/headrace": "--secure configuration"
            " --data-dir another",
            "10.0.0.5": "127.0.0.1",
            "/etc/headrace": "configuration",
            "/etc/systemd/system/": "",
            "/var/lib/headrace-restored": "restored",
            "/var/lib/headrace": "$DATA",
            "/backup/": "",
        },
        options=OPEN_WITH_RULES,
    ),
    "QUEUES": Guide(
        RECORDS + LETTERS + HALF,
        replaced={
            "--ack RECEIPT --nack RECEIPT": "$(printf -- '--ack %s --nack %s' $(headrace queue"
            " receive orders workers --max 2 --wait 60s --json | jq -r .[].receipt))",
            "dead purge": "dead purge --yes",
            "--wait 20s": "--max 1",
            '"max": 10': '"max": 1',
            "headrace dead edit": "headrace queue settle orders workers --dead-letter $(headrace"
            " queue receive orders workers --max 1 --wait 60s --json | jq -r .[].receipt);"
            " until headrace dead show orders.dead | grep -q 0:2; do sleep 0.2; done;"
            " headrace dead edit",
            "0:17": "0:2",
            "--until 2013": "--until 2113",
            "2:1745": "0:0",
        },
        not_run={"headrace queue watch": ENDLESS, "kafka-share-groups.sh": KAFKAS_TOOL},
    ),
    "QUOTAS": Guide(),
    "MODELS": Guide(),
    "SECURITY": Guide(
        f"headrace cert dev tls; cp tls/* .; headrace user add billing --generate\n{RECORDS}",
        replaced={
            "./broker": "./secured",
            "10.0.0.5": "127.0.0.1",
            "/var/lib/headrace": "another",
            "user add alice": "user add alice --generate",
        },
        not_run={"headrace serve": SERVE, "headrace verify": ATTACKS, "headrace key": LOGIN},
        options=OPEN_WITH_RULES,
    ),
    "SECURING": Guide(
        "echo secret-of-the-user > billing-password",
        not_run={"headrace user add admin": CLUSTER},
        options=OPEN_WITH_RULES,
    ),
    "TENANTS": Guide(
        replaced={
            "headrace topic share acme/orders": "headrace topic create «acme»orders;"
            " headrace topic share acme/orders",
            "--force": "--force --yes",
            "user add alice --tenant acme": "user add alice --tenant acme --generate",
            "headrace user add alice --tenant beta": "headrace tenant create beta;"
            " headrace user add alice --tenant beta --generate",
        },
        not_run={"headrace serve": SERVE},
        options=OPEN_WITH_RULES,
    ),
    "TIERING": Guide(
        not_run={
            "headrace serve": SERVE,
            "headrace topic alter orders --set headrace.table.replaces.objects": SPARK,
        },
        options=("--objects", "file://{folder}/objects"),
    ),
    "TRANSACTIONS": Guide(TRANSACTION),
}
"""Without those that only say how to start brokers, and those with tests of their own."""


def typed(page: str) -> Iterator[str]:
    """The commands of a page, in its order."""
    for language, text in blocks(ROOT / "docs" / f"{page}.md"):
        if language in {"", "sh", "bash"}:
            lines = map(str.strip, text.replace("\\\n", " ").splitlines())
            yield from filter(_COMMAND.match, lines)


@pytest.fixture
def broker(tmp_path: Path, page: str) -> Iterator[Broker]:
    started = Broker(
        tmp_path / "broker", *(one.format(folder=tmp_path) for one in GUIDES[page].options)
    ).start()
    yield started
    started.stop()


@pytest.mark.skipif(None in map(shutil.which, ("curl", "jq")), reason="no curl, or no jq")
@pytest.mark.parametrize("page", GUIDES)
def test_commands_do_what_the_page_says(broker: Broker, tmp_path: Path, page: str) -> None:
    guide = GUIDES[page]
    programs = str(Path(sys.executable).parent)
    env = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HEADRACE_BOOTSTRAP": broker.kafka,
        "HEADRACE_HTTP": broker.http,
        "XDG_CONFIG_HOME": str(tmp_path),
        "DATA": str(broker.data_dir),
    }

    def run(text: str) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"

    run(guide.before)
    skipped = set()
    for command in typed(page):
        reason = next((start for start in guide.not_run if command.startswith(start)), None)
        if reason is not None:
            skipped.add(reason)
            continue
        text = command.replace("127.0.0.1:9180", shlex.quote(broker.http))
        for word, value in guide.replaced.items():
            text = text.replace(word, value)
        run(text.replace("curl ", "curl --fail-with-body -sS ", 1))
    assert skipped == guide.not_run.keys(), "these are on the page no longer"
