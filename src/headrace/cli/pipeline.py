"""`headrace pipeline`: the Spark jobs.

Invariants: Spark is imported only when a job runs, and only through `headrace.pipeline`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import UNKNOWN, CommandFailed
from headrace.cli.inert import refuse_inert
from headrace.cli.output import print_json, say, tell
from headrace.cli.parameters import TOPIC_NAME, CommandGroup, number_option
from headrace.cli.pipeline_copy import dead, replay
from headrace.cli.pipeline_interrupts import INTERRUPTION, exit_if
from headrace.cli.pipeline_looks import backlog, page, trace
from headrace.cli.pipeline_proof import proof, quality, resend, verify
from headrace.cli.pipeline_session import (
    MASTER,
    MEMORY,
    MODE,
    RESULT_AS_JSON,
    WAREHOUSE,
    describe_topics,
    in_kafka,
    job_module,
    reading_job,
    reads_of,
    restarted,
    spark_tasks_shown,
)
from headrace.cli.pipeline_tables import tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.cli.session import CliSession


def _restarted(
    job: Callable[[], Any], what: str, table: str, warehouse: Any, *, is_endless: bool = False
) -> Any:
    """Run it with a bar of its tasks, which are countless in an endless one."""
    with nullcontext() if is_endless else spark_tasks_shown():
        return restarted(
            job,
            what,
            f"Check that {table} is in the warehouse {warehouse}: archive, maintain and reconcile"
            " need the same --table, --warehouse and --catalog",
        )


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Run Spark jobs: archives, proofs, replays, dead letters, backlogs, quality.

    Jobs run on this machine unless --master names a cluster. They can be stopped at any
    time; those that write are continued by the same command.
    """


for command in (proof, verify, quality, resend, replay, dead, backlog, trace, page, tables):
    pipeline.add_command(command)


@pipeline.group("run", cls=CommandGroup)
def run() -> None:
    """Run a job."""


def _table_of(topic: str, warehouse: Any) -> str:
    """The table that `archive` uses for a topic."""
    found: str = job_module("catalog").table_of_topic(warehouse, topic).in_spark
    return found


OWN_TABLE = click.option(
    "--table",
    help="The Iceberg table: [CATALOG.]NAMESPACE.NAME, other words than identifiers in backticks."
    " By default the topic's own, headrace.TOPIC.",
)


@run.command()
@click.option(
    "--topic",
    required=True,
    type=TOPIC_NAME,
    callback=in_kafka,
    help="The topic, or several separated by commas.",
)
@OWN_TABLE
@WAREHOUSE
@reading_job
@MODE
@number_option("--round-records", 2_000_000, 1, "Commit after at most this many records.")
@number_option("--task-records", 500_000, 1, "Read at most this many records in one task.")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy"]),
    default="zstd",
    show_default=True,
    help="Of the files of a new table.",
)
@MEMORY
@click.option(
    "--allow-data-loss",
    is_flag=True,
    help="Go on where retention deleted records before they were archived.",
)
@click.option("--continuous", is_flag=True, help="Wait for new records; Ctrl-C stops.")
@number_option(
    "--round-mib", 64, 0, "With --continuous: start a round when this much data is waiting ..."
)
@number_option(
    "--round-wait", 60.0, 0, "... or when the first record has waited this long.", metavar="SECONDS"
)
@number_option(
    "--maintain-every",
    60,
    0,
    "With --continuous: maintain the table after this many rounds; 0: never.",
    metavar="ROUNDS",
)
@number_option(
    "--keep-snapshots",
    10,
    1,
    "With --continuous: maintenance keeps at least this many snapshots ...",
)
@number_option("--snapshot-age", 24, 0, "... and those younger than this.", metavar="HOURS")
@number_option(
    "--poll-interval",
    1.0,
    0.1,
    "With --continuous: ask for new records this often.",
    metavar="SECONDS",
)
@click.option("--quiet", "-q", is_flag=True, help="Do not print a line per round.")
@RESULT_AS_JSON
@click.pass_obj
def archive(session: CliSession, /, as_json: bool, quiet: bool, **options: Any) -> None:
    """Append each record of a topic to an Iceberg table, exactly once.

    It can be stopped at any time, even by kill -9; the next run continues from there.

    \b
    Examples:
      headrace pipeline run archive --topic flights --warehouse ./warehouse
      headrace pipeline run archive --topic flights --table archive.flights \\
          --warehouse ./warehouse --master spark://host:7077 --continuous
    """
    if not options["continuous"]:
        refuse_inert(
            "without --continuous",
            *("round_mib", "round_wait", "maintain_every"),
            *("keep_snapshots", "snapshot_age", "poll_interval"),
        )
    names = [name.strip() for name in options["topic"].split(",") if name.strip()]
    describe_topics(session, options, names)
    job = job_module("jobs.archive")
    config = job.ArchiveConfig(
        bootstrap=session.bootstrap,
        client=session.client_config,
        reads=reads_of(session),
        round_bytes_min=options.pop("round_mib") << 20,
        round_wait_ms=int(options.pop("round_wait") * 1000),
        maintain_rounds=options.pop("maintain_every") or None,
        round_records_max=options.pop("round_records"),
        task_records_max=options.pop("task_records"),
        memory_mb=options.pop("memory"),
        fail_on_data_loss=not options.pop("allow_data_loss"),
        snapshot_age_hours=options.pop("snapshot_age"),
        poll_interval_ms=int(options.pop("poll_interval") * 1000),
        **options,
    )

    def run() -> Any:
        with INTERRUPTION.after("round"):
            return job.run_archives(
                config,
                on_round=None if quiet else _say_round,
                on_maintenance=None if quiet else lambda done: say(f"maintained: {done}"),
                should_stop=INTERRUPTION.is_wanted,
            )

    place = (config.table or "the topic's table", options["warehouse"])
    results = _restarted(
        run, f"The archive of {options['topic']}", *place, is_endless=config.continuous
    )
    if as_json:
        found = [_document(result) for result in results]
        print_json(found[0] if len(found) == 1 else {"tables": found})
    else:
        for result in results:
            tell(str(result))
    exit_if(not all(result.is_done for result in results))


def _document(result: Any) -> dict[str, Any]:
    return {
        "table": result.table,
        "rounds": result.round_count,
        "records": result.record_count,
        "seconds": result.elapsed_ms / 1000,
        "records_per_s": result.rate_per_s,
        "done": result.is_done,
        "offsets": {
            topic: {str(partition): end for partition, end in ends.items()}
            for topic, ends in result.offsets.items()
        },
    }


def _say_round(done: Any) -> None:
    say(
        f"{done.table}: round {done.number}: {done.record_count:,} records in"
        f" {done.elapsed_ms / 1000:.1f} s ({done.rate_per_s:,}/s), {done.remaining:,} to go"
    )


@run.command()
@click.option("--topic", required=True, type=TOPIC_NAME, callback=in_kafka, help="The topic.")
@OWN_TABLE
@WAREHOUSE
@reading_job
@RESULT_AS_JSON
@click.pass_obj
def reconcile(
    session: CliSession,
    topic: str,
    table: str | None,
    warehouse: Any,
    master: str,
    *,
    as_json: bool,
) -> None:
    """Check that a table contains each record of a topic exactly once, byte for byte.

    Changes nothing. The exit code is 1 if a record is missing, duplicated or different, and 6 if
    the topic holds no records, so that there was nothing to compare.

    \b
    Example:
      headrace pipeline run reconcile --topic flights --warehouse ./warehouse
    """
    describe_topics(session, {}, [topic])
    table = table or _table_of(topic, warehouse)
    proof = job_module("proof")
    config = proof.ReconcileConfig(
        session.bootstrap, topic, table, client=session.client_config, reads=reads_of(session)
    )
    report = _restarted(
        lambda: proof.prove(config, warehouse, master),
        f"The comparison of {table}",
        table,
        warehouse,
    )
    if as_json:
        print_json(
            {
                "topic": report.topic,
                "table": report.table,
                "is_exact": report.is_exact,
                "is_proven": report.is_proven,
                "stored": report.stored_count,
                "archived": report.archived_count,
                "covers": report.covers,
                "not_covered": list(report.not_covered),
                "problems": report.problems,
            }
        )
    else:
        tell(
            f"{report.stored_count:,} records stored, {report.archived_count:,} archived"
            f" (compared: {', '.join(report.covers)})"
        )
        for line in report.not_covered:
            tell(f"not compared: {line}")
    if not report.is_exact:
        raise CommandFailed(
            f"{table} does not match {topic}: {'; '.join(report.problems[:5])}",
            "Run the archive to completion first; if they still differ, keep both and report it",
        )
    if not report.is_proven:
        raise CommandFailed(
            f"nothing is proven: {topic} holds no records now, so none was compared with {table}",
            "Check the topic's name, and whether retention deletes its records before they are"
            " compared",
            UNKNOWN,
        )
    if not as_json:
        tell(f"{table} has each of these records once, byte for byte")


@pipeline.command()
@click.option(
    "--topic",
    type=TOPIC_NAME,
    callback=in_kafka,
    help="The topic whose table to maintain.",
)
@OWN_TABLE
@WAREHOUSE
@MASTER
@number_option("--file-mib", 256, 1, "Target size of compacted files.")
@number_option("--keep-snapshots", 10, 1, "Keep at least this many snapshots ...")
@number_option(
    "--snapshot-age",
    24,
    0,
    "... and those younger than this; readers of older ones fail.",
    metavar="HOURS",
)
@number_option("--orphan-age", 72, 24, "Remove orphan files older than this.", metavar="HOURS")
@RESULT_AS_JSON
def maintain(
    topic: str | None,
    table: str | None,
    warehouse: Any,
    master: str,
    *,
    as_json: bool,
    **ages: int,
) -> None:
    """Compact an archive's files, and remove old snapshots and orphan files.

    No record changes. It can run while an archive runs.

    \b
    Example:
      headrace pipeline maintain --topic flights --warehouse ./warehouse
    """
    if (topic is None) == (table is None):
        raise CommandFailed(
            "Either the topic or the table must be named", "Give --topic or --table"
        )
    table = table or _table_of(topic or "", warehouse)
    job = job_module("jobs.maintain")
    sessions = job_module("session")
    config = job.MaintainConfig(
        warehouse,
        table,
        target_file_bytes=ages["file_mib"] << 20,
        keep_snapshots=ages["keep_snapshots"],
        snapshot_age_hours=ages["snapshot_age"],
        orphan_age_hours=ages["orphan_age"],
        session=sessions.SessionConfig(master, memory_mb=2048),
    )
    report = _restarted(
        lambda: job.run_maintain(config), f"The maintenance of {table}", table, warehouse
    )
    if not as_json:
        tell(f"{table}: {report}")
        return
    print_json(
        {
            "table": table,
            "files_rewritten": report.files_rewritten,
            "files_added": report.files_added,
            "snapshots_expired": report.snapshots_expired,
            "orphans_removed": report.orphans_removed,
            "left_to_catalog": report.is_catalogs_own,
            "seconds": report.elapsed_ms / 1000,
        }
    )
