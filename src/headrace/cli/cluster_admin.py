"""`headrace cluster status | drain | move | verify`: a cluster over ZooKeeper and BookKeeper.

Invariants: sends requests and prints results; the logic is in `headrace.administration.cluster`. A
command that requests a move waits for it, unless told not to.
"""

from __future__ import annotations

import asyncio
import time
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.cluster_options import (
    CLUSTER_NAMES,
    CREDENTIAL,
    cluster_settings,
    tls_options,
    with_tls,
)
from headrace.cli.config_file import config_option
from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.inert import refuse_inert
from headrace.cli.output import AS_JSON, iso_time, print_json, print_table, say, size_text, tell
from headrace.cli.parameters import TOPIC_NAME, number_option
from headrace.cli.progress import counting
from headrace.cli.setting_options import setting_option
from headrace.errors import HeadraceError, MetadataUnavailable
from headrace.runtime.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from headrace.administration.cluster import ClusterAdmin
    from headrace.administration.cluster_settings import ClusterSettings
    from headrace.administration.replication_report import UnderReplicated
    from headrace.administration.snapshot import ClusterSnapshot
    from headrace.cli.output import Cell
    from headrace.metadata.facts import BrokerFact

Answer = TypeVar("Answer")

POLL_S = 0.2
SESSION_TIMEOUT_MS = 6_000
SHOWN_MAX = 20
LOAD_COLUMNS = ["in_per_s", "out_per_s", "cpu"]
WAIT = number_option("--wait-s", 60.0, 0, "How long to wait for completion; 0: do not wait.")


def where(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the cluster to a command, which gets them as `settings`."""
    for option in (
        click.option(
            "--zookeeper-root",
            metavar="PATH",
            default="/headrace",
            show_default=True,
            envvar="HEADRACE_ZOOKEEPER_ROOT",
            help="ZooKeeper path of the cluster.",
        ),
        click.option(
            "--zookeeper",
            metavar="HOST:PORT,...",
            default="127.0.0.1:2181",
            show_default=True,
            envvar="HEADRACE_ZOOKEEPER",
            help="ZooKeeper servers of the cluster.",
        ),
        CREDENTIAL,
        setting_option("quorum"),  # that of brokers: without it, theirs may seem to be missed
        config_option(None, CLUSTER_NAMES),
    ):
        command = option(command)

    @wraps(command)
    def asking(
        zookeeper: str,
        zookeeper_root: str,
        zookeeper_credential_file: Path | None,
        quorum: tuple[int, int, int],
        tls: Any,
        **more: Any,
    ) -> None:
        settings = cluster_settings(
            zookeeper, zookeeper_root, SESSION_TIMEOUT_MS, quorum, zookeeper_credential_file
        )
        settings = with_tls(settings, tls)
        assert settings is not None, "--zookeeper has a default"
        command(settings, **more)

    return tls_options(asking)


def ask(settings: ClusterSettings, question: Callable[[ClusterAdmin], Awaitable[Answer]]) -> Answer:
    """Connect, run, disconnect. Raises CommandFailed."""
    from headrace.administration.cluster import open_admin

    async def main() -> Answer:
        async with open_admin(settings) as admin:
            return await question(admin)

    try:
        return asyncio.run(main())
    except HeadraceError as error:
        is_away = isinstance(error, MetadataUnavailable)
        hint = "Is ZooKeeper running? Set its address with --zookeeper or HEADRACE_ZOOKEEPER"
        raise CommandFailed(str(error), hint if is_away else "") from error


def _load(
    snapshot: ClusterSnapshot, broker: BrokerFact, *, as_json: bool
) -> list[str | float | None]:
    """A broker's recent load; None if it has not reported it."""
    load = snapshot.loads.get(broker.id)
    if load is None or load.incarnation != broker.incarnation:
        return [None] * len(LOAD_COLUMNS)
    rates = [load.in_bytes_per_s, load.out_bytes_per_s]
    if as_json:
        return [*rates, load.cpu_permille / 1000]
    return [*map(size_text, rates), f"{load.cpu_permille / 10:.0f} %"]


def _broker_row(
    snapshot: ClusterSnapshot, broker: BrokerFact, owned: int, *, as_json: bool
) -> list[Cell]:
    return [
        str(broker.id),
        f"{broker.kafka_host}:{broker.kafka_port}",
        broker.rack,
        iso_time(broker.started_ms),
        owned,
        *_load(snapshot, broker, as_json=as_json),
        "draining" if broker.id in snapshot.draining else "serving",
    ]


def _lost(snapshot: ClusterSnapshot) -> list[str]:
    """Lost facts, as text."""
    return [
        *(
            f"{snapshot.name_of(key)}: its chain of ledgers is missing"
            for key in snapshot.missing_chains
        ),
        *(f"topic {topic_id.hex}: its metadata is missing" for topic_id in snapshot.lost_topics),
    ]


@click.command()
@AS_JSON
@where
def status(settings: ClusterSettings, as_json: bool) -> None:
    """Show brokers and bookies; fail if partitions are offline or under-replicated."""

    async def question(
        admin: ClusterAdmin,
    ) -> tuple[ClusterSnapshot, Sequence[UnderReplicated], list[str]]:
        seen = await admin.snapshot()
        return seen, await admin.under_replicated(seen), admin.unwritable(seen)

    snapshot, lacking, unwritable = ask(settings, question)
    owned: dict[int, int] = dict.fromkeys(snapshot.brokers, 0)
    unserved = []
    for key in snapshot.partitions:
        broker_id = snapshot.server_of(key)
        if broker_id is None:
            unserved.append(snapshot.name_of(key))
        else:
            owned[broker_id] += 1
    rows = [
        _broker_row(snapshot, broker, owned[broker.id], as_json=as_json)
        for _id, broker in sorted(snapshot.brokers.items())
    ]
    columns = ["broker", "kafka", "rack", "since", "partitions", *LOAD_COLUMNS, "state"]
    if as_json:
        print_json(
            {
                "cluster_id": snapshot.cluster_id,
                "brokers": [dict(zip(columns, row, strict=True)) for row in rows],
                **_facts(snapshot),
                "unserved": unserved,
                "missing_chains": [snapshot.name_of(key) for key in snapshot.missing_chains],
                "lost_topics": [topic_id.hex for topic_id in snapshot.lost_topics],
                "problems": snapshot.problems,
                "under_replicated": [one._asdict() for one in lacking],
                "copies_missing": sum(one.copies_missing for one in lacking),
                "unwritable": unwritable,
            },
            has_contents=False,
        )
        _fail_if_unwell(snapshot, unserved, lacking, unwritable)
        return
    say(f"cluster {snapshot.cluster_id}: {len(snapshot.topics)} topics")
    print_table(columns, rows)
    if snapshot.moves:
        say(f"partitions moved by load: {len(snapshot.moves)}")
    for problem in _lost(snapshot):
        tell(f"{problem}; it is not served. See `headrace cluster verify`")
    for problem in snapshot.problems:
        tell(problem)
    say(f"writable bookies: {', '.join(snapshot.bookies) or 'none'}")
    if snapshot.read_only_bookies:
        say(f"read-only bookies: {', '.join(snapshot.read_only_bookies)}")
    if snapshot.lost_bookies:
        say(f"unregistered bookies: {', '.join(snapshot.lost_bookies)}")
    for one in lacking[:SHOWN_MAX]:
        tell(one.text)
    _fail_if_unwell(snapshot, unserved, lacking, unwritable)


def _facts(snapshot: ClusterSnapshot) -> dict[str, object]:
    """The `--json` form of bookies, topics, pins and moves."""
    return {
        "bookies": snapshot.bookies,
        "read_only_bookies": snapshot.read_only_bookies,
        "lost_bookies": snapshot.lost_bookies,
        "topics": len(snapshot.topics),
        "partitions": len(snapshot.partitions),
        "pins": {
            snapshot.name_of(key): broker
            for key, broker in snapshot.pins.items()
            if key[0] in snapshot.topics
        },
        "moved_by_load": {
            snapshot.name_of(key): broker
            for key, broker in snapshot.moves.items()
            if key[0] in snapshot.topics
        },
    }


def _fail_if_unwell(
    snapshot: ClusterSnapshot,
    unserved: list[str],
    lacking: Sequence[UnderReplicated],
    unwritable: list[str],
) -> None:
    """Raises CommandFailed."""
    wrong = []
    if unserved:
        shown = ", ".join(unserved[:10]) + (" ..." if len(unserved) > 10 else "")
        wrong.append(f"{len(unserved)} partitions are not served by any broker: {shown}")
    if lacking:
        copies = sum(one.copies_missing for one in lacking)
        wrong.append(f"{len(lacking)} partitions are under-replicated: {copies} copies are missing")
    wrong += unwritable
    if snapshot.problems:
        wrong.append(f"{len(snapshot.problems)} problems are reported: {snapshot.problems[0]}")
    if _lost(snapshot):
        wrong.append("metadata is missing, and the partitions that it describes are not served")
    if wrong:
        raise CommandFailed("; ".join(wrong), exit_code=FAILED)


@click.command()
@click.argument("broker_id", type=click.IntRange(0))
@click.option("--undo", is_flag=True, help="Allow it to own partitions again.")
@WAIT
@where
def drain(settings: ClusterSettings, broker_id: int, undo: bool, wait_s: float) -> None:
    """Move all partitions away from a broker before a long stop."""

    if undo:
        refuse_inert("with --undo", "wait_s")

    async def question(admin: ClusterAdmin) -> None:
        snapshot = await admin.snapshot()
        if undo and broker_id not in snapshot.draining:
            raise CommandFailed(f"broker {broker_id} is not draining; nothing to undo")
        if not undo and broker_id not in snapshot.brokers:
            raise _no_broker(snapshot, broker_id)
        others = set(snapshot.brokers) - snapshot.draining - {broker_id}
        if not undo and not others:
            raise CommandFailed(f"no other broker can serve the partitions of broker {broker_id}")
        await admin.set_draining(broker_id, is_draining=not undo)
        if undo or wait_s == 0:
            return
        await _until(
            admin,
            wait_s,
            lambda seen: sum(seen.server_of(key) == broker_id for key in seen.partitions),
            f"draining broker {broker_id}",
        )

    ask(settings, question)
    say(f"broker {broker_id} {'may own partitions again' if undo else 'is draining'}")


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@click.argument("partition", type=click.IntRange(0))
@click.option("--to", "broker_id", type=click.IntRange(0), default=None, help="The broker's id.")
@click.option("--unpin", is_flag=True, help="Return it to automatic placement.")
@WAIT
@where
def move(
    settings: ClusterSettings,
    topic: str,
    partition: int,
    broker_id: int | None,
    unpin: bool,
    wait_s: float,
) -> None:
    """Pin a partition to a broker, which then serves it whenever it is running."""
    if (broker_id is None) != unpin:
        raise CommandFailed("specify either --to BROKER_ID or --unpin")
    if unpin:
        refuse_inert("with --unpin", "wait_s")

    async def question(admin: ClusterAdmin) -> None:
        snapshot = await admin.snapshot()
        counts = {one.name: one.partition_count for one in snapshot.topics.values()}
        if topic not in counts:
            raise CommandFailed(
                f"topic {topic!r} does not exist; nothing was moved",
                "List topics with `headrace topic list`",
            )
        if partition >= counts[topic]:
            raise CommandFailed(
                f"topic {topic!r} has partitions 0 to {counts[topic] - 1} but not {partition};"
                " nothing was moved"
            )
        if broker_id is not None and broker_id not in snapshot.brokers:
            raise _no_broker(snapshot, broker_id)
        key = await admin.set_pin(topic, partition, broker_id)
        if broker_id is not None and wait_s:
            await _until(
                admin,
                wait_s,
                lambda seen: int(seen.server_of(key) != broker_id),
                f"moving {topic}-{partition} to broker {broker_id}",
            )

    ask(settings, question)
    say(
        f"{topic}-{partition} "
        + ("is placed automatically again" if unpin else f"is on broker {broker_id}")
    )


def _no_broker(snapshot: ClusterSnapshot, broker_id: int) -> CommandFailed:
    living = ", ".join(map(str, sorted(snapshot.brokers))) or "none"
    return CommandFailed(
        f"no broker with id {broker_id} is running; nothing was changed (running brokers: {living})"
    )


async def _until(
    admin: ClusterAdmin, wait_s: float, left: Callable[[ClusterSnapshot], int], what: str
) -> None:
    """Wait until no partitions are left. Raises CommandFailed."""
    deadline = time.monotonic() + wait_s
    count = left(await admin.snapshot())
    with counting(what, count) as advance:
        while count:
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"{what}: {count} partitions remain after {wait_s:g} s; the operation"
                    " continues",
                    "See `headrace cluster status` and the brokers' logs",
                )
            await asyncio.sleep(POLL_S)
            before, count = count, left(await admin.snapshot())
            advance(max(before - count, 0))


@click.command()
@AS_JSON
@where
def verify(settings: ClusterSettings, as_json: bool) -> None:
    """Check that owners, chains and ledgers are consistent. Reads no records, changes nothing."""
    found = ask(settings, lambda admin: admin.verify())
    if as_json:
        print_json(
            {
                "partitions": found.partitions,
                "ledgers": found.ledgers,
                "sealed_records": found.records,
                "sealed_bytes": found.size_bytes,
                "orphans": [orphan._asdict() for orphan in found.orphans],
                "stale": found.stale,
                "lost_bookies": found.lost_bookies,
                "under_replicated": [one._asdict() for one in found.under_replicated],
                "copies_missing": sum(one.copies_missing for one in found.under_replicated),
                "problems": found.problems,
            },
            has_contents=False,
        )
    else:
        say(
            f"{found.partitions} partitions, {found.ledgers} ledgers; in sealed ones"
            f" {found.records:,} records, {size_text(found.size_bytes)};"
            f" {len(found.orphans)} ledgers and {len(found.stale)} deleted partitions await"
            " deletion"
        )
        for ledger, partition, epoch, created_ms in found.orphans[:SHOWN_MAX]:
            maker = f"{one_line(partition)}, epoch {one_line(epoch)}" if partition else "unknown"
            say(f"  ledger {ledger}: of {maker}, created {iso_time(created_ms)}")
        for problem in found.problems:
            tell(problem)
    if found.problems:
        raise CommandFailed(f"{len(found.problems)} problems found", exit_code=FAILED)
    if not as_json:
        say("no problems found")
