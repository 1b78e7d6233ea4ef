"""Options of the data source `headrace`, parsed from Spark's options into typed values.

Invariants: pure. Every unknown or contradictory option raises an OptionInvalid that names it. Spark
passes option names in any case; `kafka.*` options are the client's (`client_settings.py`). A topic
that an operator writes as `acme/orders` gets the name that Kafka's protocol has for it, here and in
the column topic of rows to write (`rows.py`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from headrace.pipeline.catalog_tables import OF_NEW
from headrace.pipeline.client_settings import client_settings
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.planning import walk
from headrace.pipeline.row_filter import RowFilter
from headrace.pipeline.typed.options import NAMES as TYPED_OPTIONS
from headrace.pipeline.typed.options import TypedOptions, parse_typed
from headrace.records.tenant_names import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.pipeline.planning import Offsets

EARLIEST, LATEST = -2, -1  # Kafka's own numbers, also in the JSON of offsets

Boundary = Literal["earliest", "latest"] | dict[str, dict[str, int]]

BATCH_OPTIONS = (
    "bootstrap.servers", "subscribe", "subscribePattern", "assign", "startingOffsets",
    "endingOffsets", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "minPartitions",
    "maxRecordsPerTask", "failOnDataLoss", "stallTimeoutMs", "topicIds",
)  # fmt: skip
"""Those that a read of whole batches has: none that is about the records in them."""
_SOURCE_OPTIONS = (
    *BATCH_OPTIONS, "includeHeaders", "minOffsetsPerTrigger", "maxOffsetsPerTrigger",
    "maxTriggerDelay", "maxRecordsPerPartition", "pinEnd", "batchRows", "pushFilters",
    "objects", "http",
    *TYPED_OPTIONS,
)  # fmt: skip
_SINK_OPTIONS = (
    "bootstrap.servers", "topic", "writeId", "sortRows", "deliveryTimeoutMs", "delivery",
    *TYPED_OPTIONS,
)  # fmt: skip
_DELIVERIES = ("exactlyOnce", "atLeastOnce")
# Spark adds these to the user's options.
_SPARK_OPTIONS = {"path", "checkpointlocation", "queryname"}
_NOT_NEEDED = {
    "kafkaconsumer.polltimeoutms": "stallTimeoutMs says how long a silent broker is waited for",
    "fetchoffset.numretries": "requests are repeated until stallTimeoutMs",
    "fetchoffset.retryintervalms": "requests are repeated until stallTimeoutMs",
    "groupidprefix": "no consumer group is used",
    "includetimestamp": "the columns timestamp and timestampType are always there",
}
"""Options of Spark's Kafka connector that have no meaning here."""
_TIME_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class SourceOptions:
    """A subscription with its bounds and limits. Counts are records, times are ms since 1970."""

    client: dict[str, str] = field(repr=False)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: dict[str, list[int]] = field(default_factory=dict)
    starting: Boundary = "earliest"
    ending: Boundary = "latest"
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    starting_times_ms: Offsets = field(default_factory=dict)
    ending_times_ms: Offsets = field(default_factory=dict)
    is_start_time_required: bool = False
    include_headers: bool = True
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_ms_max: int = 900_000
    partitions_min: int | None = None
    records_per_task_max: int | None = None
    fail_on_data_loss: bool = True
    pin_end: bool = False
    batch_rows: int = 10_000
    stall_timeout_ms: int = 60_000
    topic_ids: dict[str, str] = field(default_factory=dict)
    pushes_filters: bool = False
    row_filter: RowFilter = field(default_factory=RowFilter)
    typed: TypedOptions | None = None
    objects: str | None = None
    """Where tiered records are read instead of from brokers: a URL."""
    http: str | None = None

    @property
    def is_read_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out."""
        return self.client.get("isolation.level", "read_committed") == "read_committed"


@dataclass(frozen=True)
class SinkOptions:
    """The default topic of rows, and the sink's identity.

    `at_least_once` writes a replayed batch again instead of completing it.
    """

    client: dict[str, str] = field(repr=False)
    topic: str | None = None
    write_id: str | None = None
    sort_rows: bool = False
    delivery_timeout_ms: int = 60_000
    at_least_once: bool = False
    typed: TypedOptions | None = None


def parse_source(raw: Mapping[str, str], known: Sequence[str] = _SOURCE_OPTIONS) -> SourceOptions:
    """Parse the options of a read. Raises OptionInvalid for one that is not `known`, too."""
    options = _lower(raw, known)
    topics = topics_of(options.get("subscribe", ""))
    pattern = options.get("subscribepattern")
    assigned = _assignment(options.get("assign", "{}"))
    if bool(topics) + (pattern is not None) + bool(assigned) != 1:
        raise OptionInvalid(
            "Set exactly one of the options subscribe, subscribePattern and assign."
        )
    for boundary in ("starting", "ending"):
        ways = (f"{boundary}Offsets", f"{boundary}OffsetsByTimestamp", f"{boundary}Timestamp")
        given = [name for name in ways if name.lower() in options]
        if len(given) > 1:
            raise OptionInvalid(f"Set {given[0]} or {given[1]}, not both.")
    least, most = _count(options, "minoffsetspertrigger"), _count(options, "maxoffsetspertrigger")
    if least is not None and most is not None and least > most:
        raise OptionInvalid(f"minOffsetsPerTrigger {least} is larger than maxOffsetsPerTrigger.")
    return SourceOptions(
        client=_client(raw, options),
        topics=topics or tuple(assigned),
        pattern=pattern,
        assigned=assigned,
        starting=_boundary(options.get("startingoffsets", "earliest")),
        ending=_boundary(options.get("endingoffsets", "latest")),
        starting_timestamp_ms=_count(options, "startingtimestamp", least=0),
        ending_timestamp_ms=_count(options, "endingtimestamp", least=0),
        starting_times_ms=_times(options, "startingOffsetsByTimestamp"),
        ending_times_ms=_times(options, "endingOffsetsByTimestamp"),
        is_start_time_required=_strategy(options) == "error",
        include_headers=_flag(options, "includeheaders", default=True),
        offsets_per_trigger_max=most,
        offsets_per_trigger_min=least,
        trigger_delay_ms_max=_duration_ms(options, "maxTriggerDelay", "15m"),
        partitions_min=_count(options, "minpartitions"),
        records_per_task_max=_count(options, "maxrecordspertask")
        or _count(options, "maxrecordsperpartition"),
        fail_on_data_loss=_flag(options, "failondataloss", default=True),
        pin_end=_flag(options, "pinend", default=False),
        batch_rows=_count(options, "batchrows") or 10_000,
        stall_timeout_ms=_count(options, "stalltimeoutms") or 60_000,
        topic_ids=_topic_ids(options.get("topicids", "{}")),
        pushes_filters=_flag(options, "pushfilters", default=False),
        typed=parse_typed(options),
        objects=options.get("objects"),
        http=_http(options),
    )


def parse_sink(raw: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises OptionInvalid."""
    options = _lower(raw, _SINK_OPTIONS)
    return SinkOptions(
        client=_client(raw, options),
        topic=key_of(options["topic"]) if "topic" in options else None,
        write_id=options.get("writeid"),
        sort_rows=_flag(options, "sortrows", default=False),
        delivery_timeout_ms=_count(options, "deliverytimeoutms") or 60_000,
        at_least_once=_is_at_least_once(options),
        typed=parse_typed(options),
    )


def topics_of(text: str) -> tuple[str, ...]:
    """Topics by name, separated by commas; an operator writes a tenant's as `acme/orders`."""
    return tuple(key_of(name.strip()) for name in text.split(",") if name.strip())


def offsets_to_json(offsets: Offsets) -> str:
    """Encode offsets as option text; the inverse of `_boundary`."""
    return json.dumps(offsets, sort_keys=True, separators=(",", ":"))


def _lower(raw: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    options = {name.lower(): str(value) for name, value in dict(raw).items()}
    if any(name.startswith(OF_NEW) for name in options):
        raise OptionInvalid(
            "A table of Spark's catalog is for reads. Nothing was created or written. Write with"
            " format and options, or to a view: CREATE TEMPORARY VIEW ... USING ... OPTIONS (...)."
        )
    by_lower = {name.lower(): name for name in known}
    for name in sorted(options):
        if name in by_lower or name in _SPARK_OPTIONS or name.startswith("kafka."):
            continue
        if name in _NOT_NEEDED:
            advice = f"It has no meaning here: {_NOT_NEEDED[name]}. Remove it."
        elif alike := get_close_matches(name, by_lower, 1, cutoff=0.6):
            advice = f"Did you mean {by_lower[alike[0]]}?"
        else:
            advice = f"Settings of the client begin with kafka.; others are {', '.join(known)}."
        raise OptionInvalid(f"Unknown option {name!r}. {advice}", option=name)
    return options


def _client(raw: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    client = client_settings({
        name[len("kafka.") :]: str(value)
        for name, value in dict(raw).items()
        if name.lower().startswith("kafka.")
    })  # fmt: skip
    if "bootstrap.servers" in options:
        client["bootstrap.servers"] = options["bootstrap.servers"]
    if not client.get("bootstrap.servers"):
        raise OptionInvalid(
            "The option bootstrap.servers is missing: set it to a broker's host:port."
        )
    return client


def _boundary(text: str) -> Boundary:
    word = text.strip()
    if word.lower() == "earliest":
        return "earliest"
    if word.lower() == "latest":
        return "latest"
    try:
        parsed = json.loads(word)
        offsets = {
            key_of(topic): {str(int(number)): int(offset) for number, offset in by_number.items()}
            for topic, by_number in parsed.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionInvalid(
            'Offsets must be "earliest", "latest" or JSON like'
            f' {{"topic":{{"0":23,"1":-2}}}}, not {text!r}.'
        ) from error
    for topic, partition, offset in walk(offsets):
        if offset < EARLIEST:
            raise OptionInvalid(
                f"Offset {offset} of {topic}-{partition} is negative. It must be at least 0,"
                f" or {EARLIEST} for the log start, or {LATEST} for the log end."
            )
    return offsets


def _assignment(text: str) -> dict[str, list[int]]:
    try:
        found = {
            key_of(t): [int(one) for one in numbers] for t, numbers in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionInvalid(
            f'The option assign must be JSON like {{"topic":[0,1]}}, not {text!r}.', option="assign"
        ) from error
    if any(number < 0 for numbers in found.values() for number in numbers):
        raise OptionInvalid("The option assign names a negative partition.", option="assign")
    return found


def _times(options: Mapping[str, str], name: str) -> Offsets:
    text = options.get(name.lower(), "{}")
    try:
        found = {
            key_of(topic): {str(int(number)): int(time_ms) for number, time_ms in by_number.items()}
            for topic, by_number in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionInvalid(
            f'The option {name} must be JSON like {{"topic":{{"0":1700000000000}}}} in'
            f" milliseconds since 1970, not {text!r}.",
            option=name.lower(),
        ) from error
    if any(time_ms < 0 for *_, time_ms in walk(found)):
        raise OptionInvalid(f"The option {name} names a time before 1970.", option=name.lower())
    return found


def _strategy(options: Mapping[str, str]) -> str:
    name = "startingOffsetsByTimestampStrategy"
    word = options.get(name.lower(), "latest").lower()
    if word not in ("error", "latest"):
        raise OptionInvalid(f"Option {name} must be error or latest, not {word!r}.", option=name)
    return word


def _duration_ms(options: Mapping[str, str], name: str, default: str) -> int:
    text = options.get(name.lower(), default)
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|d)\s*", text)
    if found is None:
        raise OptionInvalid(
            f"Option {name} must be a duration such as 500ms, 30s or 15m, not {text!r}.",
            option=name,
        )
    return int(found[1]) * _TIME_UNITS[found[2]]


def _topic_ids(text: str) -> dict[str, str]:
    try:
        return {key_of(topic): str(topic_id) for topic, topic_id in json.loads(text).items()}
    except (ValueError, AttributeError) as error:
        raise OptionInvalid(
            f'The option topicIds must be JSON like {{"topic":"id"}}, not {text!r}.',
            option="topicids",
        ) from error


def _http(options: Mapping[str, str]) -> str | None:
    if "objects" in options and "http" not in options:
        raise OptionInvalid(
            "The option objects needs the option http, [https://]host:port of a broker: it lists"
            " what is in object storage.",
            option="objects",
        )
    return options.get("http")


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    word = options.get(name, str(default)).lower()
    if word not in ("true", "false"):
        raise OptionInvalid(f"Option {name} must be true or false, not {word!r}.", option=name)
    return word == "true"


def _is_at_least_once(options: Mapping[str, str]) -> bool:
    word = options.get("delivery", "exactlyOnce")
    if word.lower() not in map(str.lower, _DELIVERIES):
        raise OptionInvalid(
            f"Option delivery must be {' or '.join(_DELIVERIES)}, not {word!r}.", option="delivery"
        )
    return word.lower() == "atleastonce"


def _count(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    if name not in options:
        return None
    try:
        value = int(options[name])
    except ValueError:
        value = least - 1
    if value < least:
        raise OptionInvalid(
            f"Option {name} must be an integer of at least {least}, not {options[name]!r}.",
            option=name,
        )
    return value
