"""Reads stored header keys through librdkafka's own functions.

Invariants: only for records that confluent_kafka cannot return because a header key is not UTF-8;
uses the same library with the same settings, through ctypes. Records are read in ascending order
from the first requested. librdkafka returns a key as a C string, which ends at a zero byte.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.pipeline.errors import RecordUnreadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.pipeline.columns import RawHeaders

_CONSUMER = 1
_OK = 0
_POLL_MS = 250
_ERROR_BYTES = 512
_SKIPPED_MAX = 10_000
"""Records read and dropped on the way to the next one; if more are between, it seeks instead."""


class _Message(ctypes.Structure):
    """`rd_kafka_message_t`, part of librdkafka's stable interface."""

    _fields_: ClassVar = [
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    ]


class RawHeaderReader:
    """A second consumer of one partition, created on first use."""

    def __init__(
        self, settings: Mapping[str, str], topic: str, partition: int, timeout_ms: int
    ) -> None:
        self._settings = settings
        self._topic, self._partition = topic, partition
        self._timeout_ms = timeout_ms
        self._library: Any = None
        self._handle: Any = None
        self._position: int | None = None

    def read(self, offsets: Sequence[int]) -> dict[int, RawHeaders]:
        """Return the headers of the records at `offsets`, which ascend. Raises RecordUnreadable."""
        if self._handle is None:
            self._open(offsets[0])
        return {offset: self._read_one(offset) for offset in offsets}

    def close(self) -> None:
        """Release the consumer."""
        if self._handle is not None:
            self._library.rd_kafka_consumer_close(self._handle)
            self._library.rd_kafka_destroy(self._handle)
            self._handle = None

    def _read_one(self, offset: int) -> RawHeaders:
        if self._position is None or not 0 <= offset - self._position < _SKIPPED_MAX:
            self._assign(offset)
        begun_ns = monotonic_ns()
        while monotonic_ns() - begun_ns < self._timeout_ms * 1_000_000:
            found = self._library.rd_kafka_consumer_poll(self._handle, _POLL_MS)
            if not found:
                continue
            try:
                message = found.contents
                if message.err != _OK:
                    continue
                self._position = message.offset + 1
                if message.offset == offset:
                    return self._headers_of(found)
                if message.offset > offset:
                    break
            finally:
                self._library.rd_kafka_message_destroy(found)
        raise self._unreadable(offset, "reading it a second time failed")

    def _headers_of(self, message: Any) -> RawHeaders:
        library = self._library
        headers = c_void_p()
        if library.rd_kafka_message_headers(message, byref(headers)) != _OK:
            return []
        found: RawHeaders = []
        key, value, size = c_char_p(), c_void_p(), c_size_t()
        while (
            library.rd_kafka_header_get_all(
                headers, c_size_t(len(found)), byref(key), byref(value), byref(size)
            )
            == _OK
        ):
            octets = None if value.value is None else ctypes.string_at(value.value, size.value)
            found.append((key.value or b"", octets))
        return found

    def _open(self, offset: int) -> None:
        try:
            self._library = _load_library()
        except (OSError, AttributeError) as error:
            raise self._unreadable(
                offset, "librdkafka, needed to read it raw, was not found"
            ) from error
        library = self._library
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = c_void_p(library.rd_kafka_conf_new())
        for name, value in self._settings.items():
            args = (conf, name.encode(), value.encode(), text, c_size_t(_ERROR_BYTES))
            if library.rd_kafka_conf_set(*args) != _OK:
                library.rd_kafka_conf_destroy(conf)
                raise self._unreadable(offset, text.value.decode("utf-8", "replace"))
        handle = library.rd_kafka_new(_CONSUMER, conf, text, c_size_t(_ERROR_BYTES))
        if not handle:
            library.rd_kafka_conf_destroy(conf)
            raise self._unreadable(offset, text.value.decode("utf-8", "replace"))
        self._handle = c_void_p(handle)
        library.rd_kafka_poll_set_consumer(self._handle)

    def _assign(self, offset: int) -> None:
        library = self._library
        topic = self._topic.encode()
        partitions = c_void_p(library.rd_kafka_topic_partition_list_new(c_int(1)))
        try:
            library.rd_kafka_topic_partition_list_add(partitions, topic, c_int32(self._partition))
            library.rd_kafka_topic_partition_list_set_offset(
                partitions, topic, c_int32(self._partition), c_int64(offset)
            )
            if library.rd_kafka_assign(self._handle, partitions) != _OK:
                raise self._unreadable(offset, "its partition could not be assigned")
        finally:
            library.rd_kafka_topic_partition_list_destroy(partitions)
        self._position = offset

    def _unreadable(self, offset: int, reason: str) -> RecordUnreadable:
        return RecordUnreadable(
            f"{self._topic}-{self._partition}: the record at offset {offset} has a header key that "
            f"is not UTF-8, and {reason}. Set includeHeaders=false to read the records without "
            "headers, or start after that offset.",
            topic=self._topic,
            partition=self._partition,
            offset=offset,
        )


def _load_library() -> Any:
    """Load confluent_kafka's librdkafka and declare the functions that are not plain `int
    (...)`."""
    from confluent_kafka import cimpl

    library = ctypes.CDLL(cimpl.__file__)
    for name in (
        "rd_kafka_conf_new",
        "rd_kafka_new",
        "rd_kafka_topic_partition_list_new",
        "rd_kafka_topic_partition_list_add",
    ):
        getattr(library, name).restype = c_void_p
    for name in (
        "rd_kafka_conf_destroy",
        "rd_kafka_destroy",
        "rd_kafka_message_destroy",
        "rd_kafka_topic_partition_list_destroy",
    ):
        getattr(library, name).restype = None
    library.rd_kafka_consumer_poll.restype = ctypes.POINTER(_Message)
    return library
