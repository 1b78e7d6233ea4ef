"""`headrace pipeline backlog, trace, page`: what a topic and its groups look like over time.

Invariants: reads only, except for `--history`. Progress of groups is read before the log.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.group_listing import list_groups
from headrace.cli.lag import progress
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import (
    Cell,
    as_written,
    counted,
    iso_time,
    print_json,
    print_table,
    say,
    tell,
)
from headrace.cli.parameters import TOPIC_NAME, number_option
from headrace.cli.pipeline_interrupts import INTERRUPTION
from headrace.cli.pipeline_proof import (
    KEY_FILE,
    TABLE_OR_NONE,
    TOPIC,
    check_options,
    make_proof,
    proof_options,
)
from headrace.cli.pipeline_session import (
    RESULT_AS_JSON,
    RESULTS,
    WAREHOUSE_OR_NONE,
    bounds_of,
    check_replaceable,
    connection_of,
    describe_topics,
    history_of,
    history_options,
    job_module,
    keep_result,
    one_table,
    reading_job,
    restarted,
    spark_for,
    window_options,
)
from headrace.cli.positions import Partition, log_bounds
from headrace.cli.web import Web, path_of
from headrace.records.tenant_names import written_topic

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

TRACE_MS = 10_000
NO_EVENTS = (
    "nothing is known of what became of these messages: --through names other topics that they"
    " pass, and share groups alone say what they did"
)
HISTORY = click.option(
    "--history",
    metavar="TABLE",
    help="Keep the group's samples in this Iceberg table (with --warehouse), and use earlier ones.",
)
WATCH = click.option(
    "--watch",
    type=Duration(),
    default="10s",
    show_default=True,
    help="Sample the group's progress for this long, to know its rates.",
)


@click.command()
@click.argument("group", type=GROUP_NAME)
@TOPIC
@WATCH
@click.option("--since", type=Duration(), default="24h", show_default=True,
              help="How far back to show arrivals and samples.")  # fmt: skip
@HISTORY
@WAREHOUSE_OR_NONE
@reading_job
@RESULTS
@RESULT_AS_JSON
@click.pass_obj
def backlog(session: CliSession, /, group: str, topic: str, as_json: bool, **options: Any) -> None:
    """Show a group's lag, rates, hot keys, and when the backlog will be empty.

    The exit code is 1 if it never will be at this rate.

    \b
    Examples:
      headrace pipeline backlog billing orders
      headrace pipeline backlog billing orders --history headrace.lag --warehouse ./warehouse
    """
    describe_topics(session, options, [topic])
    one_table(options, "history")

    def run() -> Any:
        samples = sample_group(session, group, topic, options["watch"])
        with spark_for(options["master"], options["warehouse"], options["history"]) as spark:
            return look_at_backlog(session, spark, group, topic, samples, options)

    found = restarted(run, f"The backlog of {group}")
    if as_json:
        print_json(found)
    else:
        _show_backlog(found)
    verdict = found["forecast"]["verdict"]
    keep_result(session, options["results"], "backlog", f"{group} {topic}", verdict, found)
    if verdict.startswith("never"):
        raise CommandFailed(
            f"the backlog of {group} on {topic} will not be empty at this rate:"
            f" {counted(found['lag'], 'record')}",
            found["advice"][0].rstrip(".") if found["advice"] else "Add consumers",
            FAILED,
        )


def look_at_backlog(
    session: CliSession,
    spark: Any,
    group: str,
    topic: str,
    samples: list[Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Run the job on these samples and, with a history, on earlier ones."""
    job = job_module("jobs.backlog")
    history_ms = int(options["since"] * 1000)
    earlier: tuple[Any, ...] = ()
    table = None
    if options["history"] is not None:
        table = job_module("catalog").TableName.parse(options["history"]).in_spark
        since_ms = samples[0].at_ms - history_ms
        topic_id = connection_of(session).cluster.topic_id_or_none(topic)
        earlier = job.stored_samples(spark, table, group, topic, since_ms, topic_id)
    config = job.BacklogConfig(
        connection_of(session), topic, group, tuple(samples), history_ms=history_ms
    )
    found: dict[str, Any] = job.run_backlog(config, spark=spark)
    found["samples"] = [[one.at_ms, one.lag(topic)] for one in earlier] + found["samples"]
    if table is not None:
        job.store_samples(config, table, spark=spark)
    return found


def sample_group(session: CliSession, group: str, topic: str, watch_s: float) -> list[Any]:
    """Read the group's progress and the log's ends at the beginning and the end of `watch_s`."""
    kinds = {one.group: one.type for one in list_groups(session)}
    if group not in kinds:
        raise session.no_group(group)
    sample = job_module("jobs.backlog").Sample
    partitions = [Partition(topic, number) for number in session.partitions_of(topic)]
    found = []
    for wait_s in (0.0, watch_s):
        INTERRUPTION.wait_ms(int(wait_s * 1000))
        at_ms = time.time_ns() // 1_000_000
        committed: dict[str, dict[str, int]] = {topic: {}}
        for partition, offset in progress(session, group, kinds[group]).items():
            if partition.topic == topic:
                committed[topic][str(partition.number)] = offset
        bounds = log_bounds(session, partitions)
        ends = {str(p.number): b.latest for p, b in bounds.items()}
        starts = {str(p.number): b.earliest for p, b in bounds.items()}
        found.append(sample(at_ms, committed, {topic: ends}, {topic: starts}))
        if not watch_s:
            break
    return found


def _show_backlog(found: dict[str, Any]) -> None:
    rows: list[list[Cell]] = [
        [
            one["partition"],
            None if one["committed"] < 0 else one["committed"],
            one["end"],
            one["lag"],
            None if one["oldest_ms"] is None else iso_time(one["oldest_ms"]),
        ]
        for one in found["partitions"]
    ]
    print_table(["partition", "committed", "end", "lag", "oldest unread"], rows)
    print_table(
        ["unread", "share", "key"],
        [[one["records"], f"{one['share']:.1%}", one["key"]] for one in found["hot_keys"]],
        empty="no record is unread",
    )
    forecast = found["forecast"]
    if forecast["arrival_per_s"] is not None:
        tell(
            f"{forecast['arrival_per_s']:,.1f} records/s arrive,"
            f" {forecast['drain_per_s']:,.1f}/s are processed"
        )
    if forecast["empty_at_ms"] is not None and found["lag"]:
        tell(f"empty at {iso_time(forecast['empty_at_ms'])}")
    else:
        tell(forecast["verdict"])
    for line in found["advice"]:
        say(f"advice: {line}")


@click.command()
@TOPIC
@click.option("--through", multiple=True, metavar="TOPIC", type=TOPIC_NAME,
              help="Topics that the messages also pass, such as dead letters.")  # fmt: skip
@click.option("--message", metavar="SQL", help="Default: the header headrace-message-id.")
@number_option(
    "--messages-max", 200, 0, "Ask the brokers for the deliveries of so many.", high=10_000
)
@click.option("--events", metavar="TABLE", help="Write the events to this Iceberg table.")
@click.option("--outliers", type=click.IntRange(min=1, max=1_000), default=20, show_default=True)
@history_options
@window_options
@reading_job
@RESULT_AS_JSON
@click.pass_obj
def trace(session: CliSession, /, topic: str, as_json: bool, **options: Any) -> None:
    """Show latencies of messages by topic, group and hour, and the slowest ones.

    What happened in topics comes from their records; what share groups did with a message from the
    brokers, for a sample of messages.

    \b
    Example:
      headrace pipeline trace orders --through invoices --since 24h
    """
    describe_topics(session, options, [topic, *options["through"]])
    table_of_catalog = one_table(options, "events", "table")
    bounds = bounds_of(options)

    def run() -> Any:
        check_replaceable(options["warehouse"], options["events"])
        with spark_for(options["master"], options["warehouse"], table_of_catalog) as spark:
            return trace_messages(session, spark, topic, bounds, options)

    found = restarted(run, f"The trace of {topic}")
    if as_json:
        print_json(found)
        return
    columns = ["event", "topic", "group", "hour", "count", "p50 ms", "p95", "p99", "slowest"]
    rows: list[list[Cell]] = [
        [
            one["event"], one["topic"], one["group"], iso_time(one["hour_ms"]), one["count"],
            *(round(one[f"p{each}_ms"]) for each in (50, 95, 99)), one["slowest_ms"],
        ]
        for one in found["latencies"]
    ]  # fmt: skip
    print_table(columns, rows, empty=NO_EVENTS)
    names = ("message", "event", "topic", "group_name", "latency_ms")
    slow: list[list[Cell]] = [[one[name] for name in names] for one in found["slow"]]
    if slow:
        print_table(["slow message", "event", "topic", "group", "ms"], slow)


def trace_messages(
    session: CliSession, spark: Any, topic: str, bounds: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """Collect the events of a window and summarize them."""
    job, windows = job_module("jobs.traces"), job_module("jobs.windows")
    connection = connection_of(session)
    given = {"message": options["message"]} if options["message"] else {}
    config = job.TraceConfig(topic, outliers=options["outliers"], **given)
    history = history_of(session, spark, options)
    window = history.resolve((topic,), bounds)
    records = history.read(window)
    stored = job.stored_events(records, config)
    read = [window]
    through = tuple(dict.fromkeys(one for one in options["through"] if one != topic))
    if through:
        later = windows.resolve_window(connection.cluster, through, windows.WHOLE_LOG)
        passed = job.stored_events(windows.read_window(spark, connection, later), config)
        stored = stored.unionByName(passed)
        read.append(later)
    count = options["messages_max"]
    sample = job.sampled_positions(records, config, count) if count else []
    done = job.group_events(spark, _deliveries(session, topic, sample))
    if options["events"] is not None:
        name = job_module("catalog").TableName.parse(options["events"])
        job.store_events(stored, done, name, *read, spark=spark)
    found: dict[str, Any] = job.summarize(stored.unionByName(done), config)
    return found


def _deliveries(
    session: CliSession, topic: str, sample: list[tuple[str, int, int]]
) -> list[tuple[str, Any]]:
    """What brokers know of these messages (message, partition, offset). Raises CommandFailed."""
    found: list[tuple[str, Any]] = []
    if not sample:
        return found
    path = path_of("topics", topic, "trace")
    try:
        web = Web(session)
        for message, partition, offset in sample:
            INTERRUPTION.check()
            query = {"partition": partition, "offset": offset, "time_ms": TRACE_MS}
            pages = web.ask_pages("GET", path, query=query, wait_s=TRACE_MS / 1000)
            found += [(message, one) for one in pages]
    except CommandFailed as failure:
        steps = [failure.next_step.rstrip("."), "Without deliveries: --messages-max 0"]
        failure.next_step = ". ".join(one for one in steps if one)
        raise
    return found


@click.command()
@TOPIC
@proof_options
@TABLE_OR_NONE
@WAREHOUSE_OR_NONE
@KEY_FILE
@WATCH
@click.option("--through", multiple=True, metavar="TOPIC", type=TOPIC_NAME,
              help="Topics that the messages also pass.")  # fmt: skip
@number_option(
    "--messages-max", 0, 0, "Ask the brokers for the deliveries of so many.", high=10_000
)
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False),
              help="Folder of the page and its charts.")  # fmt: skip
@window_options
@reading_job
@click.pass_obj
def page(session: CliSession, /, topic: str, out: Path, **options: Any) -> None:
    """Make one HTML page of a topic: its proof, backlogs and latencies, with charts as PNG.

    \b
    Example:
      headrace pipeline page orders --group billing --since 24h --out ./orders-page
    """
    describe_topics(session, options, [topic, *options["through"]])
    options |= {"message": None, "outliers": 20, "events": None}
    bounds = bounds_of(options)
    check_options(session, topic, options)

    def run() -> Any:
        watch_s, groups = options["watch"], options["groups"]
        samples = {group: sample_group(session, group, topic, watch_s) for group in groups}
        with spark_for(options["master"], options["warehouse"], options["table"]) as spark:
            proof = make_proof(session, spark, topic, bounds, options)
            looks = {"since": 86_400.0, "history": None}
            backlogs = [
                look_at_backlog(session, spark, group, topic, each, looks)
                for group, each in samples.items()
            ]
            of_log = options | {"table": None}  # it may hold the latest record of each key alone
            return proof, backlogs, trace_messages(session, spark, topic, bounds, of_log)

    proof, backlogs, traced = restarted(run, f"The page of {topic}")
    made = job_module("jobs.page").write_page(
        out,
        f"Topic {written_topic(topic)}",
        proof=proof,
        backlogs=as_written(backlogs),
        trace=as_written(traced),
    )
    for path in made:
        tell(str(path))
