"""Every command as a user types it, against a broker started as a user starts it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
import termios
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyte
import pytest
from tests.waiting import wait_until

HEADRACE = str(Path(sys.executable).parent / "headrace")
LIMIT_S = 120


@dataclass
class Ran:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def lines(self) -> list[str]:
        assert self.code == 0, self.err
        return self.out.splitlines()


class User:
    """Somebody at a shell, with HEADRACE_BOOTSTRAP set."""

    def __init__(self, bootstrap: str) -> None:
        self.env = {**os.environ, "HEADRACE_BOOTSTRAP": bootstrap}
        self.bootstrap = bootstrap

    def types(self, *arguments: str, stdin: str | bytes = b"") -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [HEADRACE, *arguments], input=data, capture_output=True, env=self.env, timeout=LIMIT_S
        )
        ran = Ran(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode())
        assert "Traceback" not in ran.err
        return ran

    def starts(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [HEADRACE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
        )


def ends(child: subprocess.Popen[bytes], number: int = signal.SIGINT) -> tuple[int, str, str]:
    child.send_signal(number)
    out, err = child.communicate(timeout=LIMIT_S)
    return child.returncode, out.decode(), err.decode()


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    command = [HEADRACE, "serve", "--data-dir", str(folder / "data"), "--json"]
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(
            [*command, "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=log,
        ) as broker,
    ):
        assert broker.stdout is not None
        line = broker.stdout.readline()
        assert line, (folder / "log").read_text()
        yield User(json.loads(line)["kafka"])
        broker.terminate()
        assert broker.wait(LIMIT_S) == 0
        assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture
def topic(user, name):
    """A topic with two partitions, of the test's own name."""
    assert user.types("topic", "create", name, "-p", "2").code == 0
    return name


# --- info and topics -------------------------------------------------------------------------


def test_info(user):
    info = user.types("info", "--json").json()
    assert info["brokers"][0]["host"] == "127.0.0.1"
    assert f"127.0.0.1:{info['brokers'][0]['port']}" == user.bootstrap
    assert info["cluster_id"]
    assert {"Produce", "Fetch", "JoinGroup"} <= {api["name"] for api in info["apis"]}
    text = user.types("info", "--apis")
    assert info["cluster_id"] in text.out
    assert "Produce" in text.out


def test_settings_of_a_group_are_shown_and_changed(user):
    def get(name):
        return user.types("config", "get", name, "--group", "workers").lines()

    of_group = "--group", "workers"
    name = "share.delivery.count.limit"
    (default,) = get(name)
    assert user.types("config", "list", *of_group, "--json").json() == {
        "group": "workers",
        "settings": [],
    }
    dry = user.types("config", "set", f"{name}=9", *of_group, "--dry-run", "--json").json()
    assert dry == {"group": "workers", "changes": {name: "9"}, "dry_run": True}
    assert get(name) == [default]
    sql = "headrace.share.filter.sql=region = 'eu' AND amount > 1"
    done = user.types("config", "set", f"{name}=9", sql, *of_group)
    assert f"changed for group workers: {name}=9" in done.out
    assert (get(name), get("headrace.share.filter.sql")) == (
        ["9"],
        ["region = 'eu' AND amount > 1"],
    )
    rows = user.types("config", "list", *of_group, "--json").json()["settings"]
    assert {row["name"]: row["source"] for row in rows} == {
        name: "group",
        "headrace.share.filter.sql": "group",
    }
    assert "share.auto.offset.reset" in user.types("config", "list", *of_group, "--all").out
    user.types("config", "unset", name, "headrace.share.filter.sql", *of_group).lines()
    assert get(name) == [default]
    refused = user.types("config", "set", f"{name}=none", *of_group)
    assert refused.code == 1
    assert name in refused.err
    assert user.types("config", "get", "none.such", *of_group).code == 3
    for wrong in (("--group", ""), ("--group", "workers", "--broker", "0")):
        assert user.types("config", "list", *wrong).code == 2


def test_order_retries_and_dead_letters_of_a_group_are_set_by_options(user):
    def own():
        rows = user.types("config", "list", "--group", "ordered", "--json").json()["settings"]
        return {row["name"]: row["value"] for row in rows}

    options = ["--ordered", "--attempts", "5", "--retry-after", "0.5s,10s,1m"]
    options += ["--dead-letter-topic", "dlq.ordered", "--start", "earliest"]
    changes = {
        "headrace.share.key.order": "true",
        "share.delivery.count.limit": "5",
        "headrace.share.retry.backoff.ms": "500,10000,60000",
        "errors.deadletterqueue.topic.name": "dlq.ordered",
        "share.auto.offset.reset": "earliest",
    }
    dry = user.types("group", "set", "ordered", *options, "--dry-run", "--json").json()
    assert dry == {"group": "ordered", "changes": changes, "dry_run": True}
    assert own() == {}
    done = user.types("group", "set", "ordered", *options)
    assert "changed for group ordered: share.delivery.count.limit=5" in done.out
    assert own() == changes

    user.types("group", "set", "ordered", "--unordered").lines()
    assert own() == changes | {"headrace.share.key.order": "false"}
    too_many = user.types("group", "set", "ordered", "--ordered", "--attempts", "1000000")
    assert too_many.code == 1
    assert "share.delivery.count.limit" in too_many.err
    for wrong in (["ordered"], ["", "--ordered"], ["ordered", "--retry-after", "1s,soon"]):
        assert user.types("group", "set", *wrong).code == 2
    assert own()["headrace.share.key.order"] == "false", "all of them are changed, or none"


def test_settings_of_brokers_are_changed_while_they_run(user):
    dry = user.types("config", "set", "num.partitions=4", "--dry-run", "--json").json()
    assert dry == {"broker": None, "changes": {"num.partitions": "4"}, "dry_run": True}
    assert user.types("config", "get", "num.partitions").lines() == ["1"]
    user.types("config", "set", "num.partitions=4", "headrace.log.level=warning").lines()
    try:
        user.types("config", "set", "--broker", "0", "num.partitions=5").lines()
        assert user.types("config", "get", "num.partitions").lines() == ["5"]
        assert user.types("topic", "create", "by-default", "--json").code == 0
        (topic,) = user.types("topic", "list", "by-default", "--json").json()
        assert topic["partitions"] == 5
        listed = user.types("config", "list", "--json").json()["settings"]
        found = {row["name"]: row for row in listed}
        assert found["num.partitions"]["source"] == "this broker"
        assert found["headrace.log.level"]["source"] == "all brokers"
        of_all = user.types("config", "list", "--for-all", "--json").json()
        assert (of_all["broker"], [one["name"] for one in of_all["settings"]]) == (
            None,
            ["headrace.log.level", "num.partitions"],
        )
        assert user.types("config", "list", "--for-all", "--broker", "0").code == 2
        assert found["listeners"]["live"] is False
        assert "log.retention.ms" not in found
        assert "log.retention.ms" in user.types("config", "list", "--all").out
        for change, message in (
            ("num.partitions=0", "from 1 to 10000"),
            ("listeners=127.0.0.1:1", "--kafka"),
            ("none.such=1", "unknown configuration"),
            ("num.partition=1", "did you mean num.partitions?"),
        ):
            refused = user.types("config", "set", change)
            assert refused.code == 1
            assert message in refused.err
        assert user.types("config", "set", "num.partitions").code == 2
        assert user.types("config", "get", "none.such").code == 3
        assert user.types("config", "list", "--broker", "77").code == 3
    finally:
        user.types("config", "unset", "num.partitions", "--broker", "0").lines()
        user.types("config", "unset", "num.partitions", "headrace.log.level").lines()
    assert user.types("config", "get", "num.partitions").lines() == ["1"]


def test_the_life_of_a_topic(user):
    made = user.types(
        "topic", "create", "life", "--partitions", "3", "--set", "retention.ms=3600000", "--json"
    )
    assert made.json() == [{"topic": "life", "created": True}]
    again = user.types("topic", "create", "life")
    assert (again.code, again.out) == (5, "")
    assert again.err.count("already exists") == 1
    assert user.types("topic", "create", "life", "--if-not-exists").code == 0

    (listed,) = user.types("topic", "list", "li*", "--json").json()
    assert listed == {"topic": "life", "partitions": 3, "replication_factor": 1}
    assert user.types("topic", "list", "li*").lines()[1].split() == ["life", "3", "1"]

    (described,) = user.types("topic", "describe", "life", "--json").json()
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    config = {entry["name"]: entry["value"] for entry in described["config"]}
    assert config == {"retention.ms": "3600000"}

    altered = user.types(
        *("topic", "alter", "life", "-p", "5", "--set", "flush.ms=1000", "--unset", "retention.ms")
    )
    assert altered.code == 0, altered.err
    (described,) = user.types("topic", "describe", "life", "--json").json()
    assert len(described["partitions"]) == 5
    assert {entry["name"] for entry in described["config"]} == {"flush.ms"}
    assert "flush.ms = 1000" in user.types("topic", "describe", "life").out

    fewer = user.types("topic", "alter", "life", "-p", "2")
    assert fewer.code == 1
    assert "cannot be reduced" in fewer.err
    wrong = user.types("topic", "alter", "life", "--set", "no.such.setting=1")
    assert wrong.code == 1
    assert "no.such.setting" in wrong.err

    assert user.types("topic", "delete", "life", "--yes", "--json").json() == [
        {"topic": "life", "deleted": True}
    ]
    gone = user.types("topic", "delete", "life", "-y")
    assert gone.code == 3
    assert "no topic 'life'" in gone.err
    assert user.types("topic", "delete", "life", "-y", "--if-exists").code == 0
    assert user.types("topic", "describe", "life").code == 3


def test_a_topic_is_not_deleted_unasked(user, topic):
    ran = user.types("topic", "delete", topic)
    assert ran.code == 2
    assert "--yes" in ran.err
    assert user.types("topic", "describe", topic).code == 0


def test_a_misspelt_client_setting_is_named(user, topic):
    for command in (("topic", "list"), ("produce", topic), ("consume", topic, "--count", "1")):
        ran = user.types("-X", "soket.timeout.ms=5", *command)
        assert ran.code == 2
        assert "soket.timeout.ms" in ran.err
        assert "broker's log" not in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bootstrap", "{}", "topic", "list"),
        ("topic", "--bootstrap", "{}", "list"),
        ("topic", "list", "--bootstrap", "{}"),
    ],
)
def test_the_broker_may_be_named_before_and_after_the_command(user, arguments):
    words = [word.format(user.bootstrap) for word in arguments]
    user.env["HEADRACE_BOOTSTRAP"] = "127.0.0.1:1"
    try:
        assert user.types(*words).code == 0
    finally:
        user.env["HEADRACE_BOOTSTRAP"] = user.bootstrap


def test_an_illegal_topic_name_is_refused(user):
    ran = user.types("topic", "create", "../escape")
    assert ran.code != 0
    assert "invalid topic name" in ran.err


# --- produce and consume ---------------------------------------------------------------------


def test_lines_go_in_and_come_out(user, topic):
    lines = [f"line {number}" for number in range(1000)]
    sent = user.types("produce", topic, "--json", stdin="\n".join(lines))
    assert sent.json()["records"] == 1000
    assert sent.json()["failed"] == 0
    assert sorted(user.types("consume", topic).lines()) == sorted(lines)
    (listed,) = user.types("topic", "list", topic, "--records", "--json").json()
    assert listed["records"] == 1000
    (listed,) = user.types("topic", "list", topic, "--figures", "--json").json()
    assert (listed["records"], listed["lags"]) == (1000, [])
    assert listed["records_in_per_s"] > 0
    assert topic in user.types("topic", "list", topic, "--figures").out
    parts = user.types("topic", "ledgers", topic, "--json").json()["partitions"]
    assert sum(one["end_offset"] for part in parts for one in part["ledgers"]) == 1000
    # Records without a key go where the client's chance puts them: one partition may have none.
    fullest = max(parts, key=lambda part: sum(one["end_offset"] for one in part["ledgers"]))
    number = str(fullest["partition"])
    assert "in the ledger store" in user.types("topic", "ledgers", topic, "-p", number).out
    hot = user.types("topic", "hot-keys", topic, "-p", number, "--records", "10", "--json")
    counted = hot.json()
    assert (counted["records"], counted["is_whole"]) == (10, True)
    assert "10 records with" in user.types("topic", "hot-keys", topic, "-p", number, "-n", "10").out
    assert user.types("group", "history", "nobody", "--json").json()["points"] == []


def test_the_last_hour_of_the_brokers_is_shown_as_lines(user, topic):
    def shown(*more):
        return user.types("cluster", "history", *more)

    wait_until(lambda: shown("--here", "--json").json()["points"])
    told = shown("--here").out
    assert "records_in_per_s" in told
    assert "LAST" in told
    assert {"interval_ms", "points"} <= {*shown("--json").json()}


def test_topics_of_dead_letters_are_listed_with_their_records(user, topic):
    user.types("topic", "create", f"{topic}.dead")
    setting = f"errors.deadletterqueue.topic.name={topic}.dead"
    user.types("config", "set", setting, "--group", f"{topic}-workers")
    user.types("produce", f"{topic}.dead", stdin="dead")
    found = {one["name"]: one["records"] for one in user.types("dead", "topics", "--json").json()}
    assert found[f"{topic}.dead"] == 1
    assert f"{topic}.dead" in user.types("dead", "topics").out


def test_keys_headers_and_times(user, topic):
    user.types("topic", "alter", topic, "--set", "retention.ms=-1")  # keeps records of 2013
    sent = user.types(
        *("produce", topic, "-K", ":", "-H", "source=test", "-t", "@1359633600000", "-z", "lz4"),
        stdin="a:1\nb:2\na:3\n",
    )
    assert sent.code == 0
    assert "produced 3 records" in sent.err
    got = [json.loads(line) for line in user.types("consume", topic, "--json").lines()]
    assert sorted((d["key"], d["value"]) for d in got) == [("a", "1"), ("a", "3"), ("b", "2")]
    assert all(d["headers"] == [{"key": "source", "value": "test"}] for d in got)
    assert {d["timestamp"] for d in got} == {1_359_633_600_000}
    assert len({d["partition"] for d in got if d["key"] == "a"}) == 1
    columns = user.types("consume", topic, "--keys", "--headers", "--times").lines()
    assert "2013-01-31T12:00:00.000Z\tsource=test\tb\t2" in columns


def test_json_lines_go_from_topic_to_topic(user, topic):
    records = [
        {"key": "k", "value": {"n": 1}, "headers": {"h": "x"}, "partition": 1, "timestamp": 1000},
        {"value_base64": "/wA=", "partition": 0, "timestamp": 2000},
        {"key": "k", "value": None, "partition": 1, "timestamp": 3000},
    ]
    lines = "\n".join(json.dumps(record) for record in records)
    assert user.types("produce", topic, "-f", "json", stdin=lines).code == 0
    first = user.types("consume", topic, "--json")
    copy = f"{topic}-copy"
    assert user.types("topic", "create", copy, "-p", "2").code == 0
    assert user.types("produce", copy, "-f", "json", stdin=first.out).code == 0
    second = user.types("consume", copy, "--json")
    assert sorted(second.lines()) == sorted(line.replace(topic, copy) for line in first.lines())
    values = {d["timestamp"]: d for d in map(json.loads, first.lines())}
    assert values[1000]["value"] == '{"n":1}'
    assert values[2000]["value_base64"] == "/wA="
    assert values[3000]["value"] is None


def test_files_go_in_and_out_whole(user, topic, tmp_path):
    image = bytes(range(256)) * 40
    (tmp_path / "image.png").write_bytes(image)
    sent = user.types(
        *("produce", topic, "-f", "file", "--key-from-name", "-p", "1"), str(tmp_path / "image.png")
    )
    assert sent.code == 0, sent.err
    done = subprocess.run(
        [HEADRACE, "consume", topic, "-p", "1", "-n", "1", "--format", "raw"],
        capture_output=True,
        env=user.env,
        timeout=LIMIT_S,
    )
    assert done.stdout == image
    assert user.types("consume", topic, "-T", r"{key} {size}\n").lines() == ["image.png 10240"]


def test_positions(user, topic):
    stdin = "\n".join(
        json.dumps({"value": str(n), "partition": 0, "timestamp": 1000 * n + 1}) for n in range(10)
    )
    assert user.types("produce", topic, "-f", "json", stdin=stdin).code == 0

    def values(*options: str) -> str:
        return "".join(user.types("consume", topic, *options).lines())

    assert values() == "0123456789"
    assert values("--from", "4", "--to", "7") == "456"
    assert values("--from", "-3") == "789"
    assert values("--from", "@5000", "--to", "@8000") == "567"
    assert values("--from", "1970-01-01T00:00:07.5Z") == "89"
    assert values("--from", "latest") == ""
    assert values("-n", "2", "-o") == "0:0\t00:1\t1"
    assert values("--from", "1h") == ""


def test_the_last_records_are_records_and_not_markers_of_transactions(user, topic):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": user.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for number in range(10):
        producer.begin_transaction()
        producer.produce(topic, str(number), partition=0)
        producer.flush()
        if number % 3 == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()

    def values(*options: str) -> str:
        return "".join(user.types("consume", topic, *options).lines())

    assert values() == "0134679"
    assert values("--from", "-3") == "679"
    assert values("--from", "-5") == "34679"
    assert values("--from", "-100") == "0134679"
    assert values("--from", "-4", "--uncommitted") == "6789"
    assert values("-p", "1") == ""
    none = user.types("consume", topic, "-p", "7")
    assert none.code == 3
    assert "no partition 7, only 0 to 1" in none.err


def test_follow_shows_what_arrives_and_ends_by_ctrl_c(user, topic):
    child = user.starts("consume", topic, "--follow", "--from", "earliest")
    assert user.types("produce", topic, stdin="first\n").code == 0
    assert child.stdout is not None
    assert child.stdout.readline() == b"first\n"
    assert user.types("produce", topic, stdin="second\n").code == 0
    assert child.stdout.readline() == b"second\n"
    assert ends(child) == (0, "", "")


def test_a_reader_that_leaves_is_no_failure(user, topic):
    assert user.types("produce", topic, stdin="x" * 50 + "\n" * 20_000).code == 0
    piped = f"{HEADRACE} consume {topic} | head -n 1; echo ${{PIPESTATUS[*]}}"
    done = subprocess.run(
        ["bash", "-c", piped], capture_output=True, text=True, env=user.env, timeout=LIMIT_S
    )
    assert done.stdout.splitlines()[-1] == "0 0"
    assert done.stderr == ""


def test_a_topic_that_is_not_there_is_not_made_by_mistake(user):
    ran = user.types("produce", "mistyped", stdin="x\n")
    assert (ran.code, ran.out) == (3, "")
    assert "no topic 'mistyped'" in ran.err
    assert user.types("consume", "mistyped").code == 3
    assert user.types("topic", "list", "mistyped", "--json").json() == []
    assert user.types("produce", "wanted", "--create", stdin="x\n").code == 0
    assert "did you mean 'wanted'?" in user.types("consume", "wantd").err
    assert user.types("consume", "wanted").lines() == ["x"]


def test_a_record_that_is_too_large_is_a_failure_in_words(user, topic):
    assert user.types("topic", "alter", topic, "--set", "max.message.bytes=1000").code == 0
    ran = user.types("produce", topic, "--json", stdin="x" * 2000)
    assert ran.code == 1
    assert json.loads(ran.out)["failed"] == 1
    assert "larger than the topic allows" in ran.err
    assert f"topic alter {topic} --set max.message.bytes=" in ran.err
    assert "max.message.bytes" in ran.err


def test_a_malformed_attribute_is_named_with_what_is_allowed(user, topic):
    setting = "headrace.message.attributes=read"
    assert user.types("topic", "alter", topic, "--set", setting).code == 0
    ran = user.types("produce", topic, "-H", "headrace-delay=soon", stdin="x\n")
    assert ran.code == 1
    assert "header headrace-delay holds 'soon': set it to a number from 0 to" in ran.err
    assert "compact" not in ran.err


def test_a_record_without_a_key_is_refused_by_a_compacted_topic_in_words(user, topic):
    assert user.types("topic", "alter", topic, "--set", "cleanup.policy=compact").code == 0
    ran = user.types("produce", topic, stdin="no key\n")
    assert ran.code == 1
    assert "INVALID_RECORD" in ran.err or "does not accept such records" in ran.err
    assert "--key-separator" in ran.err
    assert user.types("produce", topic, "-K", ":", stdin="key:value\n").code == 0


def test_a_bad_line_is_named_and_the_ones_before_it_are_stored(user, topic):
    ran = user.types("produce", topic, "-f", "json", stdin='{"value": "good"}\nbad\n')
    assert ran.code == 1
    assert "line 2 of stdin is not valid JSON: Expecting value at column 1" in ran.err
    assert user.types("consume", topic).lines() == ["good"]


# --- groups ----------------------------------------------------------------------------------


def test_the_life_of_a_group(user, topic):
    stdin = "\n".join(
        json.dumps({"value": str(n), "partition": n % 2, "timestamp": 1000 * n + 1})
        for n in range(10)
    )
    assert user.types("produce", topic, "-f", "json", stdin=stdin).code == 0
    assert len(user.types("consume", topic, "--group", "life").lines()) == 10
    assert user.types("consume", topic, "--group", "life").lines() == []

    listed = user.types("group", "list", "--lag", "--json").json()
    mine = next(row for row in listed if row["group"] == "life")
    assert (mine["state"], mine["lag"], mine["lag_s"]) == ("Empty", 0, 0.0)

    sent_s = time.time()
    fresh = json.dumps({"value": "new", "partition": 1})
    assert user.types("produce", topic, "-f", "json", stdin=fresh).code == 0
    (group,) = user.types("group", "describe", "life", "--json").json()
    assert group["lag"] == 1
    assert 0 <= group["lag_s"] <= time.time() - sent_s + 0.1
    one = next(p for p in group["partitions"] if p["partition"] == 1)
    assert (one["committed"], one["latest"], one["lag"]) == (5, 6, 1)
    assert "1 message behind" in user.types("group", "describe", "life").out

    tried = user.types("group", "reset", "life", "--to", "earliest", "--dry-run", "--json").json()
    assert [p["after"] for p in tried["partitions"]] == [0, 0]
    assert user.types("group", "describe", "life", "--json").json()[0]["lag"] == 1

    moves = {
        ("--to", "earliest"): [0, 0],
        ("--shift-by", "2"): [2, 2],
        ("--to", "@6500"): [4, 3],
        ("--to", "3"): [3, 3],
        ("--to", "-1"): [4, 5],
        ("--to", "1h"): [5, 5],
        ("--to", "latest"): [5, 6],
    }
    for options, expected in moves.items():
        moved = user.types("group", "reset", "life", *options, "--json").json()
        assert [p["after"] for p in moved["partitions"]] == expected, options
    table = user.types("group", "reset", "life", "--topic", topic, "-p", "1", "--to", "0")
    assert "6 records are read again" in table.out
    (group,) = user.types("group", "describe", "life", "--json").json()
    assert group["lag"] == 6
    assert group["lag_s"] > 1_000_000_000  # the first unread record is from 1970

    assert user.types("group", "delete", "life", "--json").json() == [
        {"group": "life", "deleted": True}
    ]
    assert user.types("group", "delete", "life").code == 3
    assert user.types("group", "describe", "life").code == 3
    assert user.types("group", "reset", "life", "--to", "latest").code == 3


def test_an_active_group_is_not_moved_and_not_deleted(user, topic):
    child = user.starts("consume", topic, "--group", "active", "--follow")
    assert user.types("produce", topic, stdin="x\n").code == 0
    assert child.stdout is not None
    assert child.stdout.readline() == b"x\n"
    (group,) = user.types("group", "describe", "active", "--json").json()
    assert group["state"] == "Stable"
    assert [member["client_id"] for member in group["members"]] == ["headrace-cli"]
    assert len(group["members"][0]["partitions"]) == 2
    refused = user.types("group", "reset", "active", "--to", "earliest")
    assert refused.code == 5
    assert "group 'active' is active (Stable, 1 members)" in refused.err
    assert user.types("group", "delete", "active").code == 5
    assert ends(child) == (0, "", "")
    (group,) = user.types("group", "describe", "active", "--json").json()
    assert (group["state"], group["lag"]) == ("Empty", 0)


# --- completion ------------------------------------------------------------------------------


def test_the_shell_completes_topics(user, topic):
    user.env.update(
        {
            "_HEADRACE_COMPLETE": "bash_complete",
            "COMP_WORDS": f"headrace consume {topic[:8]}",
            "COMP_CWORD": "2",
        }
    )
    try:
        ran = user.types()
    finally:
        del user.env["_HEADRACE_COMPLETE"]
    assert f"plain,{topic}" in ran.lines()


def test_the_time_of_a_produce_has_no_wait_for_a_producer_id_in_it(user, name):
    """The client library asks for one every half second until it is connected."""
    user.types("topic", "create", name)
    fastest = min(
        user.types("produce", name, "--json", stdin="a\nb\n").json()["seconds"] for _ in range(3)
    )
    assert fastest < 0.4


# --- several topics, other formats ------------------------------------------------------------


def test_several_topics_and_patterns_are_read_by_one_command(user):
    for name in ("many-a", "many-b", "many.c"):
        assert user.types("topic", "create", name, "-p", "2").code == 0
        assert user.types("produce", name, "--key", "k", stdin=f"in {name}\n").code == 0
    lines = user.types("consume", "many-*", "many.c", "-f", r"%t %k %K %S %s%%\n").lines()
    names = ("many-a", "many-b", "many.c")
    assert sorted(lines) == [f"{name} k 1 9 in {name}%" for name in names]
    nothing = user.types("consume", "mani-*")
    assert (nothing.code, "no topic matches 'mani-*'" in nothing.err) == (3, True)
    unknown = user.types("consume", "many-a", "-f", "%q")
    assert (unknown.code, "Unknown field '%q'" in unknown.err) == (2, True)

    child = user.starts(
        "consume",
        "many[-.]*",
        "--group",
        "many",
        "--follow",
        "-X",
        "topic.metadata.refresh.interval.ms=500",
    )
    assert child.stdout is not None
    assert min(child.stdout.readline() for _ in range(3)) == b"in many-a\n"
    assert user.types("topic", "create", "many-later").code == 0
    assert user.types("produce", "many-later", stdin="later\n").code == 0
    assert child.stdout.readline() == b"later\n"
    assert ends(child)[0] == 0


def test_a_start_beyond_the_end_says_so(user, topic):
    assert user.types("produce", topic, "-p", "0", stdin="a\n").code == 0
    ran = user.types("consume", topic, "--from", "5")
    assert ran.lines() == []
    assert f"--from 5 is beyond the end of {topic}-0 at 1, {topic}-1 at 0" in ran.err


def test_rows_become_records_with_keys_and_headers_of_their_columns(user, topic, tmp_path):
    def read() -> list[tuple[Any, ...]]:
        found = [json.loads(line) for line in user.types("consume", topic, "--json").lines()]
        assert user.types("topic", "trim", topic, "--before", "latest", "--yes").code == 0
        return sorted((d["key"], d["value"], d["headers"]) for d in found)

    rows = [{"id": "1", "name": "a, \u00fc", "eu": "yes"}, {"id": "2", "name": 'b"\nc', "eu": ""}]
    sheet = '\ufeffid,name,eu\r\n1,"a, \u00fc",yes\r\n2,"b""\nc",\r\n'
    options = "--key", "n{id}", "-H", "eu={eu}"
    assert user.types("produce", topic, "-f", "csv", *options, stdin=sheet).code == 0
    expected = [
        (f"n{row['id']}", json.dumps(row, ensure_ascii=False, separators=(",", ":")),
         [{"key": "eu", "value": row["eu"]}])
        for row in rows
    ]  # fmt: skip
    assert read() == expected
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    assert user.types("produce", topic, "-f", "ndjson", *options, stdin=lines).code == 0
    assert [(key, json.loads(value)) for key, value, _ in read()] == [
        ("n1", rows[0]),
        ("n2", rows[1]),
    ]

    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    table = {"id": [1, None], "data": [b"\xff\x00", b"text"]}
    parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    columns = "--key", "{id}", "--value", "{data}"
    file = str(tmp_path / "t.parquet")
    assert user.types("produce", topic, file, "-f", "parquet", *columns, "-p", "0").code == 0
    found = user.types("consume", topic, "--json").lines()
    assert [json.loads(line)["key"] for line in found] == ["1", None]
    assert json.loads(found[0])["value_base64"] == "/wA="

    for form, key, text, complaint in (
        ("csv", "{a}", "a,b\n1,2\n1\n", "line 3 of stdin cannot be read: the number of its fields"),
        ("csv", "{id}", "a,b\n1,2\n", "it has no column 'id', only a, b"),
        ("ndjson", "{id}", "[]\n", "line 1 of stdin cannot be read: it is not a JSON object"),
    ):
        ran = user.types("produce", topic, "-f", form, "--key", key, stdin=text)
        assert (ran.code, complaint in ran.err) == (1, True), ran.err
    assert user.types("produce", topic, "--value", "x", stdin="a\n").code == 2


def test_topics_are_trimmed_and_copied(user, topic):
    stdin = "\n".join(
        json.dumps({"value": str(n), "partition": n % 2, "key": f"k{n}"}) for n in range(10)
    )
    assert user.types("produce", topic, "-f", "json", stdin=stdin).code == 0
    asked = user.types("topic", "trim", topic, "--before", "2")
    assert (asked.code, "--yes" in asked.err) == (2, True)
    dry = user.types("topic", "trim", topic, "--before", "2", "--dry-run", "--json").json()
    assert (dry["deleted"], dry["dry_run"]) == (4, True)
    assert user.types("topic", "trim", topic, "--before", "2", "-p", "1", "--yes").code == 0
    values = sorted(user.types("consume", topic).lines())
    assert values == sorted("0123456789".replace("1", "").replace("3", ""))

    copy = f"{topic}-2"
    assert user.types("topic", "copy", topic, copy).code == 3
    assert user.types("topic", "create", copy, "-p", "2").code == 0
    counted = user.types("topic", "copy", topic, copy, "--dry-run", "--json").json()
    assert (counted["records"], counted["dry_run"]) == (8, True)
    assert user.types("consume", copy).lines() == []
    done = user.types("topic", "copy", topic, copy, "--keep-partitions", "--json").json()
    assert (done["records"], done["continued"]) == (8, False)

    def records(name: str) -> list[tuple[Any, ...]]:
        found = map(json.loads, user.types("consume", name, "--json").lines())
        return sorted((d["partition"], d["key"], d["value"], d["timestamp"]) for d in found)

    assert records(copy) == records(topic)
    groups = user.types("group", "list", "--json").json()
    assert not [one for one in groups if one["group"].startswith("headrace-copy.")]
    same = user.types("topic", "copy", topic, topic)
    assert (same.code, "same topic" in same.err) == (2, True)


def test_offsets_of_a_group_are_exported_and_imported(user, topic):
    assert user.types("produce", topic, "-p", "0", stdin="a\nb\nc\n").code == 0
    assert len(user.types("consume", topic, "--group", "source", "-n", "2").lines()) == 2
    exported = user.types("group", "export", "source").out
    assert [one["offset"] for one in json.loads(exported)["offsets"] if one["partition"] == 0] == [
        2
    ]
    into = "group", "import", "-", "--as", "other"
    dry = user.types(*into, "--dry-run", "--json", stdin=exported)
    assert dry.json()["dry_run"]
    assert user.types("group", "export", "other").code == 3
    assert user.types(*into, stdin=exported).code == 0
    assert user.types("consume", topic, "--group", "other").lines() == ["c"]
    beyond = exported.replace('"offset": 2', '"offset": 9')
    refused = user.types(*into, stdin=beyond)
    assert (refused.code, "offset 9 is not in" in refused.err) == (5, True)
    assert user.types("group", "import", "-", stdin="{}").code == 2


def test_a_bundle_for_a_bug_report_has_facts_and_no_secrets(user, topic, tmp_path):
    canary = "CaNaRy42"
    assert user.types("produce", topic, stdin=f"record {canary}\n").code == 0
    (tmp_path / "headrace.toml").write_text(f'[serve]\nssl-key-password = "{canary}"\n')
    (tmp_path / "log").write_text(f"{'x' * 2_000_000}\nsasl.password={canary}\nlast line\n")
    bundle = tmp_path / "b.tar.gz"
    user.env["HEADRACE_ZOOKEEPER_CREDENTIAL"] = f"user:{canary}"
    command = (
        "doctor", "-o", str(bundle), "--log", str(tmp_path / "log"), "--json",
        "--config-file", str(tmp_path / "headrace.toml"), "--data-dir", str(tmp_path),
    )  # fmt: skip
    try:
        files = user.types(*command).json()["files"]
    finally:
        del user.env["HEADRACE_ZOOKEEPER_CREDENTIAL"]
    assert [one for one in files if one["problem"]] == []
    assert bundle.stat().st_mode & 0o077 == 0
    with tarfile.open(bundle) as opened:
        texts = {one.name.partition("/")[2]: opened.extractfile(one).read() for one in opened}
    assert not [name for name, text in texts.items() if canary.encode() in text]
    assert topic.encode() in texts["topics.json"]
    assert b"status 200" in texts["http/readyz.txt"]
    assert b"headrace_" in texts["http/metrics.txt"]
    assert texts["logs/0-log.txt"].endswith(b"last line\n")
    assert len(texts["logs/0-log.txt"]) < 1_100_000
    again = user.types(*command)
    assert (again.code, "--output" in again.err) == (1, True)

    lost = user.types("-b", "127.0.0.1:1", "doctor", "-o", str(tmp_path / "lost.tar.gz"), "--json")
    problems = {one["file"]: one["problem"] for one in lost.json()["files"]}
    assert "cannot connect" in problems["cluster.json"]
    assert problems["about.json"] == ""


def test_top_with_a_count_leaves_the_last_refresh_on_the_terminal(user, topic):
    near, far = os.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**user.env, "TERM": "xterm-256color"}
    command = [HEADRACE, "top", topic, "--count", "1"]
    with subprocess.Popen(command, stdin=far, stdout=far, stderr=far, env=env) as child:
        os.close(far)
        drawn = b""
        with suppress(OSError):  # EIO: the child has closed its side
            while data := os.read(near, 65_536):
                drawn += data
        assert child.wait(LIMIT_S) == 0
    os.close(near)
    assert b"written/s" in drawn
    assert b"\x1b[?1049h" not in drawn, "the screen that is gone when the command ends"


def test_top_draws_rates_on_a_terminal_and_leaves_it_as_it_was(user, topic):
    assert user.types("produce", topic, "-p", "0", stdin="a\nb\n").code == 0
    assert user.types("consume", topic, "--group", "top", "-n", "1").code == 0
    lines = user.types("top", topic, "--every", "0.2", "-n", "2", "--json").lines()
    first, second = map(json.loads, lines)
    assert first["topics"][0] | {"written_per_s": 0.0} == second["topics"][0]
    assert [(one["group"], one["lag"]) for one in second["groups"]] == [("top", 1)]

    columns, rows = 80, 24
    screen = pyte.HistoryScreen(columns, rows)
    stream = pyte.ByteStream(screen)
    near, far = os.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {**user.env, "TERM": "xterm-256color"}
    env.pop("COLUMNS", None)
    child = subprocess.Popen(
        [HEADRACE, "top", topic, "--every", "0.2"], stdin=far, stdout=far, stderr=far, env=env
    )
    os.close(far)
    try:
        deadline_s = time.monotonic() + LIMIT_S
        drawn = ""
        while "  top " not in drawn and time.monotonic() < deadline_s:
            stream.feed(os.read(near, 65_536))
            drawn = "\n".join(screen.display)
        assert topic[:15] in drawn
        assert "written/s" in drawn
        assert "Ctrl-C stops" in screen.display[0]
        child.send_signal(signal.SIGINT)
        with suppress(OSError):  # EIO: the child has closed its side
            while data := os.read(near, 65_536):
                stream.feed(data)
        assert child.wait(LIMIT_S) == 0
    finally:
        child.kill()
        child.wait()
    os.close(near)
    assert not screen.cursor.hidden
