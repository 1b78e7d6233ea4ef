"""Redrive or drop dead letters by SQL, edited on the way, each exactly once.

Invariants: a run decides each letter from the group's offset to the end that it pinned: it is sent,
dropped, or kept, that is, appended to the dead letter topic again. Offsets are those of
`headrace dead redrive`, so both see the same rest; only one of them may run at a time. The order of
keys is kept. A letter that was sent back `loop_max` times is kept, as is one whose origin is
unknown or has been deleted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.headers import NAMED_SEQUENCE, with_header, without
from headrace.pipeline.jobs.letters import UNSURE_KINDS, find_edits, letters_of, own_headers
from headrace.pipeline.jobs.rights import missing_rights
from headrace.pipeline.jobs.transfer import (
    CHUNK_RECORDS,
    Copy,
    CopyReport,
    check_keeps_order,
    check_repeats,
    digest_of,
    run_copy,
    stored_or_new,
)
from headrace.pipeline.jobs.windows import (
    WHOLE_LOG,
    Connection,
    Window,
    quoted,
    read_window,
    resolve_window,
)
from headrace.pipeline.options import parse_sink
from headrace.pipeline.planning import build, offset_of, walk
from headrace.pipeline.target import KafkaTopics
from headrace.records.identifiers import is_topic_name
from headrace.records.letters import REDRIVES
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.pipeline.jobs.transfer import Chunk

GROUP: Final = "headrace-redrive"  # do not change: stored, and that of `headrace dead redrive`
EDITABLE: Final = ("key", "value")
_NAMES_MAX: Final = 1_000
_COUNTS_CHARS_MAX: Final = 3_500
"""Of the topics in a job's state, which is metadata of offsets: brokers take 4,096 characters."""
SEND, DROP, KEEP = "sent", "dropped", "kept"
LOOPS, NO_ORIGIN, NO_TOPIC = "kept: loops", "kept: no origin", "kept: no such topic"


@dataclass(frozen=True)
class RedriveConfig:
    """Which letters to send, which to drop, and how.

    `where` and `drop` are SQL over a letter (the record and `letters.LETTER_COLUMNS`); `edits` are
    SQL for the key or value of what is sent; `target` None is the topic that a letter came from.
    """

    connection: Connection
    topic: str
    where: str = "true"
    drop: str = "false"
    edits: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None
    rate_per_s: float | None = None
    loop_max: int = 3
    chunk_records: int = CHUNK_RECORDS

    def __post_init__(self) -> None:
        check_repeats(self.where, self.drop, *self.edits.values())

    @property
    def spec(self) -> str:
        """What a restart has in common with the first run."""
        decided = (self.where, self.drop, dict(self.edits), self.target, self.loop_max)
        return digest_of(self.topic, *decided)

    @property
    def group(self) -> str:
        """The job's name: there is one for a dead letter topic."""
        return f"{GROUP}.{self.topic}"


def run_redrive(
    config: RedriveConfig,
    *,
    spark: Any,
    on_chunk: Callable[[Chunk], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CopyReport:
    """Decide all letters that are there now. A run after a kill continues the killed one."""
    return run_copy(_copy(config, spark), on_chunk=on_chunk, should_stop=should_stop)


def plan_redrive(config: RedriveConfig, *, spark: Any) -> dict[str, Any]:
    """What a run would do: letters by outcome and destination, and those to send whose producers
    may have chosen the destination (see `LetterFormat.keeps_copied`); writes nothing."""
    state, resumed = stored_or_new(_copy(config, spark))
    outcomes: dict[str, dict[str, int]] = {}
    unsure: dict[str, int] = {}
    if state.window.size:
        decided = _decided(config, spark, state.window, state.note)
        counted = decided.groupBy("outcome", "destination", "kind").count()
        for outcome, topic, kind, count in counted.collect():
            by_topic = outcomes.setdefault(outcome, {})
            name = topic if outcome == SEND else config.topic
            by_topic[name] = by_topic.get(name, 0) + count
            if outcome == SEND and config.target is None and kind in UNSURE_KINDS:
                unsure[topic] = unsure.get(topic, 0) + count
    found = {"window": state.window.document(), "resumed": resumed, "outcomes": outcomes}
    return {**found, "origin_unverified": unsure}


def _copy(config: RedriveConfig, spark: Any) -> Copy:
    for name in config.edits:
        if name not in EDITABLE:
            raise OptionInvalid(f"Only {' and '.join(EDITABLE)} can be edited, not {name!r}.")
    return Copy(
        config.connection,
        config.group,
        config.spec,
        window=lambda: _checked_window(config, spark),
        rows=lambda window, note: redriven(config, _decided(config, spark, window, note)),
        chunk_records=config.chunk_records,
        rate_per_s=config.rate_per_s,
        is_repeatable=True,
        note=lambda: {"topics": _destinations(config, spark)},
        source=config.topic,
        targets=lambda window, note: _targets(config, spark, window, note),
    )


def _targets(config: RedriveConfig, spark: Any, window: Window, note: dict[str, Any]) -> list[str]:
    """The topics to write to: the dead letter topic itself only if letters are kept, for which they
    are looked through where this client may not write to it."""
    named = [*note["topics"]]
    if missing_rights(config.connection, writes=(config.topic,)):
        decided = _decided(config, spark, window, note)
        if decided.where(f"outcome NOT IN ('{SEND}', '{DROP}')").isEmpty():
            return named
    return [*named, config.topic]


def _window(config: RedriveConfig) -> Window:
    """From the group's offsets to the end of the dead letter topic."""
    found = resolve_window(config.connection.cluster, (config.topic,), WHOLE_LOG)
    with KafkaTopics(parse_sink(config.connection.options)) as topics:
        marks = topics.marks(config.group)
    starts = [
        (topic, partition, max(low, marks.get((topic, partition), (0, ""))[0]))
        for topic, partition, low in walk(found.start)
    ]
    start = build([(t, p, min(o, offset_of(found.end, t, p, o))) for t, p, o in starts])
    return found._replace(start=start)


def _checked_window(config: RedriveConfig, spark: Any) -> Window:
    """The window. Raises OptionInvalid if letters in it were edited one by one: this job would send
    the originals."""
    window = _window(config)
    letters = letters_of(read_window(spark, config.connection, window))
    edits = find_edits(spark, config.connection, letters, window)
    if edits is not None and not edits.isEmpty():
        raise OptionInvalid(
            f"Letters in {config.topic} were edited one by one. Nothing was written. Redrive them"
            " with `headrace dead redrive`, which sends the edited ones."
        )
    return window


def _destinations(config: RedriveConfig, spark: Any) -> dict[str, int]:
    """The partition counts of the topics that exist, of those that letters go to."""
    named = [config.target]
    if config.target is None:
        letters = letters_of(read_window(spark, config.connection, _window(config)))
        sent = letters.where(
            f"coalesce({config.where}, false) AND NOT coalesce({config.drop}, false)"
        )
        rows = sent.where("length(origin_topic) < 300").select("origin_topic").distinct()
        named = [row["origin_topic"] for row in rows.limit(_NAMES_MAX + 1).collect()]
    # A letter may say anything.
    names = [name for name in named if name is not None and is_topic_name(name_in(name))]
    found = config.connection.cluster.describe(names)
    if config.target is not None and config.target not in found:
        raise OptionInvalid(f"There is no topic {config.target!r} on this broker.")
    counts = {name: facts.partition_count for name, facts in sorted(found.items())}
    if len(named) > _NAMES_MAX or len(json.dumps(counts)) > _COUNTS_CHARS_MAX:
        raise OptionInvalid(
            f"The letters to send came from too many topics for one run ({len(named)}). Nothing was"
            " written. Redrive some of them first, for example"
            " --where \"origin_topic = 'orders'\"."
        )
    return counts


def _decided(config: RedriveConfig, spark: Any, window: Window, note: dict[str, Any]) -> Any:
    """The letters with `destination` and `outcome`. Raises OptionInvalid for other than filters."""
    letters = letters_of(read_window(spark, config.connection, window))
    topics = ", ".join(quoted(name) for name in note["topics"]) or "''"
    destination = "origin_topic" if config.target is None else quoted(config.target)
    decided = letters.selectExpr(
        "*",
        f"{destination} AS destination",
        f"""CASE
            WHEN coalesce({config.drop}, false) THEN '{DROP}'
            WHEN NOT coalesce({config.where}, false) THEN '{KEEP}'
            WHEN {destination} IS NULL THEN '{NO_ORIGIN}'
            WHEN redrives >= {config.loop_max} OR {destination} = topic THEN '{LOOPS}'
            WHEN {destination} NOT IN ({topics}) THEN '{NO_TOPIC}'
            ELSE '{SEND}' END AS outcome""",
    )
    check_keeps_order(decided)
    return decided.withColumn("counts", _counts(note["topics"]))


def _counts(topics: Mapping[str, int]) -> Any:
    """The partition count of the destination, as a column."""
    from pyspark.sql.functions import expr

    cases = " ".join(f"WHEN {quoted(name)} THEN {count}" for name, count in topics.items())
    return expr(f"CASE destination {cases} ELSE 0 END" if cases else "0")


def redriven(config: RedriveConfig, decided: Any) -> Any:
    """The rows to write: letters on their way back, and those that stay."""
    is_sent = f"outcome = '{SEND}'"
    edited = {
        name: f"CASE WHEN {is_sent} THEN cast({config.edits[name]} AS binary) ELSE {name} END"
        for name in config.edits
    }
    back = "NULL" if "key" in config.edits else "origin_partition"
    sent_headers = with_header(own_headers(), REDRIVES, "cast(redrives + 1 AS string)")
    return decided.where(f"outcome <> '{DROP}'").selectExpr(
        f"CASE WHEN {is_sent} THEN destination ELSE topic END AS topic",
        f"""CASE WHEN NOT ({is_sent}) THEN partition
            WHEN destination = origin_topic AND {back} BETWEEN 0 AND counts - 1 THEN {back}
            END AS partition""",
        f"{edited.get('key', 'key')} AS key",
        f"{edited.get('value', 'value')} AS value",
        f"CASE WHEN {is_sent} THEN {sent_headers} ELSE {without(NAMED_SEQUENCE)} END AS headers",
        "timestamp",
    )
