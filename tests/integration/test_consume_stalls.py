"""`headrace consume` says why it gets no records: an open transaction, unreadable data."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from tests.integration.broker import Broker
from tests.integration.clients import Confluent, Rec, create_topic
from tests.integration.test_cli import User, ends
from tests.integration.test_tiering import OPTIONS, TIERED, produce_until_cold
from tests.integration.test_transactions import transactional

TIMEOUT_S = 30
READERS = [(), ("--group", "readers")]


@pytest.mark.parametrize("options", READERS)
def test_records_after_an_open_transaction_are_waited_for_and_announced(broker, name, options):
    create_topic(broker.kafka, name)
    open_one = transactional(broker, f"{name}-id")
    open_one.begin_transaction()
    open_one.produce(name, b"open")
    assert open_one.flush(TIMEOUT_S) == 0
    plain = Producer({"bootstrap.servers": broker.kafka})
    plain.produce(name, b"after")
    assert plain.flush(TIMEOUT_S) == 0
    reading = User(broker.kafka).starts("consume", name, "--from", "earliest", *options, "--follow")
    assert reading.stderr is not None
    said = b""
    while b"open" not in said:
        line = reading.stderr.readline()
        assert line, said
        said += line
    assert f"{name}-0: 2 records from offset 0 on wait behind an open transaction" in said.decode()
    open_one.commit_transaction(TIMEOUT_S)
    assert reading.stdout is not None
    assert [reading.stdout.readline() for _ in range(2)] == [b"open\n", b"after\n"]
    code, _, err = ends(reading)
    assert (code, "wait behind" in err) == (0, False), "each reason once"


@pytest.fixture
def damaged(tmp_path):
    """A broker with a topic in which one byte is wrong."""
    broker = Broker(tmp_path / "broker").start()
    create_topic(broker.kafka, "damaged")
    Confluent.produce(broker.kafka, "damaged", [Rec(None, b"damaged" * 100)] * 50)
    broker.stop()
    broker.is_damaged = True
    for path in (broker.data_dir / "ledgers").rglob("*.ledger"):
        data = bytearray(path.read_bytes())
        if b"damageddamaged" in data:
            data[data.index(b"damageddamaged")] ^= 1
            path.write_bytes(data)
    yield broker.start()
    broker.kill()


@pytest.mark.parametrize("options", READERS)
def test_damaged_records_end_the_command_with_their_cause(damaged, options):
    ran = User(damaged.kafka).types("--timeout", "4", "consume", "damaged", *options)
    assert (ran.code, ran.out) == (1, "")
    assert "the broker cannot read these records" in ran.err


@pytest.mark.parametrize("options", READERS)
def test_a_tiered_folder_without_its_objects_ends_the_command(tmp_path, options):
    objects = tmp_path / "objects"
    broker = Broker(tmp_path / "broker", *OPTIONS, "--objects", f"file://{objects}").start()
    try:
        create_topic(broker.kafka, "cold", local_retention_bytes=400_000, **TIERED)
        produce_until_cold(broker, "cold", 500)
        broker.stop()
        broker.options, broker.is_damaged = (), True
        broker.start()
        ran = User(broker.kafka).types("--timeout", "4", "consume", "cold", *options)
    finally:
        broker.kill()
    assert (ran.code, ran.out) == (1, "")
    assert "read cold-0 at offset 0: the broker cannot read these records" in ran.err
    assert "trying again for 4 s" in ran.err
    assert "--objects" in ran.err
