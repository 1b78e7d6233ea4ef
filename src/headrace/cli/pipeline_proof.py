"""`headrace pipeline proof, verify, quality, resend`: what is there, what is missing, and again.

Invariants: `proof`, `verify` and `quality` change no topic. Exit codes are those of `headrace
--help`: 0 proven, 1 something is missing or wrong, 6 not proven.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.config_requests import GROUP, Resource
from headrace.cli.config_requests import describe as describe_settings
from headrace.cli.duration import Duration
from headrace.cli.failures import UNKNOWN, USAGE, CommandFailed
from headrace.cli.group_listing import SHARE, list_groups
from headrace.cli.group_settings import DEAD_LETTER_TOPIC
from headrace.cli.inert import refuse_inert
from headrace.cli.lag import progress
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import Cell, counted, print_json, print_table, say, tell
from headrace.cli.parameters import TOPIC_NAME, Command
from headrace.cli.pipeline_copies import copies_of, copy_options
from headrace.cli.pipeline_session import (
    DRY_RUN,
    RESULT_AS_JSON,
    RESULTS,
    WAREHOUSE_OR_NONE,
    bounds_of,
    check_replaceable,
    connection_of,
    describe_topics,
    history_of,
    history_options,
    in_kafka,
    job_module,
    keep_result,
    one_table,
    reading_job,
    restarted,
    spark_for,
    window_options,
)
from headrace.cli.web import http_address
from headrace.records.tenant_names import key_of, written_topic

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

TABLE_OR_NONE = click.option("--table", help="The topic's archive: NAMESPACE.NAME.")
KEY_FILE = click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Key of an HMAC-SHA-256 signature.",
)
TOPIC = click.argument("topic", type=TOPIC_NAME, callback=in_kafka)
SHOWN_MAX = 20
OFFSET_RESET = "share.auto.offset.reset"


_SENT = re.compile(r"(?P<name>.+)=(?P<first>-?\d+):(?P<last>-?\d+)", re.ASCII)


def _sent(_context: object, _parameter: object, given: tuple[str, ...]) -> dict[str, Any]:
    """What each producer says it sent. Raises CommandFailed (usage)."""
    found: dict[str, Any] = {}
    for one in given:
        try:
            if one.startswith("@"):
                document = json.loads(Path(one[1:]).read_text())
                ranges = [(name, int(a), int(b)) for name, (a, b) in document.items()]
            elif (match := _SENT.fullmatch(one)) is not None:
                ranges = [(match["name"], int(match["first"]), int(match["last"]))]
            else:
                raise ValueError("not NAME=FIRST:LAST")
            for name, low, high in ranges:
                if name in found:
                    raise ValueError(f"{name!r} is given twice")
                if high < low - 1:
                    raise ValueError(f"{name!r} ends before it begins")
                found[name] = job_module("jobs.delivery_proof").Sent(low, high)
        except FileNotFoundError:
            raise click.BadParameter(f"File {one[1:]!r} does not exist.") from None
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise CommandFailed(
                f"--sent {one}: {error}; nothing was read",
                'For example --sent shop=0:99999, or @FILE with {"shop": [0, 99999]}',
                USAGE,
            ) from None
    return found


def proof_options(command: Command) -> Command:
    """Add the options that say what a proof compares."""
    for option in (
        click.option(
            "--dead-letters",
            type=TOPIC_NAME,
            metavar="TOPIC",
            multiple=True,
            help="Where the groups' dead letters are; a share group's own is known.",
        ),
        click.option("--sequence", metavar="SQL", help="Default: the header headrace-sequence."),
        click.option("--producer", metavar="SQL", help="Default: the header headrace-producer."),
        click.option(
            "--idempotent",
            is_flag=True,
            help="Prove by the sequences of idempotent producers, which need no headers.",
        ),
        click.option(
            "--sent",
            metavar="NAME=FIRST:LAST",
            multiple=True,
            callback=_sent,
            help="What a producer says it sent, or @FILE: JSON {NAME: [FIRST, LAST]}.",
        ),
        click.option(
            "--group",
            "groups",
            multiple=True,
            type=GROUP_NAME,
            help="A group that should have acknowledged everything.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@TOPIC
@proof_options
@TABLE_OR_NONE
@WAREHOUSE_OR_NONE
@copy_options
@click.option("--every", type=Duration(), metavar="TIME", help="Also count by time: 1h, 15m.")
@click.option("--certificate", type=click.Path(path_type=Path, dir_okay=False),
              help="Write the certificate to this file.")  # fmt: skip
@KEY_FILE
@window_options
@reading_job
@RESULTS
@RESULT_AS_JSON
@click.pass_obj
def proof(session: CliSession, /, topic: str, as_json: bool, **options: Any) -> None:
    """Prove that what was sent is stored, archived and acknowledged, once.

    Each producer numbers its records (headrace-producer and headrace-sequence, or any SQL over the
    record), and says what it sent (--sent); without, the rest is "not proven". --idempotent takes
    the sequences that idempotent producers give to their batches. With --copy or --database alone,
    only the copy is compared. Changes nothing.

    \b
    Examples:
      headrace pipeline proof orders --sent shop=0:99999 --group billing
      headrace pipeline proof orders --since 2013-01-31 --until 2013-02-01 --sent @sent.json \\
          --table headrace.orders --warehouse ./warehouse --certificate 2013-01-31.json
      headrace pipeline proof orders --copy mirror.example.com:9092 --certificate mirror.json
      headrace pipeline proof orders --database jdbc:sqlite:shop.db --database-table orders \\
          --record-id "cast(key AS string)" --row-id id
    """
    describe_topics(session, options, [topic])
    bounds = bounds_of(options)
    check_options(session, topic, options)
    copies = copies_of(session, topic, options)

    def run() -> Any:
        with spark_for(
            options["master"], options["warehouse"], options["table"], options["drivers"]
        ) as spark:
            return make_proof(session, spark, topic, bounds, options, copies)

    found = restarted(run, f"The proof of {topic}")
    if options["certificate"] is not None:
        options["certificate"].write_text(json.dumps(found, indent=1) + "\n")
    if as_json:
        print_json(found)
    else:
        _show(found)
    summary = f"{found['verdict']}: {equation(found)}"
    keep_result(session, options["results"], "proof", topic, summary, found)
    conclude(found)


def check_options(session: CliSession, topic: str, options: dict[str, Any]) -> None:
    """Raise CommandFailed, before Spark starts, for what a proof could not be made with."""
    if (options["table"] is None) != (options["warehouse"] is None):
        raise CommandFailed(
            "a table is found by --table and --warehouse together; nothing was read",
            "Give both, or none",
            USAGE,
        )
    for name in options["groups"]:
        _position(session, topic, name, options)


def make_proof(
    session: CliSession,
    spark: Any,
    topic: str,
    bounds: Any,
    options: dict[str, Any],
    copies: tuple[Any, ...] = (),
) -> dict[str, Any]:
    """Read the groups' progress, then compare. Raises CommandFailed."""
    job = job_module("jobs.delivery_proof")
    groups = tuple(_position(session, topic, name, options) for name in options["groups"])
    has_shares = any(one.type == SHARE for one in groups)
    every = options.get("every")
    config = job.DeliveryConfig(
        connection_of(session),
        topic,
        bounds=bounds,
        table=options["table"],
        groups=groups,
        http=_http_or_none(session) if has_shares else None,
        sent=options["sent"] or None,
        bucket_ms=None if every is None else int(every * 1000),
        cluster_id=session.identify(),
        key=_key(options["key_file"]),
        copies=copies,
        is_numbered=not (copies or options["idempotent"])
        or any(options[name] for name in ("sent", "producer", "sequence")),
        is_idempotent=options["idempotent"],
        **{name: options[name] for name in ("producer", "sequence") if options[name]},
    )
    found: dict[str, Any] = job.prove_delivery(config, spark=spark)
    return found


def _http_or_none(session: CliSession) -> str | None:
    """Where journals of share groups are read; brokers without HTTP leave more unproven."""
    try:
        return http_address(session)
    except CommandFailed as failure:
        say(f"share groups' journals are not read: {failure}")
        return None


def _position(session: CliSession, topic: str, name: str, options: dict[str, Any]) -> Any:
    """A group's progress, and where its dead letters go."""
    kinds = {one.group: one.type for one in list_groups(session)}
    if name not in kinds:
        raise session.no_group(name)
    offsets: dict[str, dict[str, int]] = {topic: {}}
    for partition, at in progress(session, name, kinds[name]).items():
        offsets.setdefault(partition.topic, {})[str(partition.number)] = at
    letters, from_start = list(options["dead_letters"]), False
    if kinds[name] == SHARE:
        values = {s.name: s.value for s in describe_settings(session, Resource(GROUP, name))}
        letters += [topic for topic in (values.get(DEAD_LETTER_TOPIC),) if topic]
        from_start = values.get(OFFSET_RESET) == "earliest"
    known = [one for one in dict.fromkeys(letters) if session.describe_topics([one])]
    kind = SHARE if kinds[name] == SHARE else "consumer"
    position = job_module("jobs.delivery_proof").GroupPosition
    return position(name, offsets, kind, tuple(known), from_start)


def _key(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes().strip()


_RUN_COLUMNS = (
    "partition", "producer_id", "producer_epoch", "sent", "stored", "removed", "never_stored",
    "absent", "earlier", "repeated",
)  # fmt: skip
"""Of an idempotent producer's epoch in a partition."""


def _show(found: dict[str, Any]) -> None:
    rows: list[list[Cell]] = [
        [
            one["producer"],
            one["sent"],
            one["distinct"],
            one["missing"],
            one["duplicates"],
            *(one["acknowledged"][group["group"]] for group in found["groups"]),
        ]
        for one in found["producers"]
    ]
    groups = [f"acknowledged: {group['group']}" for group in found["groups"]]
    if found["numbered_by"] is not None:
        print_table(["producer", "sent", "stored", "missing", "duplicates", *groups], rows)
    if (by_id := found.get("idempotent")) is not None:
        runs = [
            [str(run[name]) if name == "producer_id" else run[name] for name in _RUN_COLUMNS]
            for run in by_id["runs"][:SHOWN_MAX]
        ]
        print_table([name.replace("_", " ") for name in _RUN_COLUMNS], runs)
    tell(f"{found['verdict']}: {equation(found)}")


def equation(found: dict[str, Any]) -> str:
    """The result in one line."""
    sent = [one["sent"] for one in found["producers"]]
    numbered = sum(one["distinct"] for one in found["producers"])
    if found["numbered_by"] is None:
        numbered = sum(side["distinct"] for side in found["stored"].values())
    parts = [f"sent {'?' if None in sent or not sent else f'{sum(sent):,}'}"]
    parts.append(f"stored {numbered:,}")
    if (by_id := found.get("idempotent")) is not None:
        totals = by_id["totals"]
        lacking = f", of which batches lack {totals['removed']:,}" if totals["removed"] else ""
        parts.append(
            f"sent by idempotent producers {totals['sent']:,}, stored {totals['stored']:,}{lacking}"
        )
    for one in found.get("copies", ()):
        there = one["records"] - one["missing"] - one["differing"]
        parts.append(f"equal in {one['copy']} {there:,}")
    if found["archived"] is not None:
        archived = sum(side["distinct"] for side in found["archived"]["partitions"].values())
        parts.append(f"archived {archived:,}")
    for one in found["groups"]:
        if "journal" in one:
            parts.append(f"delivered to {one['group']} {one['journal']['delivered']:,}")
        parts.append(f"acknowledged by {one['group']} {one['acknowledged']:,}")
    twice = sum(one["duplicates"] for one in found["producers"])
    gaps = sum(len(one["missing_spans"]) for one in found["producers"])
    return f"{' | '.join(parts)}; {counted(twice, 'duplicate')}, {counted(gaps, 'gap')}"


def _next_step(found: dict[str, Any]) -> str:
    """What mends the cause of the other problems: a group cannot acknowledge what is not stored."""
    topic = found["topic"]
    groups = [one["group"] for one in found["groups"]]
    steps = {
        "copies": "Correct the copy where the lines above say so",
        "groups": f"See when the rest is done: headrace pipeline backlog {''.join(groups[:1])}"
        f" {topic}",
        "archived": f"Complete the table: headrace pipeline run archive --topic {topic}",
    }
    rest = dict(found)
    for part, step in steps.items():
        rest[part] = None if part == "archived" else []
        if not job_module("jobs.certificate").judge(rest)[0]:
            return f"{step}; then prove it again"
    return "Send what is missing again: headrace pipeline resend"


def conclude(found: dict[str, Any]) -> None:
    """Exit with the certificate's verdict."""
    for line in found["problems"][:SHOWN_MAX]:
        say(f"problem: {line}")
    for line in found["not_proven"][:SHOWN_MAX]:
        say(f"not proven: {line}")
    if found["problems"]:
        raise CommandFailed(
            f"{counted(len(found['problems']), 'problem')} of {found['topic']}", _next_step(found)
        )
    if found["not_proven"]:
        raise CommandFailed(
            f"{found['topic']} is not proven: {counted(len(found['not_proven']), 'open question')}",
            "Give what the lines above name, for example --sent",
            UNKNOWN,
        )


@click.command()
@click.argument("certificate", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@KEY_FILE
@RESULT_AS_JSON
def verify(certificate: Path, key_file: Path | None, *, as_json: bool) -> None:
    """Verify a certificate of delivery, without the cluster.

    Checks its hash, its signature (with --key-file), and that its verdict follows from its figures.
    The exit code is that of the verdict, or 1 if the certificate is not intact.

    \b
    Example:
      headrace pipeline verify 2013-01-31.json --key-file audit.key
    """
    certificates = job_module("jobs.certificate")
    document = certificates.load(certificate.read_text())
    wrong = certificates.verify(document, _key(key_file))
    if as_json:
        print_json({"intact": not wrong, "wrong": wrong, "verdict": document.get("verdict")})
    if wrong:
        raise CommandFailed(
            f"{certificate} is not intact: {'; '.join(wrong)}",
            "Do not rely on it; make it again: headrace pipeline proof",
        )
    if not as_json:
        tell(
            f"intact; {document['topic']} of cluster {document['cluster_id']} at"
            f" {document['made_at']}: {document['verdict']}: {equation(document)}"
        )
    conclude(document)


def _expectations(path: Path, topic: str) -> Any:
    """What the file expects of the topic. Raises CommandFailed (usage)."""
    name = written_topic(topic)
    table = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
    step = f'Expectations of {name} are in a table [{table}], for example required = ["key"]'
    try:
        parsed = job_module("jobs.quality").parse_expectations(path.read_text(), path.stem)
    except (job_module("errors").OptionInvalid, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path}: {str(error).rstrip('.')}", step, USAGE) from None
    expected = {key_of(one): expectations for one, expectations in parsed.items()}
    if topic not in expected:
        raise CommandFailed(f"{path} expects nothing of {name}", step, USAGE)
    return expected[topic]


@click.command()
@TOPIC
@click.option("--expect", required=True,
              type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="The expectations (TOML); see the documentation.")  # fmt: skip
@click.option("--violations", metavar="TABLE", help="Write the violations to this Iceberg table.")
@history_options
@window_options
@reading_job
@RESULT_AS_JSON
@click.pass_obj
def quality(session: CliSession, /, topic: str, as_json: bool, **options: Any) -> None:
    """Check the records of a topic against expectations.

    The exit code is 1 if a record violates one, 6 if there is no record. A repeated run replaces
    the violations of the same range and file in the table.

    \b
    Example:
      headrace pipeline quality orders --expect orders.toml --since 2013-01-31 --until 2013-02-01
    """
    describe_topics(session, options, [topic])
    job = job_module("jobs.quality")
    expected = _expectations(options["expect"], topic)
    table_of_catalog = one_table(options, "violations", "table")
    until = options["until"]
    now_ms = time.time_ns() // 1_000_000 if until is None else until
    bounds = bounds_of(options)

    def run() -> Any:
        check_replaceable(options["warehouse"], options["violations"])
        with spark_for(options["master"], options["warehouse"], table_of_catalog) as spark:
            history = history_of(session, spark, options)
            window = history.resolve((topic,), bounds)
            records = history.read(window)
            report = job.check_quality(records, topic, expected, window, now_ms)
            if options["violations"] is not None:
                table = job_module("catalog").TableName.parse(options["violations"]).in_spark
                job.store_violations(report, table, spark=spark)
            return report

    report = restarted(run, f"The check of {topic}")
    if as_json:
        print_json(report.document())
    else:
        print_table(["expectation", "violations"], sorted(report.counts.items()))
        tell(f"{report.checked:,} records checked")
    if not report.is_met:
        first = next(name for name, count in report.counts.items() if count)
        shown = report.samples[first][0]
        violated = counted(sum(1 for n in report.counts.values() if n), "expectation")
        place = "" if shown["offset"] is None else f"{shown['partition']}:{shown['offset']}, "
        raise CommandFailed(
            f"{topic} violates {violated}; the first of {first!r}: {place}{shown['detail']}",
            "See all with --json, or in a table with --violations",
        )
    if not report.checked:
        raise CommandFailed(
            f"{topic} has no records in this range: nothing was checked",
            "Check the range, and that the topic's producers run",
            UNKNOWN,
        )


@click.command()
@TOPIC
@click.option("--from-table", "table", help="Send from this archive (with --warehouse).")
@click.option("--from-topic", "source", type=TOPIC_NAME,
              help="Send from this topic.")  # fmt: skip
@click.option("--table-topic", metavar="NAME", help="The topic's name in the table, if another.")
@click.option("--certificate", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Send only the sequences that this certificate lists as missing.")  # fmt: skip
@click.option("--producer", metavar="SQL", help="Default: the header headrace-producer.")
@click.option("--sequence", metavar="SQL", help="Default: the header headrace-sequence.")
@click.option("--job", metavar="NAME", help="Name of the job; default: by its options.")
@DRY_RUN
@WAREHOUSE_OR_NONE
@window_options
@reading_job
@RESULT_AS_JSON
@click.pass_obj
def resend(session: CliSession, /, topic: str, as_json: bool, **options: Any) -> None:
    """Send again what TOPIC lacks, each record exactly once.

    Records are known by producer and sequence, else by their content. It can be stopped at any
    time; the same command completes it, and then sends nothing more.

    \b
    Examples:
      headrace pipeline resend orders --from-table headrace.orders --warehouse ./warehouse --dry-run
      headrace pipeline resend orders --from-topic orders.mirror --since 2h
    """
    if options["source"] is None:
        refuse_inert("without --from-topic", "since", "until", "from_offsets", "to_offsets")
    if (options["table"] is None) != (options["warehouse"] is None):
        raise CommandFailed("--from-table requires --warehouse", "Give both, or none", USAGE)
    job, certificates = job_module("jobs.resend"), job_module("jobs.certificate")
    document = None
    if options["certificate"] is not None:
        document = certificates.load(options["certificate"].read_text())
        if wrong := certificates.verify(document):
            raise CommandFailed(
                f"the certificate is not intact: {'; '.join(wrong)}; nothing was sent",
                "Make it again: headrace pipeline proof",
            )
    names = ("table", "source", "table_topic", "producer", "sequence", "job")
    config = job.ResendConfig(
        connection_of(session),
        topic,
        bounds=bounds_of(options),
        certificate=document,
        **{name: options[name] for name in names if options[name] is not None},
    )
    describe_topics(session, options, [options["source"] or topic], topic, config.group)

    def run() -> Any:
        with spark_for(options["master"], options["warehouse"], options["table"]) as spark:
            if options["dry_run"]:
                return job.plan_resend(config, spark=spark)
            return job.run_resend(config, spark=spark).document()

    result = restarted(run, f"The job {config.group}")
    if as_json:
        print_json(result)
    elif result.get("finished") or (result.get("resumed") and not result.get("chunks", 1)):
        tell(
            f"the job {result['job']} was finished earlier: nothing was compared or sent;"
            " --job NAME compares again"
        )
    elif options["dry_run"]:
        tell(f"{result['missing']:,} records would be sent to {topic} ({result['job']})")
    else:
        tell(
            f"{result['written']:,} records were sent to {topic} in {result['seconds']:.1f} s"
            f" ({result['job']})"
        )
