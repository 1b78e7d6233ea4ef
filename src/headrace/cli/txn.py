"""`headrace txn`: list, describe, abort-hanging.

Invariants: hand-written requests of Kafka's protocol, because the client library has no calls for
them. A transaction is aborted only if the operator gives its partition and first offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.broker_calls import ask_broker, brokers
from headrace.cli.failures import FAILED, NOT_FOUND, CommandFailed
from headrace.cli.names import NAME, written_name
from headrace.cli.output import AS_JSON, print_json, print_table, tell
from headrace.cli.parameters import TOPIC_NAME, CommandGroup

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

# do not change: protocol. (key, version)
WRITE_TXN_MARKERS = 27, 1
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = (61, 0), (65, 0), (66, 0)
NONE = 0
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
COLUMNS = ("transactional_id", "producer_id", "state", "coordinator")


@click.group(cls=CommandGroup)
def txn() -> None:
    """List and describe transactions; abort hanging ones.

    \b
    Examples:
      headrace txn list --state Ongoing
      headrace txn describe copier-1 --json
      headrace txn abort-hanging --topic orders --partition 3 --start-offset 1042
    """


@txn.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these.")
@AS_JSON
@click.pass_obj
def list_(session: CliSession, /, states: tuple[str, ...], as_json: bool) -> None:
    """List the transactional ids of the cluster with their states."""
    body = {"state_filters": states, "producer_id_filters": ()}
    rows: list[dict[str, Any]] = []
    for number, address in brokers(session):
        answer = ask_broker(session, address, LIST_TRANSACTIONS, body)
        if answer.error_code != NONE:
            raise CommandFailed(
                f"broker {number} cannot list its transactions at the moment (code"
                f" {answer.error_code})",
                "It may still be loading them: try again",
                FAILED,
            )
        for item in answer.transaction_states:
            values = item.transactional_id, item.producer_id, item.transaction_state, number
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    rows.sort(key=lambda row: row["transactional_id"])
    if as_json:
        print_json(rows)
    else:
        headings = [column.replace("_", " ") for column in COLUMNS]
        table = [[row[column] for column in COLUMNS] for row in rows]
        print_table(headings, table, empty="no transactional producers are known")


@txn.command()
@click.argument("names", nargs=-1, required=True, type=NAME)
@AS_JSON
@click.pass_obj
def describe(session: CliSession, /, names: tuple[str, ...], as_json: bool) -> None:
    """Show the state, producer and open partitions of transactional ids."""
    found: dict[str, dict[str, Any]] = {}
    for number, address in brokers(session):
        wanted = [name for name in names if name not in found]
        body = {"transactional_ids": wanted}
        documents = _documents(ask_broker(session, address, DESCRIBE_TRANSACTIONS, body))
        found.update((d["transactional_id"], {**d, "coordinator": number}) for d in documents)
    for name in names:
        if name not in found:
            raise CommandFailed(
                f"unknown transactional id {name!r}",
                "List them with `headrace txn list`",
                NOT_FOUND,
            )
    described = [found[name] for name in names]
    if as_json:
        print_json(described)
        return
    for document in described:
        tell(
            f"{written_name(document['transactional_id'])}: {document['state']}, producer"
            f" {document['producer_id']} epoch {document['producer_epoch']}, timeout"
            f" {document['timeout_ms']} ms, coordinator broker {document['coordinator']}"
        )
        rows = [[place["topic"], place["partition"]] for place in document["partitions"]]
        if rows:
            print_table(["topic", "partition"], rows)


def _documents(answer: Any) -> list[dict[str, Any]]:
    """The transactions in a DescribeTransactions response that the broker knows."""
    return [
        {
            "transactional_id": item.transactional_id,
            "state": item.transaction_state,
            "timeout_ms": item.transaction_timeout_ms,
            "started_ms": None
            if item.transaction_start_time_ms < 0
            else item.transaction_start_time_ms,
            "producer_id": item.producer_id,
            "producer_epoch": item.producer_epoch,
            "partitions": [
                {"topic": topic.topic, "partition": number}
                for topic in item.topics
                for number in topic.partitions
            ],
        }
        for item in answer.transaction_states
        if item.error_code == NONE
    ]


@txn.command("abort-hanging")
@click.option("--topic", required=True, type=TOPIC_NAME)
@click.option("--partition", required=True, type=click.IntRange(0))
@click.option(
    "--start-offset",
    required=True,
    type=click.IntRange(0),
    help="First offset of the transaction: the last stable offset that does not advance.",
)
@click.pass_obj
def abort_hanging(session: CliSession, /, topic: str, partition: int, start_offset: int) -> None:
    """Abort a transaction in a partition that no coordinator will end.

    Coordinators verify the first write of each transaction, so this should not be necessary. A
    transaction that is listed as Ongoing ends when its timeout passes.
    """
    address = _leader(session, topic, partition)
    place = {"name": topic, "partition_indexes": [partition]}
    answer = ask_broker(session, address, DESCRIBE_PRODUCERS, {"topics": [place]})
    described = answer.topics[0].partitions[0]
    hanging = [
        producer
        for producer in described.active_producers
        if producer.current_txn_start_offset == start_offset
    ]
    if not hanging:
        raise CommandFailed(
            f"no transaction begins at offset {start_offset} of {topic}-{partition}",
            "It may have ended in the meantime",
            NOT_FOUND,
        )
    producer = hanging[0]
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "transaction_result": False,
        "topics": [place],
        "coordinator_epoch": max(producer.coordinator_epoch, 0),
    }
    written = ask_broker(session, address, WRITE_TXN_MARKERS, {"markers": [marker]})
    code = written.markers[0].topics[0].partitions[0].error_code
    if code != NONE:
        raise CommandFailed(
            f"the broker did not write the marker (code {code})",
            "A newer transaction may be open: check the partition again",
            FAILED,
        )
    tell(f"aborted the transaction of producer {producer.producer_id}")


def _leader(session: CliSession, topic: str, partition: int) -> str:
    metadata = session.cluster_metadata()
    found = metadata.topics.get(topic)
    if found is None or partition not in found.partitions:
        raise CommandFailed(f"there is no partition {topic}-{partition}", "", NOT_FOUND)
    broker = metadata.brokers.get(found.partitions[partition].leader)
    if broker is None:
        raise CommandFailed(f"{topic}-{partition} currently has no leader", "Try again", FAILED)
    return f"{broker.host}:{broker.port}"
