"""What a dead letter says about itself: the headers of those who write dead letters.

Invariants: pure, and the one place of these names. Three writers are known: share groups of Kafka
4.4 and Headrace (KIP-1191, text), Spring's `DeadLetterPublishingRecoverer` (`KafkaHeaders`, numbers
in big-endian bytes), and Kafka Connect (KIP-298, text). Text that is not UTF-8 is read with
replacement characters; what a letter does not say is empty or -1. Do not change the names: stored.

All of them copy the headers of the record, in which a producer may have written anything, and
append theirs. So the last header that belongs to a writer says who wrote the letter, no column is
taken from another writer's headers, and of a repeated header the last one counts. What is left to
producers: see `LetterFormat.keeps_copied`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.records.tenant_names import name_in, sibling

if TYPE_CHECKING:
    from collections.abc import Container

    from headrace.records.attributes import Headers

SHARE: Final = "__dlq.errors."
SPRING: Final = "kafka_dlt-"
CONNECT: Final = "__connect.errors."
PREFIXES: Final = (SHARE, SPRING, CONNECT)
REDRIVES: Final = "headrace-redrives"
"""How often the record was sent back."""
PATH: Final = "headrace-dlq-path"
"""The topics that gave the record up, comma-separated, first one first."""
REDRIVEN_FROM: Final = "headrace-redriven-from"
"""On a record that was sent back: the dead letter that it was, as TOPIC-PARTITION:OFFSET."""
REDRIVE_PREFIX: Final = "headrace-redrive."
"""Of the group and the transactional id of a topic's redrives."""
EDIT_OF: Final = "headrace-dlq-edit-of"
"""On an edited copy in a dead letter topic: PARTITION:OFFSET of the letter that it replaces."""
EDIT_NAME: Final = "letter-edit/"
"""What the named sequence of an edit begins with: then TOPIC_ID-PARTITION:OFFSET/UNIQUE."""
EDITED: Final = "headrace-edited"
"""Who changed what and when, for each edit: `PRINCIPAL MS PART,PART`; kept when it is sent back."""
NAMED_SEQUENCE: Final = ("headrace-producer", "headrace-sequence")
"""They belong to the copy in the dead letter topic."""
DIGITS_MAX: Final = 19


class LetterFormat(NamedTuple):
    """The names of one writer's headers; empty: it has none."""

    kind: str
    title: str
    prefix: str
    topic: str
    partition: str
    offset: str
    consumer: str
    message: str
    causes: tuple[str, ...] = ()
    """Classes of the exception, the innermost first."""
    deliveries: str = ""
    stage: str = ""
    keeps_copied: bool = False
    """Whether it adds no header that the record has already: what such a letter says about its
    origin may be the word of the record's producer. Spring does so as well if it is told to
    (`setAppendOriginalHeaders(false)`), which its letters do not show."""


FORMATS: Final = (
    LetterFormat("share", "share group", SHARE, f"{SHARE}topic", f"{SHARE}partition",
                 f"{SHARE}offset", f"{SHARE}group", f"{SHARE}message",
                 deliveries=f"{SHARE}delivery.count"),
    LetterFormat("spring", "Spring", SPRING, f"{SPRING}original-topic",
                 f"{SPRING}original-partition", f"{SPRING}original-offset",
                 f"{SPRING}original-consumer-group", f"{SPRING}exception-message",
                 (f"{SPRING}exception-cause-fqcn", f"{SPRING}exception-fqcn"),
                 "kafka_deliveryAttempt"),
    LetterFormat("connect", "Connect", CONNECT, f"{CONNECT}topic", f"{CONNECT}partition",
                 f"{CONNECT}offset", f"{CONNECT}connector.name", f"{CONNECT}exception.message",
                 (f"{CONNECT}exception.class.name",), stage=f"{CONNECT}stage", keeps_copied=True),
)  # fmt: skip
SHARE_FORMAT, SPRING_FORMAT, CONNECT_FORMAT = FORMATS


class Letter(NamedTuple):
    """What a dead letter says about its origin; see the module for what it does not say."""

    format: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1
    consumer: str = ""
    """The group or connector that gave it up."""
    cause: str = ""
    """The class of the exception."""
    message: str = ""
    stage: str = ""
    deliveries: int = -1
    redrives: int = 0
    is_origin_sure: bool = True
    """False: a producer may have written what the letter says about its origin."""

    @property
    def reason(self) -> str:
        """The message; where there is none, the class of the exception."""
        return self.message or self.cause


def redrive_of(topic: str) -> str:
    """The group and the transactional id of a topic's redrives, of the topic's tenant."""
    return sibling(topic, REDRIVE_PREFIX + name_in(topic))


def format_of(headers: Headers) -> LetterFormat | None:
    """Who wrote a letter: whose is the last header that is any writer's."""
    for name, _ in reversed(headers):
        if name.startswith(PREFIXES):
            return next(one for one in FORMATS if name.startswith(one.prefix))
    return None


def letter_of(headers: Headers) -> Letter:
    """Parse a record's headers; see the module for which ones count."""
    said = dict(headers)
    redrives = max(number_of(said.get(REDRIVES)), 0)
    one = format_of(headers)
    if one is None:
        return Letter(redrives=redrives)
    causes = (text_of(said.get(name)) for name in one.causes)
    return Letter(
        one.title,
        text_of(said.get(one.topic)),
        number_of(said.get(one.partition)),
        number_of(said.get(one.offset)),
        text_of(said.get(one.consumer)),
        next(filter(None, causes), ""),
        text_of(said.get(one.message)),
        text_of(said.get(one.stage)),
        number_of(said.get(one.deliveries)),
        redrives,
        not one.keeps_copied,
    )


def edit_of(headers: Headers) -> tuple[int, int] | None:
    """(partition, offset) of the letter that a record says it is an edit of; None: of none, or it
    lacks the name under which edits are appended, or a writer of letters has copied that from a
    record: an edit says it after all such headers. See `EditFinder` for what may be believed."""
    marks = [name for name, _ in headers if name == EDIT_OF or name.startswith(PREFIXES)]
    if not marks or marks[-1] != EDIT_OF:
        return None
    said = dict(headers)
    value = said.get(EDIT_OF) or b""
    number, colon, offset = value.partition(b":")
    is_place = bool(colon) and number.isdigit() and offset.isdigit()
    name = said.get(NAMED_SEQUENCE[0]) or b""
    if not is_place or not name.startswith(EDIT_NAME.encode()) or b"-%b/" % value not in name:
        return None
    return int(number[:10]), int(offset[:DIGITS_MAX])


def origin_of(headers: Headers) -> bytes:
    """A short value that letters of different origins do not share."""
    letter = letter_of(headers)
    text = repr((letter.format, letter.topic, letter.partition, letter.offset, letter.consumer))
    return blake2b(text.encode(), digest_size=16).digest()


class EditFinder:
    """Tells edits from letters among the records of one partition.

    A record that is given up takes its headers along (Spring and Connect copy them all), so a
    producer can have a letter claim that it replaces another one. What writes a letter adds where
    that came from, after what it copied. An edit says the same as its letter, and what it replaces
    after that: no other record can, unless its producer may write to the dead letter topic, or its
    writer adds nothing (Connect with `errors.deadletterqueue.context.headers.enable=false`).
    """

    __slots__ = ("_letters", "_partition", "_wanted")

    def __init__(self, partition: int, wanted: Container[int] | None = None) -> None:
        """`wanted`: the offsets of letters that may have edits, if that is known."""
        self._partition = partition
        self._wanted = wanted
        self._letters: dict[int, bytes] = {}
        """The origin by offset."""

    def replaced_by(self, offset: int, headers: Headers) -> int | None:
        """The offset of the letter that this record, the next one, is an edit of; None: it is a
        letter itself."""
        claimed = edit_of(headers)
        if claimed is not None and claimed[0] == self._partition and claimed[1] < offset:
            origin = self._letters.get(claimed[1])
            if origin is not None and origin == origin_of(headers):
                return claimed[1]
        if self._wanted is None or offset in self._wanted:
            self._letters[offset] = origin_of(headers)
        return None


def own_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """A record's headers without what made it a letter."""
    dropped = {*NAMED_SEQUENCE, PATH, REDRIVES, REDRIVEN_FROM, EDIT_OF}
    return [
        (name, value)
        for name, value in headers
        if name not in dropped and not name.startswith(PREFIXES)
    ]


def text_of(value: bytes | None) -> str:
    """A header's text."""
    return (value or b"").decode("utf-8", "replace")


def number_of(value: bytes | None) -> int:
    """A header's number, in decimal digits or as 4 or 8 big-endian bytes; -1: it is none."""
    if value is None:
        return -1
    if value.isdigit() and len(value) <= DIGITS_MAX:
        return int(value)
    if len(value) in {4, 8}:
        return max(int.from_bytes(value, "big", signed=True), -1)
    return -1
