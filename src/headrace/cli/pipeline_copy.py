"""`headrace pipeline replay` and `headrace pipeline dead`: records once more, each exactly once.

Invariants: the jobs keep their state in the cluster, so a command that was stopped or killed is
continued by the same command; Ctrl-C and SIGTERM stop it after a chunk.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.inert import refuse_inert
from headrace.cli.output import (
    Cell,
    counted,
    duration_text,
    iso_time,
    print_json,
    print_table,
    say,
    tell,
)
from headrace.cli.pairs import parse_duration_ms
from headrace.cli.parameters import TOPIC_NAME, CommandGroup, number_option
from headrace.cli.pipeline_interrupts import INTERRUPTION, exit_if
from headrace.cli.pipeline_session import (
    DRY_RUN,
    RESULT_AS_JSON,
    RESULTS,
    bounds_of,
    connection_of,
    describe_topics,
    history_options,
    in_kafka,
    job_module,
    keep_result,
    one_table,
    reading_job,
    restarted,
    spark_for,
    spark_tasks_shown,
    window_options,
)
from headrace.cli.progress import counting
from headrace.cli.redrive import unverified

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

RATE = click.option("--rate", type=click.FloatRange(min=0.1), help="Maximum records per second.")
CHUNK = number_option(
    "--chunk-records", 500_000, 1, "Records in one exactly-once write.", high=10_000_000
)


class SpeedType(click.ParamType[Any]):
    """`1x`, `0.5x`, `20x`, or `full`."""

    name = "speed"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | None:
        """See click.ParamType."""
        if value is None or value == "full":
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?)x?", str(value))
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is not a speed such as 1x, 20x or full", param, ctx)
        return float(found[1])


class TimesType(click.ParamType[Any]):
    """`keep`, `now`, or a shift: `+2h`, `-15m`."""

    name = "times"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """See click.ParamType."""
        if value in ("keep", "now") or isinstance(value, int):
            return value
        try:
            if str(value)[:1] not in ("+", "-"):
                raise ValueError
            return (-1 if value[0] == "-" else 1) * parse_duration_ms(value[1:])
        except ValueError:
            self.fail(f"{value!r} is not keep, now, or a shift such as +2h", param, ctx)


@click.command()
@click.argument("topic", type=TOPIC_NAME, callback=in_kafka)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="TOPIC",
    callback=in_kafka,
    help="The topic to write to.",
)
@click.option("--sql", default="SELECT * FROM records", show_default=True,
              help="Filter and reshape; selects value, key, headers and timestamp.")  # fmt: skip
@click.option("--speed", type=SpeedType(), default="full", show_default=True,
              help="1x is the original pace, by the records' timestamps.")  # fmt: skip
@click.option("--pause-max", type=Duration(), default="1h", show_default=True,
              help="With --speed: do not wait longer than this for the next record.")  # fmt: skip
@RATE
@click.option("--times", type=TimesType(), default="keep", show_default=True,
              help="Timestamps: keep, now, or a shift such as +2h.")  # fmt: skip
@click.option("--keep-partitions", is_flag=True, help="Same partition; default: by key.")
@click.option("--job", metavar="NAME", help="Name of the job; default: by its options.")
@CHUNK
@DRY_RUN
@history_options
@window_options
@reading_job
@RESULTS
@RESULT_AS_JSON
@click.pass_obj
def replay(session: CliSession, /, topic: str, as_json: bool, **options: Any) -> None:
    """Write a range of TOPIC into another topic, each record exactly once.

    The order of keys is kept. The same command continues a replay that was stopped, and does
    nothing if it is finished; --job NAME replays the same range again.

    \b
    Examples:
      headrace pipeline replay orders --to orders.test --since 2h --speed 10x
      headrace pipeline replay orders --to big --sql "SELECT * FROM records WHERE offset > 99"
      headrace pipeline replay orders --to again --table headrace.orders --warehouse ./warehouse
    """
    if options["speed"] is not None and options["rate"] is not None:
        raise CommandFailed("--speed and --rate exclude each other", "Use one of them", USAGE)
    if options["speed"] is None:
        refuse_inert("without --speed", "pause_max")
    job = job_module("jobs.replay")
    names = ("target", "sql", "speed", "times", "keep_partitions", "job", "chunk_records")
    bounds, table = bounds_of(options), one_table(options, "table")
    config = job.ReplayConfig(
        connection_of(session), topic, bounds=bounds, rate_per_s=options["rate"],
        pause_max_ms=int(options["pause_max"] * 1000),
        table=table and job_module("catalog").TableName.parse(table),
        **{name: options[name] for name in names},
    )  # fmt: skip
    describe_topics(session, options, [topic], options["target"], config.group)
    result = _run(config, job.plan_replay, job.run_replay, as_json=as_json, options=options)
    _conclude(session, "replay", f"{topic} {options['target']}", result, options)


def _run(config: Any, plan: Any, run: Any, *, as_json: bool, options: dict[str, Any]) -> Any:
    """Plan or run a copy, with progress; prints its result and returns it."""
    if options["dry_run"]:
        refuse_inert("with --dry-run", "chunk_records", "rate", "results")
    table = options.get("table")

    def job() -> Any:
        place = options.get("warehouse")
        with spark_for(options["master"], place, table, counts_itself=True) as spark:
            planned = None
            if options["dry_run"] or not as_json:
                with spark_tasks_shown():
                    planned = plan(config, spark=spark)
            if options["dry_run"]:
                return planned
            if planned is not None:
                _say_pauses(planned, "will be")
            total = _size(planned)
            with counting("records", total) as advance, INTERRUPTION.after("chunk"):
                report = run(
                    config,
                    spark=spark,
                    on_chunk=lambda chunk: advance(chunk.read),
                    should_stop=INTERRUPTION.is_wanted,
                )
            return report.document()

    result = restarted(job, "The copy")
    if as_json:
        print_json(result)
    elif options["dry_run"]:
        _show_plan(result)
    else:
        rows: list[list[Cell]] = [[*item] for item in sorted(result["by_topic"].items())]
        print_table(["topic", "records"], rows)
        state = "done" if result["done"] else "stopped; the same command continues"
        tell(
            f"{result['written']:,} records written in {result['seconds']:.1f} s,"
            f" {counted(result['chunks'], 'chunk')} ({result['job']}: {state})"
        )
        _say_pauses(result, "were")
        if result["late_seconds_max"] > 5:
            say(f"up to {result['late_seconds_max']:.1f} s behind the speed that was asked for")
    return result


def _conclude(
    session: CliSession, job: str, of: str, result: dict[str, Any], options: dict[str, Any]
) -> None:
    """Keep the result, and end with the exit code of a copy that was stopped."""
    if options["dry_run"]:
        return
    if options["results"] is not None:
        state = "done" if result["done"] else "stopped; the same command continues"
        summary = f"{result['written']:,} records written in {result['seconds']:.1f} s: {state}"
        keep_result(session, options["results"], job, of, summary, result)
    exit_if(not result["done"])


def _size(planned: dict[str, Any] | None) -> int:
    window = {} if planned is None else planned["window"]
    return sum(end - start for by in window.values() for start, end in by.values())


def _show_plan(plan: dict[str, Any]) -> None:
    if "outcomes" in plan:
        rows: list[list[Cell]] = [
            [outcome, topic, count]
            for outcome, by_topic in sorted(plan["outcomes"].items())
            for topic, count in sorted(by_topic.items())
        ]
        print_table(["outcome", "topic", "letters"], rows)
        if plan["origin_unverified"]:
            say(unverified(plan["origin_unverified"]))
        return
    tell(f"{plan['read']:,} records would be read, {plan['written']:,} written")
    if plan["seconds_at_speed"] is not None:
        tell(f"it would take {plan['seconds_at_speed']:,.0f} s at this speed")
    _say_pauses(plan, "would be")


def _say_pauses(found: dict[str, Any], verb: str) -> None:
    """Say that a replay at a speed is not quite that, before and after it."""
    if count := found.get("pauses_cut"):
        shorter = duration_text(found["pauses_cut_seconds"])
        pauses = f"{count:,} pauses between records" if count > 1 else "1 pause between records"
        say(f"{pauses} {verb} cut short by --pause-max, by {shorter} in all")


@click.group(cls=CommandGroup)
def dead() -> None:
    """Work on many dead letters at once, by SQL.

    Reads the dead letters of Headrace and Kafka (KIP-1191), Spring and Connect. SQL sees a record's
    columns, and kind, origin_topic, origin_partition, origin_offset, consumer, cause, message,
    stage, deliveries and redrives.
    """


@dead.command()
@click.argument("topic", metavar="DEAD_LETTER_TOPIC", type=TOPIC_NAME, callback=in_kafka)
@click.option("--where", default="true", metavar="SQL", help="Only these letters.")
@window_options
@reading_job
@RESULT_AS_JSON
@click.pass_obj
def causes(session: CliSession, /, topic: str, as_json: bool, **options: Any) -> None:
    """Count failures by origin, consumer and cause, with samples.

    \b
    Example:
      headrace pipeline dead causes orders.dead --since 24h
    """
    describe_topics(session, options, [topic])
    letters, windows = job_module("jobs.letters"), job_module("jobs.windows")
    connection, bounds = connection_of(session), bounds_of(options)

    def run() -> Any:
        with spark_for(options["master"], None) as spark:
            window = windows.resolve_window(connection.cluster, (topic,), bounds)
            found = letters.read_letters(spark, connection, (topic,), window)
            return letters.causes(found.where(options["where"]))

    found = restarted(run, f"The causes of {topic}")
    if as_json:
        for one in found:
            for moment in [one, *one["samples"]]:
                moment |= {n: str(moment[n]) for n in ("first", "last", "timestamp") if n in moment}
        print_json(found)
        return
    columns = ["kind", "origin", "consumer", "cause", "count", "keys", "last", "newest"]
    print_table(
        columns,
        [
            [
                one["kind"],
                one["origin_topic"],
                one["consumer"],
                one["cause"],
                one["count"],
                one["keys"],
                None if one["last"] is None else iso_time(int(one["last"].timestamp() * 1000)),
                f"{one['samples'][-1]['partition']}:{one['samples'][-1]['offset']}",
            ]
            for one in found
        ],
    )


@dead.command()
@click.argument("topic", metavar="DEAD_LETTER_TOPIC", type=TOPIC_NAME, callback=in_kafka)
@click.option("--where", default="true", metavar="SQL", help="Send these letters back ...")
@click.option("--drop", default="false", metavar="SQL", help="... and delete these.")
@click.option("--set", "edits", multiple=True, metavar="COLUMN=SQL",
              help="Edit the key or value of what is sent.")  # fmt: skip
@click.option(
    "--to",
    "target",
    metavar="TOPIC",
    callback=in_kafka,
    help="Default: the topic a letter came from.",
)
@RATE
@number_option("--loop-max", 3, 1, "Keep letters that were sent back so often.")
@CHUNK
@DRY_RUN
@reading_job
@RESULTS
@RESULT_AS_JSON
@click.pass_obj
def redrive(session: CliSession, /, topic: str, as_json: bool, **options: Any) -> None:
    """Send dead letters back or drop them by SQL, each exactly once, in the order of keys.

    Letters that neither --where nor --drop selects are appended to the dead letter topic again. The
    same command continues a run that was stopped.

    \b
    Examples:
      headrace pipeline dead redrive orders.dead --where "cause LIKE '%Timeout%'" --rate 200
      headrace pipeline dead redrive orders.dead --drop "timestamp < '2013-01-31'" \\
          --where false --dry-run
      headrace pipeline dead redrive orders.dead \\
          --set "value=replace(cast(value AS string), 'EURO', 'EUR')"
    """
    edits = {}
    for one in options["edits"]:
        name, equals, sql = one.partition("=")
        if not equals:
            step = 'For example --set "value=upper(cast(value AS string))"'
            raise CommandFailed(f"--set {one}: not COLUMN=SQL", step, USAGE)
        edits[name.strip()] = sql
    job = job_module("jobs.redrive")
    names = ("where", "drop", "target", "loop_max", "chunk_records")
    config = job.RedriveConfig(
        connection_of(session), topic, edits=edits, rate_per_s=options["rate"],
        **{name: options[name] for name in names},
    )  # fmt: skip
    describe_topics(session, options, [topic], options["target"], config.group)
    result = _run(config, job.plan_redrive, job.run_redrive, as_json=as_json, options=options)
    _conclude(session, "redrive", topic, result, options)
