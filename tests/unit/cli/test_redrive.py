"""What a redrive takes for an edit, read from the client library's own broker in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition

from headrace.cli import dead, redrive, transfer
from headrace.cli.failures import CommandFailed
from headrace.cli.session import CliSession
from headrace.runtime.child_process import HELPER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPIC = "orders.dead"
POLL_S = 20


class Session(CliSession):
    """Asks for partitions as that broker can answer: it has no controller."""

    def partitions_of(self, name: str) -> list[int]:
        return sorted(self._client().list_topics(name, POLL_S).topics[name].partitions)

    def _client(self) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})


@pytest.fixture
def session(monkeypatch):
    """Of a broker that ends with the client that runs it."""
    monkeypatch.setattr(transfer, "POLL_S", 0.1)  # for which a reading waits to fill a bundle
    keeper = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = keeper.list_topics(TOPIC, POLL_S).brokers.values()
    yield Session(f"{broker.host}:{broker.port}")
    keeper.close()


def spring(
    offset: int, *more: tuple[str, bytes], edit: Sequence[tuple[str, bytes]] = ()
) -> list[tuple[str, bytes]]:
    """A letter: Spring copies all headers and adds its own. What makes it an edit comes last."""
    return [
        *more,
        ("kafka_dlt-original-topic", b"orders"),
        ("kafka_dlt-original-partition", bytes(4)),
        ("kafka_dlt-original-offset", offset.to_bytes(8, "big")),
        *edit,
    ]


def claim(offset: int) -> list[tuple[str, bytes]]:
    """What an edit of a letter of partition 0 says."""
    return [
        ("headrace-dlq-edit-of", b"0:%d" % offset),
        ("headrace-producer", b"letter-edit/00ff-0:%d/77" % offset),
        ("headrace-sequence", b"0"),
    ]


def append(session: CliSession, *records: tuple[str, list[tuple[str, bytes]]]) -> None:
    producer = session.producer({"linger.ms": 100})
    for value, headers in records:
        producer.produce(TOPIC, value, partition=0, headers=headers)
    assert producer.flush(POLL_S) == 0
    producer.close()


def sent_before(session: CliSession, offset: int) -> None:
    consumer = session.consumer(
        {"group.id": redrive.redrive_of(TOPIC), "enable.auto.commit": False}
    )
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    consumer.close()


def planned(session: CliSession) -> tuple[dict[str, str], redrive.Outcome]:
    """(what becomes of each letter, the counts)."""
    found: dict[str, str] = {}
    outcome = redrive.Outcome(note=lambda row: found.update({row["letter"]: row["outcome"]}))
    redrive.plan_redrive(session, TOPIC, redrive.RedriveOptions(), outcome)
    return found, outcome


def test_a_letter_does_not_name_a_topic_of_another_tenant_as_its_origin(session):
    """Whatever its writer put before the name: an operator may write to any topic."""
    names = ["«beta»orders", "«x»«beta»orders", "«x»«y»«beta»orders"]
    append(session, *((one, [("kafka_dlt-original-topic", one.encode())]) for one in names))
    plan = redrive.Plan(session, TOPIC, redrive.RedriveOptions(), redrive.Edits(TOPIC, {0: 0}))
    fates = [plan.fate(letter) for letter, _edited in redrive.scan(session, TOPIC)]
    assert [one.target for one in fates] == ["orders", "", ""]
    assert [one.error for one in fates[1:]] == [redrive.NO_ORIGIN] * 2


def test_letters_are_found_by_the_names_of_a_tenants_topic_and_group(session):
    """Brokers write names into letters, without the tenant."""
    names = ("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-consumer-group", b"g")
    append(session, ("v", [*names]))
    for words, count in (
        (("--origin", "acme/orders", "--group", "«acme»g"), 1),
        (("--origin", "orders", "--group", "g"), 1),
        (("--origin", "acme/other"), 0),
        (("--group", "«acme»other"), 0),
    ):
        ran = CliRunner().invoke(dead.dead, ["show", TOPIC, "--json", *words], obj=session)
        assert ran.exit_code == 0, ran.output
        assert len(json.loads(ran.stdout)) == count, words


def test_lines_have_topics_as_their_reader_wants_them(monkeypatch, capsys):
    """A broker has its own clients, to each of which it writes names in another way."""
    row = {"letter": "0:1", "outcome": "sent", "to": "«acme»orders-0:5"}
    redrive.print_line(row)
    assert json.loads(capsys.readouterr().out) == row | {"to": "acme/orders-0:5"}
    monkeypatch.setenv(HELPER_VARIABLE, "{}")
    redrive.print_line(row)
    assert json.loads(capsys.readouterr().out) == row


def test_a_letter_that_claims_to_edit_one_that_was_sent_is_sent_unless_it_does(session):
    letters = [(f"v{number}", spring(number)) for number in range(12)]
    append(
        session, *letters, ("forged", spring(77, edit=claim(3))), ("late", spring(4, edit=claim(4)))
    )
    sent_before(session, 10)
    found, outcome = planned(session)
    assert found == {"0:10": "sent", "0:11": "sent", "0:12": "sent", "0:13": "dropped"}
    assert "which was sent before" in outcome.failed[0]["error"]
    assert [m.value() for m, _ in redrive.scan(session, TOPIC)] == [
        b"v10", b"v11", b"forged", b"late",
    ]  # fmt: skip


def test_claims_that_do_not_hold_count_for_no_limit_of_edits(session, monkeypatch):
    monkeypatch.setattr(redrive, "EDITS_MAX", 2)
    letters = [(f"v{number}", spring(number)) for number in range(4)]
    forged = [(f"f{number}", spring(77, edit=claim(number))) for number in range(4)]
    edits = [(f"e{number}", spring(number, edit=claim(number))) for number in (1, 1, 2)]
    append(session, *letters, *forged, *edits)
    found, outcome = planned(session)
    assert {*found.values()} == {"sent"}
    assert (outcome.sent, outcome.edited) == ({"orders": 8}, 2)
    contents = [content.value() for _, content in redrive.scan(session, TOPIC)]
    assert contents == [b"v0", b"e1", b"e2", b"v3", b"f0", b"f1", b"f2", b"f3"]
    append(session, ("e3", spring(3, edit=claim(3))))
    with pytest.raises(CommandFailed, match=r"more than 2 letters .* are edited"):
        planned(session)


def test_claims_that_cannot_all_be_checked_send_nothing(session, monkeypatch):
    monkeypatch.setattr(redrive, "CLAIMS_MAX", 1)
    append(session, *((f"v{number}", spring(number)) for number in range(2)))
    append(session, *(("f", spring(77, edit=claim(number))) for number in (0, 9)))
    append(session, ("copied", spring(0, *claim(1))))
    assert {*planned(session)[0].values()} == {"sent"}, "an edit comes after its letter"
    append(session, ("f", spring(77, edit=claim(1))))
    with pytest.raises(CommandFailed, match="nothing was sent"):
        planned(session)


def test_a_producer_does_not_choose_where_its_letter_is_sent(session, monkeypatch):
    """It can write headers of other writers; those of its own writer only where Connect is that,
    and then the plan says so."""
    monkeypatch.setattr(Session, "partitions_of", lambda *_: [0])
    forged = [("__dlq.errors.topic", b"payments"), ("__connect.errors.topic", b"payments")]
    connect = [("__connect.errors.partition", b"0"), ("__connect.errors.connector.name", b"sink")]
    append(session, ("s", spring(1, *forged)), ("c", [*forged, *connect]))
    _, outcome = planned(session)
    shown = outcome.shown(is_dry_run=True)
    assert shown["sent"] == {"orders": 1, "payments": 1}
    assert shown["origin_unverified"] == {"payments": 1}
    chosen = redrive.Outcome()
    redrive.plan_redrive(session, TOPIC, redrive.RedriveOptions(target="orders"), chosen)
    assert chosen.shown(is_dry_run=True) == {"dry_run": True, "sent": {"orders": 2}, "kept": 0}
