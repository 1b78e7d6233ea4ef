"""The options of `headrace pipeline proof` that name copies of a topic elsewhere.

Invariants: logins come from a context or the environment, never from an option, which others on the
machine can read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.inert import refuse_inert
from headrace.cli.pipeline_session import connection_of, job_module
from headrace.cli.session import CliSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.parameters import Command

_DATABASE = ("database_table", "record_id", "row_id", "record_value", "row_value", "rows_where")


def copy_options(command: Command) -> Command:
    """Add the options that name copies."""
    for option in (
        click.option("--driver", "drivers", multiple=True,
                     type=click.Path(path_type=Path, exists=True, dir_okay=False),
                     help="A jar with the database's JDBC driver; SQLite's is there."),
        click.option("--rows-where", metavar="SQL", help="Only these rows of the database table."),
        click.option("--row-value", metavar="SQL", help="What of a row equals --record-value."),
        click.option("--record-value", metavar="SQL", help="What of a record is compared."),
        click.option("--row-id", metavar="SQL", help="What of a row equals --record-id."),
        click.option("--record-id", metavar="SQL", help="What of a record names its row."),
        click.option("--database-table", metavar="NAME", help="The table in --database."),
        click.option("--database", metavar="JDBC-URL",
                     help="Also compare with a table of this database. Its login is in"
                     " HEADRACE_DATABASE_USER and HEADRACE_DATABASE_PASSWORD."),
        click.option("--copy-topic", metavar="NAME", help="The topic there, if of another name."),
        click.option("--copy", "cluster", metavar="CONTEXT|HOST:PORT",
                     help="Also compare with the topic of another cluster."),
    ):  # fmt: skip
        command = option(command)
    return command


def copies_of(session: CliSession, topic: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """The copies that the options name. Raises CommandFailed."""
    job, found = job_module("jobs.copies"), []
    if (there := options["cluster"]) is None:
        refuse_inert("without --copy", "copy_topic")
    else:
        other = CliSession(there if ":" in there else None, session.timeout_s)
        if ":" not in there:
            other.context_name = there
        name = options["copy_topic"] or topic
        other.describe_topics([name])
        known_by = {each: options[each] for each in ("producer", "sequence") if options[each]}
        found.append(job.TopicCopy(connection_of(other), name, **known_by))
    if options["database"] is None:
        refuse_inert("without --database", *_DATABASE, "drivers")
    else:
        _check_given(options, ("database_table", "record_id", "row_id"))
        table, record_id, row_id, record_value, row_value, rows_where = (
            options[name] for name in _DATABASE
        )
        found.append(
            job.DatabaseCopy(
                options["database"], table, record_id, row_id, record_value, row_value,
                rows_where or "true", options["drivers"],
            )
        )  # fmt: skip
    return tuple(found)


def _check_given(options: dict[str, Any], names: Sequence[str]) -> None:
    lacking = [f"--{name.replace('_', '-')}" for name in names if not options[name]]
    if lacking:
        raise CommandFailed(
            f"--database also needs {', '.join(lacking)}; nothing was read",
            "For example --database jdbc:sqlite:shop.db --database-table orders"
            " --record-id 'cast(key AS string)' --row-id id",
            USAGE,
        )
