"""What dead letters of each writer say about themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.records.letters import (
    FORMATS,
    EditFinder,
    Letter,
    edit_of,
    letter_of,
    number_of,
    own_headers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_a_letter_of_a_share_group_is_read():
    headers = [
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"2"),
        ("__dlq.errors.offset", b"17"),
        ("__dlq.errors.group", b"billing"),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", b"no such customer"),
        ("headrace-redrives", b"1"),
    ]
    letter = letter_of(headers)
    assert letter == Letter(
        "share group", "orders", 2, 17, "billing", "", "no such customer", "", 5, 1
    )


def test_a_letter_of_spring_has_numbers_in_bytes():
    headers = [
        ("kafka_dlt-original-topic", b"orders"),
        ("kafka_dlt-original-partition", (3).to_bytes(4, "big")),
        ("kafka_dlt-original-offset", (1 << 33).to_bytes(8, "big")),
        ("kafka_dlt-original-consumer-group", b"shipping"),
        ("kafka_dlt-exception-fqcn", b"org.springframework.ListenerFailed"),
        ("kafka_dlt-exception-cause-fqcn", b"java.io.IOException"),
        ("kafka_deliveryAttempt", (4).to_bytes(4, "big")),
    ]
    letter = letter_of(headers)
    assert (letter.format, letter.partition, letter.offset) == ("Spring", 3, 1 << 33)
    assert (letter.cause, letter.reason, letter.deliveries) == (
        "java.io.IOException",
        "java.io.IOException",
        4,
    )


def test_a_letter_of_connect_is_read():
    headers = [
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b"1"),
        ("__connect.errors.connector.name", b"sink"),
        ("__connect.errors.stage", b"VALUE_CONVERTER"),
        ("__connect.errors.exception.class.name", b"DataException"),
        ("__connect.errors.exception.message", b"bad schema"),
    ]
    letter = letter_of(headers)
    assert (letter.format, letter.consumer, letter.stage) == ("Connect", "sink", "VALUE_CONVERTER")
    assert (letter.reason, letter.cause, letter.offset) == ("bad schema", "DataException", -1)


def test_a_record_without_origin_headers_has_no_origin_and_the_last_of_repeated_headers_counts():
    assert letter_of([]) == Letter()
    twice = [("__dlq.errors.topic", b"a"), ("__dlq.errors.topic", b"b\xff")]
    assert letter_of(twice).topic == "b\ufffd"


def test_its_own_headers_are_what_it_had_before():
    own = [("h", b"v"), ("traceparent", None)]
    added = [
        ("__dlq.errors.topic", b"t"),
        ("kafka_dlt-original-topic", b"t"),
        ("__connect.errors.topic", b"t"),
        ("headrace-redrives", b"1"),
        ("headrace-dlq-path", b"t"),
        ("headrace-producer", b"p"),
        ("headrace-sequence", b"0"),
        ("headrace-dlq-edit-of", b"0:1"),
    ]
    assert own_headers([*own, *added]) == own


@pytest.mark.parametrize("writer", FORMATS, ids=lambda one: one.kind)
@pytest.mark.parametrize("forged", FORMATS, ids=lambda one: one.kind)
def test_the_last_header_of_a_writer_names_the_writer_of_the_letter(writer, forged):
    """Writers copy a producer's headers, which may look like those of another, and add theirs."""
    copied = [(forged.topic, b"payments"), (forged.consumer, b"forged")]
    own = [(writer.partition, b"1"), (writer.topic, b"orders"), (writer.consumer, b"real")]
    letter = letter_of([*copied, *own, ("traceparent", b"00")])
    assert (letter.format, letter.topic, letter.consumer) == (writer.title, "orders", "real")
    assert letter_of([*own, *copied]).format == forged.title


def test_any_header_of_a_writer_shows_it():
    """Connect adds no header that a record has already: some of its own are those of a producer."""
    copied = [("__connect.errors.topic", b"orders"), ("__dlq.errors.topic", b"payments")]
    letter = letter_of([*copied, ("__connect.errors.stage", b"TRANSFORMATION")])
    assert (letter.format, letter.topic) == ("Connect", "orders")


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


EDIT = [
    ("headrace-dlq-edit-of", b"2:10"),
    ("headrace-producer", b"letter-edit/00ff-2:10/77"),
    ("headrace-sequence", b"0"),
]


@pytest.mark.parametrize(
    ("headers", "replaced"),
    [
        (spring(5, edit=EDIT), 10),
        (spring(5, *EDIT), None),  # copied along
        (spring(6, edit=EDIT), None),  # of another record
        (spring(5, edit=EDIT[:1]), None),  # not appended as an edit
        (spring(5, edit=EDIT[1:]), None),
        (spring(5, edit=[("headrace-dlq-edit-of", b"2:11"), *EDIT[1:]]), None),
        (spring(5, edit=[("headrace-dlq-edit-of", b"1:10"), EDIT[1]]), None),
        (EDIT, None),
    ],
)
def test_an_edit_is_believed_if_it_comes_from_where_its_letter_comes_from(headers, replaced):
    finder = EditFinder(2)
    assert finder.replaced_by(10, spring(5)) is None
    assert finder.replaced_by(11, headers) == replaced
    assert finder.replaced_by(12, spring(5, edit=EDIT)) == 10, "and those before it change nothing"
    assert EditFinder(1).replaced_by(11, headers) is None


@pytest.mark.parametrize("writer", FORMATS, ids=lambda one: one.kind)
def test_a_claim_that_a_writer_copied_is_none(writer):
    """Connect keeps what a producer has said about the origin, so that alone proves nothing."""
    origin = [(writer.topic, b"orders"), (writer.partition, b"0"), (writer.offset, b"5")]
    assert edit_of([*EDIT, *origin]) is None
    assert edit_of([*origin, *EDIT, (f"{writer.prefix}stage", b"PUT")]) is None
    assert edit_of([*origin, *EDIT]) == (2, 10)


@pytest.mark.parametrize(
    ("value", "number"),
    [(None, -1), (b"", -1), (b"7", 7), (b"9" * 20, -1), (b"\xff" * 4, -1), (b"x1", -1)],
)
def test_a_number_that_is_none_is_not_guessed(value, number):
    assert number_of(value) == number
