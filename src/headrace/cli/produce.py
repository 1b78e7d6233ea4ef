"""`headrace produce`: writes records from stdin or files to a topic.

Invariants: only acknowledged records count. What was read before an interruption or an invalid line
is still delivered, and the summary reports how many. After an error that would affect every later
record, too, reading and sending stop.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import records_in, rows_in
from headrace.cli.client import kafka
from headrace.cli.disk_space import full_disks
from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.inert import refuse_inert
from headrace.cli.output import print_json, say
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.positions import TimeType
from headrace.cli.progress import Meter
from headrace.cli.records_in import Headers, OutgoingRecord, Reading, Source
from headrace.cli.refusals import refusal
from headrace.cli.text import unescape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.cli.client import Client, KafkaError, Message
    from headrace.cli.session import CliSession

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PRODUCER_ID_LOOK_MS = 20
PRODUCER_ID_WAIT_S = 2.0
_NOT_REFUSED = ": Local: ", "Failed to acquire "
"""A lost connection has ended the login; a token was not renewed, and is asked for again."""
POLL_EVERY = 512  # records between two checks of deliveries and the clock
OF_ONE_RECORD = {"MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP"}
"""Errors that do not affect the next record."""
READERS: dict[str, Callable[[Source, Reading, Callable[[int], None]], Iterator[OutgoingRecord]]] = {
    "lines": records_in.read_lines,
    "json": records_in.read_json,
    "file": records_in.read_whole,
    "csv": rows_in.read_csv,
    "ndjson": rows_in.read_ndjson,
    "parquet": rows_in.read_parquet,
}
ROWS = {"csv", "ndjson", "parquet"}
"""Formats whose input has columns."""


def _headers(_ctx: object, _param: object, values: tuple[str, ...]) -> Headers:
    headers: Headers = []
    for value in values:
        name, equals, text = value.partition("=")
        if not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        headers.append((name, text.encode() if equals else None))
    return headers


@dataclass(slots=True)
class Delivery:
    """The outcome of the records passed to the client."""

    handed: int = 0
    failed: int = 0
    failed_bytes: int = 0
    first_error: KafkaError | None = None
    first_headers: Headers = field(default_factory=list)
    """Of the record that got `first_error`."""
    is_hopeless: bool = False
    """Whether later records would fail in the same way."""
    is_cut: bool = False
    """Whether the rest of the input was therefore not read."""

    def note(self, error: KafkaError) -> None:
        """Called by the client for errors of its own. It would repeat a login that was refused
        until all records are too late; what `_NOT_REFUSED` says has the same name."""
        said = error.str()
        if error.name() == "_AUTHENTICATION" and not any(one in said for one in _NOT_REFUSED):
            self.first_error = self.first_error or error
            self.is_hopeless = True

    def report(
        self, error: KafkaError | None, message: Message, headers: Headers | None = None
    ) -> None:
        """Called by the client for each record that was *not* delivered."""
        if error is not None:
            self.failed += 1
            self.failed_bytes += len(message.value() or b"") + len(message.key() or b"")
            if self.first_error is None:
                self.first_error, self.first_headers = error, headers or []
            self.is_hopeless = self.is_hopeless or error.name() not in OF_ONE_RECORD


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--format",
    "-f",
    "form",
    type=click.Choice(list(READERS)),
    default="lines",
    show_default=True,
    help="One record per line of text, per line of JSON (with key, value, ...), per file, or per"
    " row: of CSV, of NDJSON (the line is the value), of Parquet.",
)
@click.option(
    "--key-separator",
    "-K",
    metavar="TEXT",
    help=r"Each line is key, TEXT, value; e.g. -K : or -K '\t'.",
)
@click.option(
    "--key", "-k", metavar="TEXT", help="Key of every record; for rows with columns: {id}."
)
@click.option(
    "--value",
    metavar="TEXT",
    help="Value of each row with its columns: {id};{name}. Default: a JSON object.",
)
@click.option("--key-from-name", is_flag=True, help="With --format file: use the file name as key.")
@click.option(
    "--header",
    "-H",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_headers,
    help="A header for every record; repeatable; for rows with columns: region={region}.",
)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Default: chosen by key.")
@click.option(
    "--timestamp",
    "-t",
    type=TimeType(),
    help="Timestamp: ISO 8601, @MILLISECONDS, or an age such as 15m.",
)
@click.option(
    "--empty-is-null", is_flag=True, help="Send an empty line as a tombstone (null value)."
)
@click.option("--compression", "-z", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option(
    "--idempotent/--no-idempotent",
    default=None,
    help="Prevent duplicates by retries. Default: on with --acks all.",
)
@click.option("--linger-ms", type=click.IntRange(min=0), default=5, show_default=True)
@click.option("--batch-bytes", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--create", is_flag=True, help="Let the broker create a missing topic.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor summary.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.pass_obj
def produce(session: CliSession, /, topic: str, files: tuple[str, ...], **options: Any) -> None:
    """Write records to TOPIC: from stdin, or from FILES.

    \b
    Examples:
      seq 1000 | headrace produce orders
      echo 'alice:{"total": 3}' | headrace produce orders --key-separator : -H source=shop
      headrace produce orders --format json records.jsonl --compression zstd
      headrace produce images --format file --key-from-name *.png
      headrace produce orders --format csv orders.csv --key '{id}' -H 'region={region}'
      headrace consume orders --format json | headrace produce copy --format json

    \b
    A JSON line has any of: key, value, headers, timestamp (ms or ISO 8601), partition;
    key_base64 and value_base64 for binary data. Headers are an object, or a list
    of {"key": ..., "value": ...}. A value that is not a string is sent as JSON.
    """
    _refuse_inert(options)
    config = _config(session, options)
    waiting = _ProducerId(config, session.client_config)
    delivery = Delivery()
    config["error_cb"] = delivery.note
    producer = session.producer(config)  # first, as it asks for its id meanwhile
    _check_topic(session, topic, options["create"])
    waiting.wait(producer)
    sources = list(files) or ["-"]
    if sources == ["-"] and sys.stdin.isatty() and not options["quiet"]:
        say("Type one record per line; Ctrl-D ends.")
    meter = _meter(sources, topic, options)
    interrupted = False
    trouble: CommandFailed | None = None
    try:
        _send_all(producer, topic, _records(sources, options, meter), delivery, meter)
    except KeyboardInterrupt:
        interrupted = True
    except CommandFailed as failure:
        trouble = failure
    _finish(producer, delivery, meter)
    _report(topic, delivery, meter, options)
    if trouble:
        raise trouble
    if interrupted:
        raise KeyboardInterrupt
    if delivery.failed or delivery.is_cut:
        raise _failure(session, topic, delivery)


def _failure(session: CliSession, topic: str, delivery: Delivery) -> CommandFailed:
    doing = f"{delivery.failed:,} of {delivery.handed:,} records not stored in {topic!r}"
    if delivery.is_cut:
        doing += "; the rest of the input was not read"
    error = delivery.first_error
    assert error is not None, "called after an error"
    if error.name() in {"POLICY_VIOLATION", "_MSG_TIMED_OUT"}:
        # The client library does not expose the broker's error message.
        full = full_disks(session)
        if full:
            return CommandFailed(
                f"{doing}: the disk is full: {', '.join(full)}",
                "Delete topics, shorten their retention or enlarge the disk, then send again",
            )
    failure = refusal(session, error, doing, topic, delivery.first_headers)
    failure.next_step = failure.next_step.replace("TOPIC", topic)
    return failure


def _check_topic(session: CliSession, topic: str, create: bool) -> None:
    try:
        session.describe_topics([topic])
    except CommandFailed as failure:
        if failure.exit_code != NOT_FOUND:
            raise
        if not create:
            failure.next_step += ". Or let the broker create it: --create"
            raise


def _refuse_inert(options: dict[str, Any]) -> None:
    """Raises click.UsageError."""
    form = options["form"]
    if form != "lines":
        refuse_inert(f"with --format {form}", "key_separator", "empty_is_null")
    if form not in ROWS:
        refuse_inert(f"with --format {form}, whose input has no columns", "value")
    if form != "file":
        refuse_inert("without --format file", "key_from_name")
    if options["key_separator"]:
        refuse_inert("with --key-separator", "key")
    if options["key_from_name"]:
        refuse_inert("with --key-from-name", "key")


def _config(session: CliSession, options: dict[str, Any]) -> dict[str, Any]:
    idempotent = options["idempotent"]
    if idempotent is None:
        idempotent = options["acks"] == "all"
    if idempotent and options["acks"] != "all":
        raise click.UsageError("--idempotent requires --acks all.")
    return {
        "acks": options["acks"],
        "enable.idempotence": idempotent,
        "compression.type": options["compression"],
        "linger.ms": options["linger_ms"],
        "batch.size": options["batch_bytes"],
        # The broker's max.message.bytes decides, not the client's own limit.
        "message.max.bytes": 100_000_000,
        "queue.buffering.max.messages": 200_000,
        "message.timeout.ms": int(session.timeout_s * 1000),
        "delivery.report.only.error": True,
        "partitioner": "murmur2_random",  # as in Java: a key goes to the same partition
    }


class _ProducerId:
    """Waits until an idempotent client has its producer id, so that no rate contains this.

    The client library asks when it is created, finds no connection yet, and asks again half a
    second later; only its statistics tell when it has the id.
    """

    def __init__(self, config: dict[str, Any], given: dict[str, str]) -> None:
        """`config` gets what this needs; `given`: settings of the user's own, which overrule it."""
        is_idempotent = given.get("enable.idempotence", str(config["enable.idempotence"]))
        self._is_there = is_idempotent.lower() != "true" or "statistics.interval.ms" in given
        if not self._is_there:
            config["statistics.interval.ms"] = PRODUCER_ID_LOOK_MS
            config["stats_cb"] = self._look

    def _look(self, statistics: str) -> None:
        if not self._is_there:
            found = json.loads(statistics).get("eos", {})
            self._is_there = found.get("idemp_state") == "Assigned"

    def wait(self, producer: Client) -> None:
        """Return when it has it, or after a limit."""
        ends_s = time.monotonic() + PRODUCER_ID_WAIT_S
        while not self._is_there and time.monotonic() < ends_s:
            producer.poll(PRODUCER_ID_LOOK_MS / 1000)


def _meter(sources: list[str], topic: str, options: dict[str, Any]) -> Meter:
    total: int | None = None
    if "-" not in sources:
        total = sum(os.stat(name).st_size for name in sources)
    show = not options["quiet"] and not (sources == ["-"] and sys.stdin.isatty())
    return Meter(f"produce {topic}", total, show)


def _records(sources: list[str], options: dict[str, Any], meter: Meter) -> Iterator[OutgoingRecord]:
    separator = options["key_separator"]
    reading = Reading(
        key=options["key"].encode() if options["key"] is not None else None,
        key_separator=unescape(separator).encode() if separator else None,
        headers=options["headers"],
        timestamp_ms=options["timestamp"] or 0,
        partition=-1 if options["partition"] is None else options["partition"],
        value=options["value"],
        empty_is_null=options["empty_is_null"],
        key_from_name=options["key_from_name"],
    )
    read_records = READERS[options["form"]]

    def progressed(size_bytes: int) -> None:
        meter.done += size_bytes

    for name in sources:
        if name == "-":
            yield from read_records(Source("stdin", sys.stdin.buffer), reading, progressed)
            continue
        with open(name, "rb") as stream:
            yield from read_records(Source(name, stream), reading, progressed)


def _send_all(
    producer: Client,
    topic: str,
    records: Iterator[OutgoingRecord],
    delivery: Delivery,
    meter: Meter,
) -> None:
    send, report = producer.produce, delivery.report
    for record in records:
        key, value, headers, timestamp_ms, partition = record
        more: dict[str, Any] = {"on_delivery": report}
        if headers:  # the client library does not report them
            more["headers"] = headers
            more["on_delivery"] = partial(report, headers=headers)
        if timestamp_ms:
            more["timestamp"] = timestamp_ms
        if partition >= 0:
            more["partition"] = partition
        while True:
            try:
                send(topic, value, key, **more)
                break
            except BufferError:
                producer.poll(0.1)
                meter.tick()
            except kafka().KafkaException as error:  # as an earlier record of the topic
                delivery.handed += 1
                delivery.failed += 1
                delivery.first_error = delivery.first_error or error.args[0]
                delivery.is_cut = True
                return
            if delivery.is_hopeless:
                delivery.is_cut = True
                return
        delivery.handed += 1
        meter.records += 1
        meter.size_bytes += len(value or b"") + len(key or b"")
        if meter.records % POLL_EVERY == 0:
            producer.poll(0)
            meter.tick()
            if delivery.is_hopeless:
                delivery.is_cut = True
                return


def _finish(producer: Client, delivery: Delivery, meter: Meter) -> None:
    """Wait until every record is acknowledged or has failed; bounded by the client's time-out."""
    try:
        while producer.flush(0.2) > 0:
            meter.tick()
            if delivery.is_hopeless:
                producer.purge(in_flight=False)  # in-flight records may be stored
    except KeyboardInterrupt:
        left = len(producer)
        producer.purge()
        producer.flush(1)
        delivery.failed = max(delivery.failed, left)
        meter.stop()
        say(f"headrace: interrupted with {left:,} records not acknowledged.")


def _report(topic: str, delivery: Delivery, meter: Meter, options: dict[str, Any]) -> None:
    stored = delivery.handed - delivery.failed
    seconds = meter.seconds()
    meter.records = stored
    meter.size_bytes -= delivery.failed_bytes
    if options["as_json"]:
        meter.stop()
        print_json(
            {
                "topic": topic,
                "records": stored,
                "failed": delivery.failed,
                "bytes": meter.size_bytes,
                "seconds": round(seconds, 6),
                "records_per_s": round(stored / max(seconds, 1e-9), 1),
            }
        )
    elif not options["quiet"]:
        failed = f"; {delivery.failed:,} FAILED" if delivery.failed else ""
        meter.summary("produced", f" to {topic}{failed}")
    meter.stop()
