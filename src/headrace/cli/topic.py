"""`headrace topic`: create, list, describe, alter, copy, trim, delete.

Invariants: commands that change something print the change on stdout; `--json` prints the same
facts with stable names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.client import kafka_admin
from headrace.cli.failures import CONFLICT, NOT_FOUND, CommandFailed
from headrace.cli.output import AS_JSON, confirm, counted, print_json, print_table, tell
from headrace.cli.pairs import setting
from headrace.cli.parameters import TOPIC_NAME, CommandGroup
from headrace.cli.positions import Partition, log_bounds
from headrace.cli.topic_copy import copy
from headrace.cli.topic_hot_keys import hot_keys
from headrace.cli.topic_ledgers import ledgers
from headrace.cli.topic_names import is_internal, matching
from headrace.cli.topic_shares import accept, leave, share, shares, unshare
from headrace.cli.topic_trim import trim
from headrace.cli.web import HTTP, PAGE_ITEMS_MAX, Web
from headrace.records.tenant_names import key_of, written_topic
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

MESSAGE_TYPES = ("normal", "fifo", "delay", "transaction", "priority", "mixed", "lite")
_FIGURES = "records", "size_bytes", "records_in_per_s", "bytes_out_per_s"
NAMES = click.argument("names", nargs=-1, required=True, type=TOPIC_NAME)


def _settings(_ctx: object, _param: object, values: tuple[str, ...]) -> dict[str, str]:
    return dict(setting(value, "retention.ms=7d") for value in values)


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create, list, describe, alter, copy, trim and delete topics; list their ledgers.

    \b
    Examples:
      headrace topic create orders --partitions 6 --set retention.ms=7d
      headrace topic create payments --type fifo    # for RocketMQ's clients
      headrace topic create metrics --set flush.ms=1000    # faster, can lose the last second
      headrace topic list
      headrace topic describe orders --json
      headrace topic alter orders --partitions 12 --unset retention.ms
      headrace topic trim orders --before 7d
      headrace topic ledgers orders --partition 0
      headrace topic hot-keys orders --partition 0
      headrace topic copy orders orders-test --from 1h
      headrace topic share orders --with beta       # a tenant, which accepts it
      headrace topic accept acme/orders --as partner-orders
      headrace topic delete orders --yes
    """


for command in (copy, hot_keys, ledgers, trim, share, unshare, accept, leave, shares):
    topic.add_command(command)


@topic.command()
@click.argument("names", nargs=-1, required=True, type=TOPIC_NAME)
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="Default: the broker's.")
@click.option("--replication-factor", type=click.IntRange(min=1), help="Default: the broker's.")
@click.option(
    "--set",
    "config",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_settings,
    help="A topic setting, e.g. retention.ms=7d or retention.bytes=10GiB.",
)
@click.option(
    "--type",
    "message_type",
    type=click.Choice(MESSAGE_TYPES),
    help="What RocketMQ's clients may send (headrace.message.type). Default: normal messages.",
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail if the topic already exists.")
@AS_JSON
@click.pass_obj
def create(session: CliSession, /, names: tuple[str, ...], **options: Any) -> None:
    """Create topics."""
    if options["message_type"]:
        given = {"headrace.message.type": options["message_type"]}
        options["config"] = given | options["config"]
    new = [
        kafka_admin().NewTopic(
            name,
            num_partitions=options["partitions"] or -1,
            replication_factor=options["replication_factor"] or -1,
            config=options["config"],
        )
        for name in names
    ]
    admin = session.admin()
    futures = admin.create_topics(new, request_timeout=session.timeout_s)
    outcome = []
    for name in names:
        created = True
        try:
            session.answer(futures[name], f"create topic {name!r}", Right("create", "topic", name))
        except CommandFailed as failure:
            if not options["if_not_exists"] or failure.exit_code != CONFLICT:
                raise
            created = False
        outcome.append({"topic": name, "created": created})
    if options["as_json"]:
        print_json(outcome)
        return
    for row in outcome:
        done = "created" if row["created"] else "already exists:"
        tell(f"{done} {written_topic(str(row['topic']))}")


@topic.command("list")
@click.argument("patterns", nargs=-1, type=TOPIC_NAME)
@click.option(
    "--internal", is_flag=True, help="Include internal topics (names that begin with __)."
)
@click.option(
    "--records",
    is_flag=True,
    help="Count the records of each topic by offsets (one request per topic).",
)
@click.option(
    "--figures",
    is_flag=True,
    help="Records, size, rates of the last minute and lag of groups, by HTTP.",
)
@HTTP
@AS_JSON
@click.pass_obj
def list_(
    session: CliSession,
    /,
    patterns: tuple[str, ...],
    internal: bool,
    records: bool,
    figures: bool,
    as_json: bool,
) -> None:
    """List all topics, or those that match a PATTERN such as 'orders-*'."""
    if figures:
        _list_figures(session, patterns, internal=internal, as_json=as_json)
        return
    metadata = session.cluster_metadata()
    known = [name for name in metadata.topics if internal or not is_internal(name)]
    names = matching(known, patterns)
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "partitions": len(metadata.topics[name].partitions),
            "replication_factor": max(
                (len(p.replicas) for p in metadata.topics[name].partitions.values()), default=0
            ),
        }
        for name in names
    ]
    if records:
        wanted = [Partition(name, p) for name in names for p in metadata.topics[name].partitions]
        bounds = log_bounds(session, wanted)
        for row in rows:
            mine = [b for p, b in bounds.items() if p.topic == row["topic"]]
            row["records"] = sum(b.latest - b.earliest for b in mine)
    if as_json:
        print_json(rows)
        return
    columns = ["topic", "partitions", "replication_factor", *(["records"] if records else [])]
    print_table(
        [c.replace("_", " ") for c in columns],
        [[r[c] for c in columns] for r in rows],
        empty="no topics: headrace topic create NAME makes one",
    )


def _list_figures(
    session: CliSession, patterns: tuple[str, ...], *, internal: bool, as_json: bool
) -> None:
    query = {"details": "true", "internal": str(internal).lower(), "limit": PAGE_ITEMS_MAX}
    pages = list(Web(session).ask_pages("GET", "/v1/topics", query=query))
    found = {key_of(one["name"]): one for answer in pages for one in answer["topics"]}
    rows = [found[name] for name in matching(list(found), patterns)]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["topic", "partitions", "records", "bytes", "records in/s", "bytes out/s", "lag", "groups"],
        [
            [
                *(row[name] for name in ("name", "partitions")),
                *(_at_least(row["is_partial"], row[name]) for name in _FIGURES),
                _at_least(row["lag_is_partial"], row["lag_records"]),
                ", ".join(
                    f"{one['group']} {_at_least(row['lag_is_partial'], one['records'])}"
                    for one in row["lags"]
                ),
            ]
            for row in rows
        ],
        empty="no topics: headrace topic create NAME makes one",
    )
    failed = sorted({one["broker"] for answer in pages for one in answer.get("failed", [])})
    if failed:
        tell(f"without the figures of brokers {failed}, which do not answer", err=True)


def _at_least(is_partial: bool, figure: float) -> Any:
    return f">={figure}" if is_partial else figure


def _config_of(session: CliSession, name: str) -> list[dict[str, Any]]:
    resource = kafka_admin().ConfigResource(kafka_admin().ResourceType.TOPIC, name)
    future = session.admin().describe_configs([resource], request_timeout=session.timeout_s)[
        resource
    ]
    entries = session.answer(
        future, f"settings of topic {name!r}", Right("describe_configs", "topic", name)
    ).values()
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "default": entry.is_default,
            "read_only": entry.is_read_only,
        }
        for entry in sorted(entries, key=lambda entry: entry.name)
    ]


def _facts(session: CliSession, description: Any, all_settings: bool) -> dict[str, Any]:
    name = description.name
    wanted = [Partition(name, p.id) for p in description.partitions]
    bounds = log_bounds(session, wanted)
    partitions = []
    for part in sorted(description.partitions, key=lambda part: part.id):
        ends = bounds[Partition(name, part.id)]
        partitions.append(
            {
                "partition": part.id,
                "leader": part.leader.id if part.leader else None,
                "replicas": [node.id for node in part.replicas],
                "in_sync": [node.id for node in part.isr],
                "earliest": ends.earliest,
                "latest": ends.latest,
                "records": ends.latest - ends.earliest,
            }
        )
    config = _config_of(session, name)
    return {
        "topic": name,
        "topic_id": str(description.topic_id) if description.topic_id else None,
        "internal": bool(description.is_internal),
        "partitions": partitions,
        "config": [entry for entry in config if all_settings or not entry["default"]],
    }


@topic.command()
@NAMES
@click.option("--all-settings", is_flag=True, help="Include settings with default values.")
@AS_JSON
@click.pass_obj
def describe(
    session: CliSession, /, names: tuple[str, ...], all_settings: bool, as_json: bool
) -> None:
    """Show the partitions, offsets and settings of topics."""
    descriptions = session.describe_topics(list(names))
    facts = [_facts(session, descriptions[name], all_settings) for name in names]
    if as_json:
        print_json(facts)
        return
    for fact in facts:
        records = sum(p["records"] for p in fact["partitions"])
        tell(
            f"{fact['topic']}: {counted(len(fact['partitions']), 'partition')},"
            f" {counted(records, 'record')}, id {fact['topic_id'] or 'unknown'}"
        )
        columns = ["partition", "leader", "earliest", "latest", "records", "replicas", "in_sync"]
        print_table(
            [column.replace("_", " ") for column in columns],
            [
                [",".join(map(str, p[c])) if isinstance(p[c], list) else p[c] for c in columns]
                for p in fact["partitions"]
            ],
        )
        for entry in fact["config"]:
            note = "" if not entry["default"] else "  (default)"
            tell(f"  {entry['name']} = {entry['value']}{note}")


@topic.command()
@click.argument("name", type=TOPIC_NAME)
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="New number of partitions.")
@click.option("--set", "config", metavar="NAME=VALUE", multiple=True, callback=_settings)
@click.option(
    "--unset", metavar="NAME", multiple=True, help="Reset a setting to the broker's default."
)
@AS_JSON
@click.pass_obj
def alter(session: CliSession, /, name: str, **options: Any) -> None:
    """Change settings or add partitions, which cannot be removed again."""
    partitions, config, unset = options["partitions"], options["config"], options["unset"]
    if not (partitions or config or unset):
        raise click.UsageError("Nothing to change: use --partitions, --set or --unset.")
    session.describe_topics([name])
    if config or unset:
        _alter_config(session, name, config, unset)
    if partitions:
        futures = session.admin().create_partitions(
            [kafka_admin().NewPartitions(name, partitions)], request_timeout=session.timeout_s
        )
        session.answer(
            futures[name],
            f"grow topic {name!r} to {partitions} partitions",
            Right("alter", "topic", name),
        )
    if options["as_json"]:
        print_json({"topic": name, "partitions": partitions, "set": config, "unset": list(unset)})
        return
    changes = [f"{key}={value}" for key, value in config.items()]
    changes += [f"{key} reset to default" for key in unset]
    changes += [f"{partitions} partitions"] if partitions else []
    tell(f"altered {written_topic(name)}: {', '.join(changes)}")


def _alter_config(
    session: CliSession, name: str, config: dict[str, str], unset: tuple[str, ...]
) -> None:
    library = kafka_admin()
    put, delete_ = library.AlterConfigOpType.SET, library.AlterConfigOpType.DELETE
    entries = [
        library.ConfigEntry(key, value, incremental_operation=put) for key, value in config.items()
    ]
    entries += [library.ConfigEntry(key, "", incremental_operation=delete_) for key in unset]
    resource = library.ConfigResource(library.ResourceType.TOPIC, name, incremental_configs=entries)
    futures = session.admin().incremental_alter_configs(
        [resource], request_timeout=session.timeout_s
    )
    session.answer(
        futures[resource], f"alter topic {name!r}", Right("alter_configs", "topic", name)
    )


@topic.command()
@NAMES
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="Do not fail if the topic does not exist.")
@AS_JSON
@click.pass_obj
def delete(
    session: CliSession, /, names: tuple[str, ...], yes: bool, if_exists: bool, as_json: bool
) -> None:
    """Delete topics with all their records. Asks first; without a terminal, use --yes."""
    confirm(f"Delete {', '.join(map(written_topic, names))} and all records in them?", is_sure=yes)
    futures = session.admin().delete_topics(list(names), request_timeout=session.timeout_s)
    outcome = []
    missing = ""
    for name in names:
        deleted = True
        try:
            session.answer(futures[name], f"delete topic {name!r}", Right("delete", "topic", name))
        except CommandFailed as failure:
            if failure.exit_code != NOT_FOUND:
                raise
            missing = missing if if_exists else missing or name
            deleted = False
        outcome.append({"topic": name, "deleted": deleted})
    if as_json:
        print_json(outcome)
    else:
        for row in outcome:
            if row["deleted"]:
                tell(f"deleted {written_topic(str(row['topic']))}")
    if missing:
        raise session.no_topic(missing)
