"""`headrace find`: finds messages and shows their state.

Invariants: uses HTTP, page by page, so that a broker never holds more than one page. Any broker
searches all partitions. An archive is searched after the log, only when it is named.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from uuid import UUID

import click

from headrace.cli.failures import NOT_FOUND, USAGE, CommandFailed
from headrace.cli.inert import refuse_inert
from headrace.cli.output import AS_JSON, Cell, counted, iso_time, print_json, print_table, say
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.pipeline_session import (
    MASTER,
    WAREHOUSE_OR_NONE,
    connection_of,
    job_module,
    restarted,
    spark_for,
)
from headrace.cli.positions import TimeType
from headrace.cli.queue import Milliseconds
from headrace.cli.web import HTTP, Web, path_of
from headrace.records.identifiers import kafka_uuid
from headrace.records.tenant_names import key_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

PAGE_TIME_MS: Final = 2_000
VALUE_LENGTH: Final = 60


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@click.option("--id", "message_id", metavar="ID", help="The header headrace-message-id.")
@click.option("--key", "-k", help="The record's key, or a word in headrace-keys.")
@click.option("--tag", help="The header headrace-tag.")
@click.option("--header", metavar="NAME=VALUE", help="Any header.")
@click.option("--since", type=TimeType(), metavar="TIME", help="ISO 8601, or an age: 15m, 2h.")
@click.option("--until", type=TimeType(), metavar="TIME", help="As --since; exclusive.")
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Only this partition.")
@click.option(
    "--offset", type=click.IntRange(min=0), help="With --partition: only the record there."
)
@click.option(
    "--filter", "expression", metavar="EXPRESSION", help="CEL over a record: value.amount > 100."
)
@click.option("--count", "-n", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--time-limit", type=Milliseconds(), default="60s", show_default=True)
@WAREHOUSE_OR_NONE
@click.option("--table", help="With --warehouse: go on in this archive; NAMESPACE.NAME.")
@click.option(
    "--where",
    metavar="SQL",
    help="With --table: SQL over a record, of both; groups' states are not shown.",
)
@MASTER
@HTTP
@AS_JSON
@click.pass_obj
def find(session: CliSession, /, topic: str, **options: Any) -> None:
    """Find messages of TOPIC.

    Searches the log, delayed and half messages, and the dead letter topics of its share groups, and
    shows the state of each message in each share group. With --warehouse and --table, the search
    goes on in the topic's archive, by a Spark job.

    \b
    Examples:
      headrace find orders --id order-17
      headrace find orders --key customer-7 --since 2h --json
      headrace find orders --tag vip --header region=eu --until 2013-01-31T12:00:00
      headrace find orders --filter 'value.amount > 100 && headers.region == "eu"'
      headrace find orders --id order-17 --table headrace.orders --warehouse ./warehouse
      headrace find orders -p 2 --offset 1745 --table headrace.orders --warehouse ./warehouse
    """
    names = ("message_id", "key", "tag", "header", "partition")
    query = {name: options[name] for name in names if options[name] is not None}
    times = (("since_ms", options["since"]), ("until_ms", options["until"]))
    query |= {name: at for name, at in times if at is not None}
    if (options["warehouse"] is None) != (options["table"] is None):
        raise CommandFailed(
            "an archive is found by --table and --warehouse together; nothing was searched",
            "Give both, or none",
            USAGE,
        )
    if options["table"] is None:
        refuse_inert("without --table", "where", "master")
    elif options["expression"] is not None:
        raise CommandFailed(
            "--filter is not evaluated in an archive (--table); nothing was searched",
            "Use --where, which is SQL over the records of the archive",
            USAGE,
        )
    if options["expression"] is not None:
        query["where"] = options["expression"]
    if options["offset"] is not None and options["partition"] is None:
        raise CommandFailed(
            "--offset is one of a partition; nothing was searched", "Give --partition, too", USAGE
        )
    if options["where"] is None:
        found = _in_log(session, topic, query, options)
    else:  # which brokers do not evaluate: Spark reads the log, too
        found = {"messages": [], "is_complete": True, "searched": {"records": 0, "bytes": 0}}
    if options["table"] is not None:
        _add_archived(session, topic, query, found, options)
    if options["as_json"]:
        print_json(found)
    else:
        searched = found["searched"]
        if found["messages"]:
            columns = ["state", "place", "time", "id", "key", "value"]
            print_table(columns, [_row(one) for one in found["messages"]])
        say(f"{len(found['messages']):,} found, {counted(searched['records'], 'record')} searched")
    if count := found["searched"].get("not_evaluated"):
        reason = found["searched"]["not_evaluated_because"]
        say(f"--filter has no value for {count:,} of the records, which do not match: {reason}")
    if not found["is_complete"]:
        say(f"the search is incomplete: {found['reason']}")
    if not found["messages"]:
        raise CommandFailed(
            f"no message of {topic} matches" + ("" if found["is_complete"] else " so far"),
            "Change the range (--since, --until), or raise --time-limit"
            if not found["is_complete"]
            else "Check the id, key or tag; expired and purged messages are not found",
            NOT_FOUND,
        )


def _in_log(
    session: CliSession, topic: str, query: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    offset = options["offset"]
    if offset is None:
        return find_all(session, topic, query, options)
    # A search begins at an offset: the first record that it finds is there, or none is.
    found = find_all(session, topic, query | {"offset": offset}, options | {"count": 1})
    messages = [one for one in found["messages"] if one.get("offset") == offset]
    is_complete = found["is_complete"] or bool(found["messages"])
    return {**found, "messages": messages, "is_complete": is_complete}


def _add_archived(
    session: CliSession,
    topic: str,
    query: dict[str, Any],
    found: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Add what only the table has, up to --count."""
    job, windows = job_module("jobs.search"), job_module("jobs.windows")
    table = job_module("catalog").TableName.parse(options["table"])
    if len(found["messages"]) >= options["count"]:
        return

    def search() -> Any:
        with spark_for(options["master"], options["warehouse"], options["table"]) as spark:
            part = windows.read_table(spark, table)
            frame = part.frame
            asked = [f"offset = {options['offset']}"] if options["offset"] is not None else []
            asked += [f"({options['where']})"] if options["where"] is not None else []
            asked_for = job.Query(topic, where=" AND ".join(asked) or None, **query)
            if options["where"] is not None:
                connection = connection_of(session)
                window = windows.resolve_window(connection.cluster, (topic,), windows.WHOLE_LOG)
                log = job.search(asked_for, windows.read_window(spark, connection, window))
                found["messages"] = job.documents(log, options["count"], "log")
                found["searched"]["records"] = window.size
            matching = job.search(asked_for, frame)
            return job.documents(matching, options["count"]), part.topic_ids.get(topic)

    archived, topic_id = restarted(search, f"The search of {options['table']}")
    room = options["count"] - len(found["messages"])
    hot = {(key_of(one["topic"]), one["partition"], one.get("offset")) for one in found["messages"]}
    topic_id_now = kafka_uuid(UUID(Web(session).ask("GET", path_of("topics", topic))["id"]))
    if topic_id not in {None, topic_id_now}:
        hot = set()  # other records, at the same offsets
        say(
            f"{options['table']} holds the records of an earlier {topic}, which was deleted and"
            f" recreated: what is archived here is not of today's topic (id {topic_id})"
        )
    found["messages"] += [
        one for one in archived if (one["topic"], one["partition"], one["offset"]) not in hot
    ][:room]


def find_all(
    session: CliSession, topic: str, query: dict[str, Any], limits: dict[str, Any]
) -> dict[str, Any]:
    """Search on all brokers, up to a count and a time. Raises CommandFailed."""
    finding = _Finding(session, topic, limits)
    if not finding.ask(query):
        return finding.total
    if finding.missed:
        names = ", ".join(f"{name}-{number}" for name, number in sorted(finding.missed))
        finding.stop(f"the owners of these partitions could not be asked: {names}")
    return finding.total


class _Finding:
    """The results so far."""

    def __init__(self, session: CliSession, topic: str, limits: dict[str, Any]) -> None:
        self.total: dict[str, Any] = {
            "messages": [], "is_complete": True, "searched": {"records": 0, "bytes": 0}
        }  # fmt: skip
        self.missed: set[tuple[str, int]] = set()
        """Partitions whose owner could not be asked."""
        self._session = session
        self._topic = topic
        self._count = limits["count"]
        self._deadline_s = time.monotonic() + limits["time_limit"] / 1000

    def stop(self, reason: str) -> None:
        """Explain why not everything was searched."""
        self.total |= {"is_complete": False, "reason": reason}

    def ask(self, query: dict[str, Any]) -> bool:
        """Add the results; returns False once a limit is reached."""
        web, given = Web(self._session), dict(query)
        while True:
            room = self._count - len(self.total["messages"])
            rest_ms = int((self._deadline_s - time.monotonic()) * 1000)
            if room <= 0 or rest_ms <= 0:
                self.stop(f"{'--count' if room <= 0 else '--time-limit'} was reached")
                return False
            given |= {"limit": min(room, 1_000), "time_ms": min(rest_ms, PAGE_TIME_MS)}
            path = f"{path_of('topics', self._topic, 'messages')}?{urlencode(given)}"
            answer = web.ask("GET", path, wait_s=PAGE_TIME_MS / 1000)
            self.total["messages"] += answer["messages"]
            searched = self.total["searched"]
            for name in ("records", "bytes", "not_evaluated"):
                if name in answer["searched"]:
                    searched[name] = searched.get(name, 0) + answer["searched"][name]
            if "not_evaluated_because" in answer["searched"]:
                searched.setdefault(
                    "not_evaluated_because", answer["searched"]["not_evaluated_because"]
                )
            for other in answer.get("failed", ()):
                self.missed.add((other["topic"], other["partition"]))
            if "next_page_token" not in answer:
                break
            given["page_token"] = answer["next_page_token"]
        return True


def _row(one: dict[str, Any]) -> list[Cell]:
    groups = ", ".join(f"{group['group']}: {group['state']}" for group in one.get("groups", ()))
    state = groups or one["state"]
    if one["state"] == "delayed":
        state = f"delayed until {iso_time(one['due_ms'])}"
    if one["state"] == "dead":
        state = f"dead letter: {one['origin'].get('message', '')}"
    place = f"{one['topic']}-{one['partition']}"
    if "offset" in one:
        place += f":{one['offset']}"
    headers = {header[0]: header[1] for header in one["headers"]}
    value = one["value"]
    shown = None if value is None else value[:VALUE_LENGTH]
    message_id = headers.get("headrace-message-id")
    return [state, place, iso_time(one["timestamp_ms"]), message_id, one["key"], shown]
