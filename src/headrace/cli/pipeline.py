"""`headrace pipeline`: the Spark jobs.

Rules of the room: Spark is imported only when a job runs, and only through `headrace.pipeline`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.completion import complete_topics
from headrace.cli.output import print_json

if TYPE_CHECKING:
    from headrace.cli.session import Session


@click.group()
def pipeline() -> None:
    """Run the Spark jobs, such as the archive to Iceberg."""


@pipeline.group("run")
def run() -> None:
    """Run a job."""


@run.command()
@click.option("--topic", required=True, shell_complete=complete_topics)
@click.option("--table", required=True, help="The Iceberg table, e.g. lake.archive.flights.")
@click.option("--warehouse", required=True, help="A folder, or an object store's URL.")
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option("--continuous", is_flag=True, help="Go on with what arrives; Ctrl-C ends.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def archive(session: Session, /, as_json: bool, **options: Any) -> None:
    """Append every record of a topic to an Iceberg table, exactly once.

    It may be stopped at any moment, even by kill -9: the next run goes on where this one stopped.

    \b
    Example:
      headrace pipeline run archive --topic flights --table lake.archive.flights \\
          --warehouse ./warehouse
    """
    session.partitions_of(options["topic"])
    job = importlib.import_module("headrace.pipeline.jobs.archive")
    config = job.ArchiveConfig(bootstrap=session.bootstrap, **options)
    result = job.run_archive(config)
    if as_json:
        print_json(result if isinstance(result, dict) else {"result": str(result)})
    elif result is not None:
        click.echo(str(result))
