"""`headrace table`: which topics are kept as Iceberg tables, and how far these are.

Invariants: enabling and disabling are settings of the topic; `headrace pipeline tables` acts on
them. Nothing here starts Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.client import kafka_admin
from headrace.cli.output import AS_JSON, print_json, print_table, tell
from headrace.cli.parameters import TOPIC_NAME, CommandGroup
from headrace.cli.pipeline_session import MODE, WAREHOUSE, job_module
from headrace.records.tenant_names import written_topic
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.session import CliSession

_SETTING = "headrace.table"
_ALL = (_SETTING, f"{_SETTING}.value")
TOPIC = click.argument("topic", type=TOPIC_NAME)


@click.group(cls=CommandGroup)
def table() -> None:
    """Keep topics as Iceberg tables.

    \b
    Examples:
      headrace table enable orders
      headrace table enable customers --mode upsert
      headrace pipeline tables --warehouse ./warehouse    # the service that fills them
      headrace table status --warehouse ./warehouse
    """


def _alter(session: CliSession, topic: str, values: Mapping[str, str | None]) -> None:
    """Set settings of a topic; None removes one."""
    library = kafka_admin()
    put, remove = library.AlterConfigOpType.SET, library.AlterConfigOpType.DELETE
    resource = library.ConfigResource(
        library.ResourceType.TOPIC,
        topic,
        incremental_configs=[
            library.ConfigEntry(name, value, incremental_operation=remove if value is None else put)
            for name, value in values.items()
        ],
    )
    futures = session.admin().incremental_alter_configs(
        [resource], request_timeout=session.timeout_s
    )
    session.answer(
        futures[resource],
        f"change settings of topic {topic!r}",
        Right("alter_configs", "topic", topic),
    )


@table.command()
@TOPIC
@MODE
@click.option(
    "--value",
    type=click.Choice(["binary", "avro", "json", "protobuf"]),
    default="binary",
    show_default=True,
    help="Columns by the topic's schema; what cannot be decoded goes to a side table.",
)
@click.pass_obj
def enable(session: CliSession, topic: str, mode: str, value: str) -> None:
    """Keep a topic as a table, from its first record on."""
    session.describe_topics([topic])
    _alter(session, topic, dict(zip(_ALL, (mode, value), strict=True)))
    tell(f"{written_topic(topic)} is kept as a table while `headrace pipeline tables` runs")


@table.command()
@TOPIC
@click.pass_obj
def disable(session: CliSession, topic: str) -> None:
    """Stop keeping a topic as a table. The table stays, and is continued when enabled again."""
    session.describe_topics([topic])
    _alter(session, topic, dict.fromkeys(_ALL))
    tell(f"{written_topic(topic)} is no longer kept as a table")


@table.command()
@click.argument("topics", nargs=-1, type=TOPIC_NAME)
@WAREHOUSE
@AS_JSON
@click.pass_obj
def status(session: CliSession, topics: tuple[str, ...], warehouse: Any, *, as_json: bool) -> None:
    """Show how far the tables of topics are: of those named, or of all that are enabled."""
    if topics:
        session.describe_topics(list(topics))
    else:
        session.check_reachable()
    settings = {**session.client_config, "bootstrap.servers": session.bootstrap}
    rows = job_module("jobs.table_status").status_of(settings, warehouse, topics)
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    shown: list[list[Any]] = [
        [
            row.topic,
            row.mode,
            row.table,
            row.pending,
            row.committed_at or "-",
            "-" if row.lag_s is None else f"{row.lag_s:.1f} s",
            row.problem or "",
        ]
        for row in rows
    ]
    print_table(["topic", "mode", "table", "pending", "last commit", "lag", "problem"], shown)
