"""`headrace pipeline tables`: the service that keeps topics as tables.

Invariants: Spark is imported only when the service runs, and only through `headrace.pipeline`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import say
from headrace.cli.parameters import number_option
from headrace.cli.pipeline_interrupts import INTERRUPTION
from headrace.cli.pipeline_session import (
    MEMORY,
    WAREHOUSE,
    job_module,
    reading_job,
    reads_of,
    restarted,
)

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

_LOGIN = {
    "schemaRegistry.user": "HEADRACE_SCHEMA_REGISTRY_USER",
    "schemaRegistry.password": "HEADRACE_SCHEMA_REGISTRY_PASSWORD",
}


@click.command()
@WAREHOUSE
@reading_job
@click.option(
    "--schema-registry",
    metavar="URL",
    help="For topics with typed values. Its login: HEADRACE_SCHEMA_REGISTRY_USER and _PASSWORD.",
)
@number_option(
    "--quiet-wait",
    2.0,
    0,
    "Records of a quiet topic wait this long for others before a commit.",
    metavar="SECONDS",
)
@number_option(
    "--round-wait", 20.0, 0, "Records of a busy topic wait at most this long.", metavar="SECONDS"
)
@number_option("--rounds", 2, 1, "Tables that are written at the same time.", high=64)
@MEMORY
@click.option("--quiet", "-q", is_flag=True, help="Do not print a line per commit.")
@click.pass_obj
def tables(session: CliSession, /, quiet: bool, **options: Any) -> None:
    """Keep all topics that `headrace table enable` names as Iceberg tables.

    Runs until it is stopped. Several may run, on any machines: each topic is served by one of
    them, and by another when that one dies. It can be killed at any moment without loss, and waits
    while no broker answers.

    \b
    Example:
      headrace pipeline tables --warehouse ./warehouse --master local[4]
    """
    job, sessions = job_module("jobs.tables"), job_module("session")
    registry = {}
    if options["schema_registry"]:
        login = {name: os.environ.get(variable, "") for name, variable in _LOGIN.items()}
        registry = {"schemaRegistry": options["schema_registry"], **login}
    config = job.TablesConfig(
        session.bootstrap,
        options["warehouse"],
        session.client_config,
        registry,
        reads_of(session),
        quiet_wait_ms=int(options["quiet_wait"] * 1000),
        round_wait_ms=int(options["round_wait"] * 1000),
        rounds_max=options["rounds"],
    )
    settings = sessions.SessionConfig(
        options["master"], warehouse=options["warehouse"], memory_mb=options["memory"]
    )

    def serve() -> None:
        with INTERRUPTION.after("round"):
            spark = sessions.make_session(settings)
            try:
                job.serve_tables(
                    config,
                    spark=spark,
                    on_round=_ignore if quiet else _say,
                    on_failure=lambda topic, why: say(f"{topic}: not served, trying again: {why}"),
                    should_stop=INTERRUPTION.is_wanted,
                )
            finally:
                spark.stop()

    restarted(serve, "The service of tables")


def _ignore(_: object) -> None:
    pass


def _say(done: Any) -> None:
    lag = "" if done.lag_ms is None else f", the first had waited {done.lag_ms / 1000:.1f} s"
    say(
        f"{done.table}: {done.record_count:,} records in {done.elapsed_ms / 1000:.1f} s{lag},"
        f" {done.remaining:,} to go"
    )
