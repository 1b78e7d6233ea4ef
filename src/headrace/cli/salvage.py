"""`headrace salvage`: the readable records of a damaged partition, into another topic.

Invariants: `headrace.inspection.salvage` reads the files and changes none; this module produces
what it returns, in order, into an empty partition.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.client import kafka
from headrace.cli.failures import FAILED, NOT_FOUND, CommandFailed
from headrace.cli.output import AS_JSON, counted, print_json, print_table, tell
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.positions import Partition, log_bounds
from headrace.cli.salvage_fit import misfits
from headrace.cli.topic_settings import topic_settings
from headrace.cli.transfer import POLL_S
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.client import Client, Message
    from headrace.cli.session import CliSession
    from headrace.inspection.salvage import DamagedLog, Lost
    from headrace.records.codec import Record

GAPS_SHOWN_MAX = 1_000
MESSAGE_BYTES_MAX = 100_000_000


class _Target:
    """The partition that records are sent to; None for a dry run."""

    def __init__(
        self, session: CliSession, topic: str, partition: int, source: Mapping[str, str]
    ) -> None:
        """`source`: the settings of the damaged partition's topic. Raises CommandFailed if the
        target would refuse, change or delete its records."""
        self._session, self._topic, self._partition = session, topic, partition
        if partition not in session.partitions_of(topic):
            raise CommandFailed(
                f"{topic} has no partition {partition}; nothing was salvaged",
                f"Add partitions: headrace topic alter {topic} --partitions {partition + 1}; or"
                " name one with --partition",
                NOT_FOUND,
            )
        own = Partition(topic, partition)
        if log_bounds(session, [own])[own].latest:
            raise CommandFailed(
                f"partition {partition} of {topic} is not empty; nothing was salvaged",
                "Create a topic for the salvaged records: headrace topic create",
            )
        wrong = misfits(source, topic_settings(session, topic))
        if wrong:
            shown = ", ".join(wrong)
            changes = " ".join(f"--set {name}={value}" for name, value in wrong.items())
            raise CommandFailed(
                f"with its settings ({shown}), {topic} would refuse, change or delete salvaged"
                " records; nothing was salvaged",
                f"Create a topic with, or change: headrace topic alter {topic} {changes}",
            )
        config = {
            "enable.idempotence": True,
            "linger.ms": 5,
            # The broker's max.message.bytes decides, not the client's own limit.
            "message.max.bytes": MESSAGE_BYTES_MAX,
        }
        self._producer: Client = session.producer(config)
        self._error: str = ""

    def send(self, record: Record) -> None:
        """Send one record. Raises CommandFailed if one could not be stored."""
        while not self._error:
            try:
                self._producer.produce(
                    self._topic,
                    value=record.value,
                    key=record.key,
                    headers=record.headers,
                    # The client library takes 0 and less as now.
                    timestamp=max(record.timestamp_ms, 1),
                    partition=self._partition,
                    on_delivery=self._note,
                )
            except BufferError:  # its queue is full
                self._producer.poll(POLL_S)
                continue
            except kafka().KafkaException as error:
                self._error = str(error.args[0].str())
                break
            self._producer.poll(0)
            return
        self._fail()

    def finish(self) -> None:
        """Wait until all records are stored. Raises CommandFailed."""
        left = len(self._producer)
        while left and not self._error:
            before, left = left, self._producer.flush(self._session.timeout_s)
            if left >= before:
                self._error = f"{left} records were not acknowledged in time"
        if self._error:
            self._fail()

    def _note(self, error: Any, _message: Message) -> None:
        if error is not None:
            self._error = self._error or str(error.str())

    def _fail(self) -> None:
        raise CommandFailed(
            f"not all records could be stored in {self._topic}: {self._error}",
            "Delete and create that topic before you try again; if a record is too large, with a"
            " larger max.message.bytes: one that was compressed is sent uncompressed",
            FAILED,
        )


@click.command(
    epilog="Examples:\n\n  headrace salvage ./headrace-data orders-0 --dry-run"
    "\n\n  headrace topic create orders-salvaged --set retention.ms=-1"
    "\n\n  headrace salvage ./headrace-data orders-0 --to orders-salvaged"
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("name", metavar="TOPIC-PARTITION")
@click.option("--to", "topic", metavar="TOPIC", type=TOPIC_NAME,
              help="The topic for the records; it must exist.")  # fmt: skip
@click.option("--partition", type=click.IntRange(0),
              help="Its partition, which must be empty. Default: of the same number.")  # fmt: skip
@click.option("--with-undecided", is_flag=True,
              help="Also records of transactions whose outcome is not known.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Count records and list gaps; send nothing.")
@AS_JSON
@click.pass_obj
def salvage(session: CliSession, /, folder: Path, name: str, **options: Any) -> None:
    """Copy all readable records of a damaged partition to another topic, and list the gaps.

    DIR is the data directory of the broker, which may run, be stopped, or be unable to start. Its
    files are only read. Keys, values, headers, timestamps (at least 1) and order stay as they are;
    offsets are new. Records of aborted transactions are left out.

    TOPIC must keep the records: a topic whose settings would refuse, change or delete them is
    refused, and the command that changes it shown.

    A batch of records is lost as a whole if a byte of it was changed. For a cluster, see
    `headrace cluster repair`.
    """
    from headrace.inspection.salvage import DamagedLog

    topic, is_dry = options["topic"], options["dry_run"]
    if (topic is None) != is_dry:
        raise click.UsageError("Give either --to TOPIC or --dry-run.")
    try:
        log = DamagedLog(folder, name)
        if is_dry:
            target = None
        else:
            number = options["partition"]
            number = log.partition if number is None else number
            target = _Target(session, topic, number, log.configs)
        count, gaps = _run(log, target, with_undecided=options["with_undecided"])
    except (HeadraceError, OSError) as error:
        raise CommandFailed(str(error)) from error
    if options["as_json"]:
        print_json(
            {
                "source": name,
                "target": topic,
                "dry_run": is_dry,
                "records": count,
                "gaps": [gap._asdict() for gap in gaps],
                "warnings": log.warnings,
            }
        )
        return
    for warning in log.warnings:
        tell(f"warning: {warning}: later records may be missing", err=True)
    if gaps:
        rows = [[str(gap.first), _last(gap), gap.cause] for gap in gaps[:GAPS_SHOWN_MAX]]
        print_table(["first", "last", "cause"], rows)
    done = "can be salvaged (dry run: nothing was sent)" if is_dry else f"salvaged to {topic}"
    tell(f"{counted(count, 'record')} of {name} {done}; {counted(len(gaps), 'gap')}")


def _last(gap: Lost) -> str:
    return "end" if gap.last is None else str(gap.last)


def _run(
    log: DamagedLog, target: _Target | None, *, with_undecided: bool
) -> tuple[int, list[Lost]]:
    """The number of records, and the gaps. Raises CommandFailed, OSError."""
    from headrace.inspection.salvage import Lost

    count, gaps = 0, list[Lost]()
    for one in log.records(with_undecided=with_undecided):
        if isinstance(one, Lost):
            gaps.append(one)
            continue
        count += 1
        if target is not None:
            target.send(one)
    if target is not None:
        target.finish()
    return count, gaps
