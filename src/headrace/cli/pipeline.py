"""`headrace pipeline`: the Spark jobs.

Rules of the room: Spark is imported only when a job runs, and only through `headrace.pipeline`.
"""

from __future__ import annotations

import importlib
import signal
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.completion import complete_topics
from headrace.cli.failures import CommandFailed
from headrace.cli.output import print_json, say

if TYPE_CHECKING:
    from headrace.cli.session import Session


@click.group()
def pipeline() -> None:
    """Run the Spark jobs, such as the archive to Iceberg."""


@pipeline.group("run")
def run() -> None:
    """Run a job."""


class _Stop:
    """Ctrl-C asks the job to end after its round; a second one ends the process."""

    def __init__(self) -> None:
        self.wanted = False

    def __call__(self, *_: object) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
        say("headrace: stopping after this round; once more to stop at once (nothing is lost).")


@run.command()
@click.option(
    "--topic",
    required=True,
    shell_complete=complete_topics,
    help="The topic; several with commas between them.",
)
@click.option(
    "--table",
    default="headrace.archive",
    show_default=True,
    help="The Iceberg table: NAMESPACE.NAME or CATALOG.NAMESPACE.NAME.",
)
@click.option("--warehouse", required=True, help="The folder of the Iceberg warehouse.")
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option("--continuous", is_flag=True, help="Go on with what arrives; Ctrl-C ends.")
@click.option("--quiet", "-q", is_flag=True, help="No line for each round.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def archive(session: Session, /, as_json: bool, quiet: bool, **options: Any) -> None:
    """Append every record of a topic to an Iceberg table, exactly once.

    It may be stopped at any moment, even by kill -9: the next run goes on where this one stopped.

    \b
    Examples:
      headrace pipeline run archive --topic flights --warehouse ./warehouse
      headrace pipeline run archive --topic flights --table archive.flights \\
          --warehouse ./warehouse --master spark://host:7077 --continuous
    """
    names = [name.strip() for name in options["topic"].split(",") if name.strip()]
    session.describe_topics(names)
    job = importlib.import_module("headrace.pipeline.jobs.archive")
    config = job.ArchiveConfig(bootstrap=session.bootstrap, client=session.client_config, **options)
    stop = _Stop()
    signal.signal(signal.SIGINT, stop)
    restarts = importlib.import_module("headrace.pipeline.restarts")
    result = restarts.with_restarts(
        lambda: job.run_archive(
            config, on_round=None if quiet else _say_round, should_stop=lambda: stop.wanted
        ),
        f"The archive of {options['topic']}",
    )
    if not as_json:
        click.echo(str(result))
        return
    print_json(
        {
            "table": result.table,
            "rounds": result.round_count,
            "records": result.record_count,
            "seconds": result.elapsed_ms / 1000,
            "records_per_s": result.rate_per_s,
            "offsets": {
                topic: {str(partition): end for partition, end in ends.items()}
                for topic, ends in result.offsets.items()
            },
        }
    )


def _say_round(done: Any) -> None:
    say(
        f"round {done.number}: {done.record_count:,} records in {done.elapsed_ms / 1000:.1f} s "
        f"({done.rate_per_s:,}/s), {done.remaining:,} to go"
    )


@run.command()
@click.option("--topic", required=True, shell_complete=complete_topics, help="The topic.")
@click.option(
    "--table",
    default="headrace.archive",
    show_default=True,
    help="The Iceberg table: NAMESPACE.NAME or CATALOG.NAMESPACE.NAME.",
)
@click.option("--warehouse", required=True, help="The folder of the Iceberg warehouse.")
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def reconcile(
    session: Session, topic: str, table: str, warehouse: str, master: str, *, as_json: bool
) -> None:
    """Prove that a table holds a topic's records, each once, byte for byte; it changes nothing.

    The exit code is 1 if anything is missing, double or different.

    \b
    Example:
      headrace pipeline run reconcile --topic flights --warehouse ./warehouse
    """
    session.describe_topics([topic])
    proof = importlib.import_module("headrace.pipeline.proof")
    config = proof.ReconcileConfig(session.bootstrap, topic, table, client=session.client_config)
    report = proof.prove(config, warehouse, master)
    if as_json:
        print_json(
            {
                "topic": report.topic,
                "table": report.table,
                "is_exact": report.is_exact,
                "stored": report.stored_count,
                "archived": report.archived_count,
                "problems": report.problems,
            }
        )
    else:
        click.echo(f"{report.stored_count:,} records stored, {report.archived_count:,} archived")
    if not report.is_exact:
        raise CommandFailed(
            f"{table} is not {topic}: {'; '.join(report.problems[:5])}",
            "Run the archive to its end first; if that does not help, keep both and report it",
        )
