"""Options of the data source `headrace`, parsed from Spark's options into typed values.

Invariants: pure. Every unknown or contradictory option raises an OptionInvalid that names it. Spark
passes option names in any case; `kafka.*` options go to the client unchanged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.planning import walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.pipeline.planning import Offsets

EARLIEST, LATEST = -2, -1  # Kafka's own numbers, also in the JSON of offsets

Boundary = Literal["earliest", "latest"] | dict[str, dict[str, int]]

_SOURCE_OPTIONS = {
    "bootstrap.servers", "subscribe", "subscribepattern", "startingoffsets", "endingoffsets",
    "startingtimestamp", "endingtimestamp", "includeheaders", "maxoffsetspertrigger",
    "minpartitions", "maxrecordspertask", "failondataloss", "pinend", "batchrows",
    "stalltimeoutms", "topicids",
}  # fmt: skip
_SINK_OPTIONS = {
    "bootstrap.servers", "topic", "writeid", "sortrows", "deliverytimeoutms", "delivery",
}  # fmt: skip
_DELIVERIES = ("exactlyOnce", "atLeastOnce")
# Spark adds these to the user's options.
_SPARK_OPTIONS = {"path", "checkpointlocation", "queryname"}


@dataclass(frozen=True)
class SourceOptions:
    """A subscription with its bounds and limits. Counts are records, times are ms since 1970."""

    client: dict[str, str]
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    starting: Boundary = "earliest"
    ending: Boundary = "latest"
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    include_headers: bool = True
    offsets_per_trigger_max: int | None = None
    partitions_min: int | None = None
    records_per_task_max: int | None = None
    fail_on_data_loss: bool = True
    pin_end: bool = False
    batch_rows: int = 10_000
    stall_timeout_ms: int = 60_000
    topic_ids: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SinkOptions:
    """The default topic of rows, and the sink's identity.

    `at_least_once` writes a replayed batch again instead of completing it.
    """

    client: dict[str, str]
    topic: str | None = None
    write_id: str | None = None
    sort_rows: bool = False
    delivery_timeout_ms: int = 60_000
    at_least_once: bool = False


def parse_source(raw: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read. Raises OptionInvalid."""
    options = _lower(raw, _SOURCE_OPTIONS)
    topics = tuple(name.strip() for name in options.get("subscribe", "").split(",") if name.strip())
    pattern = options.get("subscribepattern")
    if bool(topics) == (pattern is not None):
        raise OptionInvalid("Set exactly one of the options subscribe and subscribePattern.")
    for boundary in ("starting", "ending"):
        if f"{boundary}timestamp" in options and f"{boundary}offsets" in options:
            raise OptionInvalid(f"Set {boundary}Offsets or {boundary}Timestamp, not both.")
    return SourceOptions(
        client=_client(raw, options),
        topics=topics,
        pattern=pattern,
        starting=_boundary(options.get("startingoffsets", "earliest")),
        ending=_boundary(options.get("endingoffsets", "latest")),
        starting_timestamp_ms=_count(options, "startingtimestamp", least=0),
        ending_timestamp_ms=_count(options, "endingtimestamp", least=0),
        include_headers=_flag(options, "includeheaders", default=True),
        offsets_per_trigger_max=_count(options, "maxoffsetspertrigger"),
        partitions_min=_count(options, "minpartitions"),
        records_per_task_max=_count(options, "maxrecordspertask"),
        fail_on_data_loss=_flag(options, "failondataloss", default=True),
        pin_end=_flag(options, "pinend", default=False),
        batch_rows=_count(options, "batchrows") or 10_000,
        stall_timeout_ms=_count(options, "stalltimeoutms") or 60_000,
        topic_ids=_topic_ids(options.get("topicids", "{}")),
    )


def parse_sink(raw: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises OptionInvalid."""
    options = _lower(raw, _SINK_OPTIONS)
    return SinkOptions(
        client=_client(raw, options),
        topic=options.get("topic"),
        write_id=options.get("writeid"),
        sort_rows=_flag(options, "sortrows", default=False),
        delivery_timeout_ms=_count(options, "deliverytimeoutms") or 60_000,
        at_least_once=_is_at_least_once(options),
    )


def offsets_to_json(offsets: Offsets) -> str:
    """Encode offsets as option text; the inverse of `_boundary`."""
    return json.dumps(offsets, sort_keys=True, separators=(",", ":"))


def _lower(raw: Mapping[str, str], known: set[str]) -> dict[str, str]:
    options = {name.lower(): str(value) for name, value in dict(raw).items()}
    for name in sorted(options):
        if name not in known and name not in _SPARK_OPTIONS and not name.startswith("kafka."):
            raise OptionInvalid(
                f"Unknown option {name!r} (known: {', '.join(sorted(known))}, kafka.*).",
                option=name,
            )
    return options


def _client(raw: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    client = {
        name[len("kafka.") :]: str(value)
        for name, value in dict(raw).items()
        if name.lower().startswith("kafka.")
    }
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
            str(topic): {str(int(number)): int(offset) for number, offset in by_number.items()}
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


def _topic_ids(text: str) -> dict[str, str]:
    try:
        return {str(topic): str(topic_id) for topic, topic_id in json.loads(text).items()}
    except (ValueError, AttributeError) as error:
        raise OptionInvalid(
            f'The option topicIds must be JSON like {{"topic":"id"}}, not {text!r}.',
            option="topicids",
        ) from error


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
