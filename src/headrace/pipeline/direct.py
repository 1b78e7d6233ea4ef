"""Reads one offset range as whole record batches, decoded straight into Arrow columns.

Responsibilities: finds the partition's leader, fetches, skips what `read_committed` hides, and
retries while the cluster moves. Used wherever the client settings are ones it knows
(`is_possible`); `fetch.py` reads through librdkafka otherwise.

Invariants: every record of the range that the log holds is returned once, in order. The next
batches are requested before the last ones are decoded, so at most two responses are in memory, of
`FETCH_BYTES_MAX` each or of one batch, beside the columns of one Arrow batch.
"""

from __future__ import annotations

import ssl
from contextlib import closing
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import BatchCorrupt
from headrace.pipeline.broker_connection import (
    CLIENT_ID,
    MECHANISMS,
    BrokerConnection,
    FetchedPartition,
    FetchRequest,
)
from headrace.pipeline.column_arrays import batch_of
from headrace.pipeline.errors import ReadRefused, ReadStalled
from headrace.pipeline.refusals import read_refused
from headrace.records.batch import MAGIC, BatchHeader, is_intact, iterate_headers
from headrace.records.columnar import BatchCursor, RecordColumns
from headrace.records.marker import read_marker
from headrace.runtime.access import MECHANISM, PROTOCOL, access_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from headrace.log.ledger_objects import LedgerPlace
    from headrace.pipeline.options import SourceOptions
    from headrace.pipeline.planning import OffsetRange

FETCH_BYTES_MAX: Final = 4 << 20
COLUMN_BYTES_MAX: Final = 4 << 20
"""Of one Arrow batch. Records of 1 KiB in batches of 10 MiB cost 10 to 30 % more CPU: memory of
that size is given back to the system each time."""
_BATCH_BYTES_LIMIT: Final = 1 << 30
_WAIT_MS: Final = 500
_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.1
_MS_TO_NS: Final = 1_000_000
UNDERSTOOD: Final = frozenset({
    "bootstrap.servers", "isolation.level", "client.id", "group.id", "log_level", "check.crcs",
    PROTOCOL, MECHANISM, "sasl.mechanisms", "sasl.username", "sasl.password",
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem",
    "ssl.key.location", "ssl.key.pem", "ssl.key.password", "enable.ssl.certificate.verification",
    "ssl.endpoint.identification.algorithm",
    # These tune librdkafka's queues and have no counterpart here.
    "fetch.wait.max.ms", "fetch.queue.backoff.ms", "fetch.message.max.bytes", "fetch.min.bytes",
    "fetch.max.bytes", "max.partition.fetch.bytes", "queued.min.messages",
    "queued.max.messages.kbytes", "socket.timeout.ms", "receive.message.max.bytes",
    "topic.metadata.refresh.interval.ms", "metadata.max.age.ms",
})  # fmt: skip
_OFFSET_OUT_OF_RANGE: Final = 1
PASSING: Final = frozenset({3, 5, 6, 7, 8, 9, 13, 56, 74, 75, 76, 78, 100, 103})
"""Codes with which another broker, or the same one later, may serve the request: Kafka's from
UNKNOWN_TOPIC_OR_PARTITION to NETWORK_EXCEPTION, KAFKA_STORAGE_ERROR, those of epochs and ids."""


class Batch(NamedTuple):
    """A batch at a position of a response, and the offsets that were asked for, `end` exclusive: a
    batch may begin before them, even before the log start."""

    position: int
    header: BatchHeader
    first: int
    end: int


def is_possible(client: Mapping[str, str]) -> bool:
    """Whether this module knows all of these client settings."""
    return client.keys() <= UNDERSTOOD and is_login_possible(client)


def is_login_possible(client: Mapping[str, str]) -> bool:
    """Whether `BrokerConnection` can log in as these client settings say."""
    if not client.get(PROTOCOL, "").upper().startswith("SASL"):
        return True
    mechanism = client.get(MECHANISM) or client.get("sasl.mechanisms") or ""
    return mechanism.upper() in MECHANISMS


def read_directly(
    piece: OffsetRange, options: SourceOptions, places: Sequence[LedgerPlace] = ()
) -> Iterator[Any]:
    """Yield the records of `piece` as Arrow batches in the source's column order, those of the
    ledgers at `places` from object storage.

    Raises RecordsLost if the range begins before the log start (failOnDataLoss), ReadStalled if no
    broker returns records for `stall_timeout_ms`, RecordUnreadable for a damaged batch, ReadRefused
    if the broker refuses, AuthenticationFailed.
    """

    def new_columns() -> RecordColumns:
        return RecordColumns(
            options.batch_rows, COLUMN_BYTES_MAX, has_headers=options.include_headers
        )

    columns = new_columns()
    with closing(_batches(piece, options, places)) as batches:
        for data, batch, is_aborted in batches:
            if is_aborted or batch.header.is_control:
                continue
            with _readable(piece, batch):
                cursor = BatchCursor(data, batch.position, batch.header, batch.first, batch.end)
                while not cursor.decode_into(columns):
                    yield batch_of(columns, piece.topic, piece.partition)
                    columns = new_columns()
        if columns.row_count:
            yield batch_of(columns, piece.topic, piece.partition)


def _batches(
    piece: OffsetRange, options: SourceOptions, places: Sequence[LedgerPlace]
) -> Generator[tuple[bytes, Batch, bool]]:
    """See `LogReader.batches`."""
    if places:
        from headrace.pipeline.stored_batches import stored_batches

        yield from stored_batches(piece, options, places)
        return
    reader = LogReader(piece, options)
    try:
        yield from reader.batches(piece.start, piece.end)
    finally:
        reader.close()


def read_headers(piece: OffsetRange, options: SourceOptions) -> Iterator[tuple[BatchHeader, bool]]:
    """Yield the header of each batch, markers included, whose last offset is in `piece`, and
    whether it belongs to an aborted transaction, which `read_uncommitted` does not know.

    Raises what `read_directly` raises.
    """
    reader = LogReader(piece, options)
    try:
        for _, batch, is_aborted in reader.batches(piece.start, piece.end):
            if batch.header.last_offset < piece.end:
                yield batch.header, is_aborted
    finally:
        reader.close()


def _check_batch(data: bytes, batch: Batch) -> None:
    """Raises BatchCorrupt if its bytes are not those that were written."""
    position, header, *_asked = batch
    if header.magic != MAGIC:
        raise BatchCorrupt(f"its format {header.magic} is not {MAGIC}, which Kafka 0.11 introduced")
    if not is_intact(data, position, header):
        raise BatchCorrupt("its CRC-32C does not match its bytes")


def intact(piece: OffsetRange, data: bytes, batches: Sequence[Batch]) -> Iterator[Batch]:
    """The batches of the range, each checked once. Raises RecordUnreadable.

    Before `with_aborted`: one flipped bit in a header would make data a marker, or an aborted
    batch, which is skipped.
    """
    for batch in batches:
        if batch.header.base_offset >= piece.end:
            return
        with _readable(piece, batch):
            _check_batch(data, batch)
        yield batch


class _readable:  # noqa: N801 - a context manager, as a function would be
    """Names the place of a batch that cannot be decoded."""

    def __init__(self, piece: OffsetRange, batch: Batch) -> None:
        self._piece, self._batch = piece, batch

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, BatchCorrupt):
            raise self._piece.unreadable(self._batch.header.base_offset, error) from error


class LogReader:
    """The batches of a range, wherever its partition is served."""

    def __init__(self, piece: OffsetRange, options: SourceOptions) -> None:
        self._piece = piece
        self._options = options
        self._access = access_of(options.client)
        self._is_read_committed = options.is_read_committed
        self._connection: BrokerConnection | None = None
        self._asked = -1
        self._bytes_max = FETCH_BYTES_MAX
        self._progress_ns = monotonic_ns()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._asked = None, -1

    def batches(self, start: int, end: int) -> Iterator[tuple[bytes, Batch, bool]]:
        """Yield (response, batch, is aborted) of each batch that has offsets from `start` to before
        `end`.

        Raises RecordUnreadable, and what `_fetch` and `_first_present` raise.
        """
        self._piece = self._piece._replace(start=start, end=end)
        self._progress_ns = monotonic_ns()
        position = start
        while position < end:
            fetched = self._fetch(position)
            if fetched is None:
                position = self._first_present(position)
                continue
            found = self._batches_of(fetched, position)
            if not found:
                if self._is_at_end(fetched, position):
                    return
                continue
            self._progress_ns = monotonic_ns()
            position = found[-1].header.last_offset + 1
            if position < end:
                self._request(position)
            checked = intact(self._piece, fetched.data, found)
            for batch, is_aborted in with_aborted(
                self._piece, fetched.data, fetched.aborted, checked
            ):
                yield fetched.data, batch, is_aborted
            self._progress_ns = monotonic_ns()  # the consumer's time is not the broker's

    def _batches_of(self, fetched: FetchedPartition, position: int) -> list[Batch]:
        """The complete batches of a response. Raises RecordUnreadable."""
        try:
            found = [
                Batch(at, header, position, self._piece.end)
                for at, header in iterate_headers(fetched.data)
            ]
        except BatchCorrupt as error:
            raise self._piece.unreadable(position, error) from error
        if fetched.data and not found:
            if self._bytes_max >= _BATCH_BYTES_LIMIT:
                raise self._piece.unreadable(position, "it is larger than 1 GiB")
            self._bytes_max *= 2  # a broker that does not return a larger batch by itself
        last = position - 1
        for batch in found:
            if batch.header.last_offset < max(last + 1, batch.header.base_offset):
                raise self._piece.unreadable(last + 1, "its offsets do not ascend")
            last = batch.header.last_offset
        return found

    def _is_at_end(self, fetched: FetchedPartition, position: int) -> bool:
        """Whether an empty response ends the read. Raises ReadStalled.

        A replica may lag, so with failOnDataLoss the stall time-out decides.
        """
        end = fetched.last_stable_offset if self._is_read_committed else fetched.high_watermark
        if not self._options.fail_on_data_loss and not fetched.data and 0 <= end <= position:
            return True
        self._check_stalled(position, "the broker returns no records")
        return False

    def _fetch(self, position: int) -> FetchedPartition | None:
        """The response at `position`; None if the log does not have it any more.

        Raises ReadStalled, ReadRefused, AuthenticationFailed.
        """
        while True:
            try:
                if self._asked != position:
                    self._ask(position)
                assert self._connection is not None, "it was asked"
                fetched = self._connection.receive_fetch()
                self._asked = -1
            except ssl.SSLCertVerificationError as error:
                raise self._refused(f"its certificate is not trusted ({error.reason})") from error
            except OSError as error:
                self._retry(position, str(error) or type(error).__name__)
                continue
            if fetched.error_code == 0:
                return fetched
            if fetched.error_code == _OFFSET_OUT_OF_RANGE:
                return None
            if fetched.error_code not in PASSING:
                raise self._refused(name_of(fetched.error_code))
            self._retry(position, f"error {fetched.error_code} ({name_of(fetched.error_code)})")

    def _request(self, position: int) -> None:
        """Request what comes next, so that the broker reads while this process decodes."""
        assert self._connection is not None, "it has just answered"
        try:
            self._send(self._connection, position)
        except OSError:
            self.close()  # `_fetch` finds the leader again

    def _ask(self, position: int) -> None:
        self._asked = -1
        if self._connection is None:
            self._connection = self._connect()
        self._send(self._connection, position)

    def _send(self, connection: BrokerConnection, position: int) -> None:
        piece = self._piece
        connection.send_fetch(
            FetchRequest(
                piece.topic,
                piece.partition,
                position,
                _WAIT_MS,
                self._bytes_max,
                self._is_read_committed,
            )
        )
        self._asked = position

    def _connect(self) -> BrokerConnection:
        """Connect to the partition's leader. Raises OSError, AuthenticationFailed."""
        failure: OSError = ConnectionError("bootstrap.servers names no broker")
        for address in addresses_of(self._options.client["bootstrap.servers"]):
            try:
                with self._connected(address) as connection:
                    leader = connection.leader_of(self._piece.topic, self._piece.partition)
            except OSError as error:
                failure = error
                continue
            if leader.address is not None:
                return self._connected(leader.address)
            failure = ConnectionError(
                f"the partition has no leader ({name_of(leader.error_code)})"
                if leader.error_code
                else "the partition has no leader"
            )
            if leader.error_code and leader.error_code not in PASSING:
                raise self._refused(name_of(leader.error_code))
        raise failure

    def _connected(self, address: tuple[str, int]) -> BrokerConnection:
        client_id = self._options.client.get("client.id", CLIENT_ID)
        return BrokerConnection(address, self._access, _TIMEOUT_S, client_id)

    def _first_present(self, position: int) -> int:
        """The log start, where a range whose start was deleted continues. Raises RecordsLost."""
        from headrace.pipeline.cluster import ClusterClient
        from headrace.pipeline.planning import build, offset_of

        piece = self._piece
        if self._options.fail_on_data_loss:
            raise piece.lost(position)
        asked = build([(piece.topic, piece.partition, 0)])
        starts = ClusterClient(self._options.client).earliest(asked)
        start = offset_of(starts, piece.topic, piece.partition, 0)
        return start if start > position else piece.end

    def _retry(self, position: int, cause: str) -> None:
        self.close()
        self._check_stalled(position, cause)
        sleep(_PAUSE_S)

    def _check_stalled(self, position: int, cause: str) -> None:
        piece, timeout_ms = self._piece, self._options.stall_timeout_ms
        if monotonic_ns() - self._progress_ns > timeout_ms * _MS_TO_NS:
            raise ReadStalled(
                f"{piece.topic}-{piece.partition}: no records arrived for {timeout_ms} ms at"
                f" offset {position}, although the range ends at {piece.end}: {cause}. Is the"
                " broker up? Spark retries the task."
            )

    def _refused(self, reason: str) -> ReadRefused:
        piece = self._piece
        return read_refused(self._options.client, piece.topic, piece.partition, reason)


def with_aborted(
    piece: OffsetRange,
    data: bytes,
    transactions: Sequence[tuple[int, int]],
    batches: Iterator[Batch],
) -> Iterator[tuple[Batch, bool]]:
    """The batches, and whether each belongs to an aborted transaction (KIP-98, `AbortedTxn`):
    `transactions` are (producer id, first offset).

    With read_uncommitted, brokers report no aborted transactions. Raises RecordUnreadable for a
    marker that cannot be decoded.
    """
    begun = sorted(transactions, key=lambda pair: pair[1], reverse=True)
    aborted: set[int] = set()
    for batch in batches:
        header = batch.header
        while begun and begun[-1][1] <= header.last_offset:
            aborted.add(begun.pop()[0])
        if header.is_control:
            with _readable(piece, batch):
                marker = read_marker(data, batch.position)
            if marker is not None and not marker.is_commit:
                aborted.discard(header.producer_id)
        is_data = header.is_transactional and not header.is_control
        yield batch, is_data and header.producer_id in aborted


def addresses_of(servers: str) -> list[tuple[str, int]]:
    """Parse `host:port,...`; the port is 9092 where none is given. Raises ReadRefused."""
    found = []
    for server in filter(None, map(str.strip, servers.split(","))):
        host, colon, port = server.rpartition(":")
        if not colon or server.endswith("]"):
            host, port = server, "9092"
        if not port.isdecimal():
            raise ReadRefused(f"bootstrap.servers names {server!r}, which is not host:port.")
        found.append((host.strip("[]"), int(port)))
    return found


def name_of(code: int) -> str:
    """librdkafka's name of an error code."""
    from confluent_kafka import KafkaError

    return str(KafkaError(code).name())
