"""The data source `headrace-journal`: what groups did with the records of topics, as a table.

Invariants: bounded reads only. Share groups' changes come from their journals, over HTTP; consumer
groups have no journal, and one row for each partition says what they have committed. A pickled
reader carries options only. Spark imports this module in every worker: keep it light.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.pipeline.catalog_tables import options_of_read, schema_of
from headrace.pipeline.client_settings import client_settings
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.journal_pages import JournalChange, WebAddress
from headrace.pipeline.planning import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

JOURNAL_FORMAT: Final = "headrace-journal"
SCHEMA: Final = (
    "topic string, partition int, group_name string, event string, first_offset bigint,"
    " last_offset bigint, deliveries int, at timestamp, position bigint"
)
COMMITTED: Final = "committed"
"""A consumer group's committed offset is `last_offset` + 1."""
_OPTIONS: Final = ("bootstrap.servers", "subscribe", "http", "groups", "stallTimeoutMs")
_SPARK_OPTIONS: Final = {"path"}


@dataclass(frozen=True)
class JournalOptions:
    """Which topics' journals to read; `groups` None: of all groups that the client may see."""

    client: dict[str, str] = field(repr=False)
    topics: tuple[str, ...]
    web: WebAddress
    groups: frozenset[str] | None = None


def parse_journal(raw: Mapping[str, str]) -> JournalOptions:
    """Parse the options of a read. Raises OptionInvalid."""
    kafka = {name[6:]: value for name, value in raw.items() if name.lower().startswith("kafka.")}
    rest = {name.lower(): value for name, value in raw.items() if name[:6].lower() != "kafka."}
    known = {name.lower(): name for name in _OPTIONS}
    for name in rest.keys() - known.keys() - _SPARK_OPTIONS:
        close = get_close_matches(name, known, 1)
        hint = f" Did you mean {known[close[0]]}?" if close else ""
        raise OptionInvalid(f"Unknown option {name!r} of {JOURNAL_FORMAT}.{hint}", option=name)
    for name in ("bootstrap.servers", "subscribe", "http"):
        if not rest.get(name, "").strip():
            raise OptionInvalid(
                f"Set the option {name} of {JOURNAL_FORMAT}: it reads the journals of share groups"
                " over HTTP, and offsets over Kafka's protocol.",
                option=name,
            )
    try:
        stall_timeout_ms = int(rest.get("stalltimeoutms", "60000"))
    except ValueError:
        raise OptionInvalid(
            "Option stallTimeoutMs must be an integer.", option="stallTimeoutMs"
        ) from None
    client = {"bootstrap.servers": rest["bootstrap.servers"], **client_settings(kafka)}
    groups = rest.get("groups")
    return JournalOptions(
        client,
        _names(rest["subscribe"]),
        WebAddress(rest["http"].strip(), client, stall_timeout_ms),
        None if groups is None else frozenset(_names(groups)),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


class _Journal(InputPartition):
    """The journal of one partition of a topic."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__((topic, partition))


class _Committed(InputPartition):
    """The committed offsets of consumer groups in all subscribed topics."""

    def __init__(self) -> None:
        super().__init__(None)


class JournalReader(DataSourceReader):
    """A read, planned once: a task for each partition, and one for committed offsets."""

    def __init__(self, options: JournalOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises OptionInvalid, BrokerUnavailable, ReadRefused."""
        cluster = ClusterClient(self.options.client)
        found = cluster.subscription_of(self.options.topics, None)
        with self.options.web.opened() as web:
            here = cluster.cluster_id()
            there = web.check_cluster(here)
        if there != here:
            raise OptionInvalid(
                f"The broker at {self.options.web.address} takes the client for one of another"
                " tenant than the brokers at bootstrap.servers do: a topic of the same name is"
                " another one there. Nothing was read. Set the option http to a listener where the"
                " client logs in as the same user.",
                option="http",
            )
        journals = [_Journal(topic, number) for topic, number, _ in walk(found.partitions)]
        return [*journals, _Committed()]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Read one task."""
        if isinstance(partition, _Journal):
            topic, number = partition.value
            wanted = self.options.groups
            with self.options.web.opened() as web:
                changes = web.changes(topic, number)
            rows = [
                (topic, number, one)
                for one in changes
                if wanted is None or one.group_name is None or one.group_name in wanted
            ]
            yield from _batches(rows)
        elif isinstance(partition, _Committed):
            cluster = ClusterClient(self.options.client)
            yield from _batches(
                [
                    (topic, number, JournalChange(group, COMMITTED, 0, offset - 1))
                    for group, offsets in cluster.committed_of(self.options.groups).items()
                    for topic, number, offset in walk(offsets)
                    if topic in self.options.topics
                ]
            )


_BATCH_ROWS: Final = 10_000


def _batches(rows: list[tuple[str, int, JournalChange]]) -> Iterator[Any]:
    import pyarrow as pa

    times = pa.timestamp("us", tz="UTC")
    for begin in range(0, len(rows), _BATCH_ROWS):
        part = rows[begin : begin + _BATCH_ROWS]
        changes = [change for _, _, change in part]
        columns = {
            "topic": pa.array([topic for topic, _, _ in part], pa.string()),
            "partition": pa.array([number for _, number, _ in part], pa.int32()),
            "group_name": pa.array([one.group_name for one in changes], pa.string()),
            "event": pa.array([one.event for one in changes], pa.string()),
            "first_offset": pa.array([one.first for one in changes], pa.int64()),
            "last_offset": pa.array([one.last for one in changes], pa.int64()),
            "deliveries": pa.array([one.deliveries for one in changes], pa.int32()),
            "at": pa.array(
                [None if one.at_ms is None else one.at_ms * 1000 for one in changes], pa.int64()
            ).cast(times),
            "position": pa.array([one.position for one in changes], pa.int64()),
        }
        yield pa.RecordBatch.from_pydict(columns)


class JournalDataSource(DataSource):
    """`format("headrace-journal")`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return JOURNAL_FORMAT

    def schema(self) -> str | StructType:
        """The columns of a read. Raises OptionInvalid."""
        return schema_of(self.options, SCHEMA, parse_journal)

    def reader(self, schema: StructType) -> JournalReader:
        """A bounded read. Raises OptionInvalid."""
        return JournalReader(parse_journal(options_of_read(self.options, schema)))
