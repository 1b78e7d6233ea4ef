"""`headrace consume`: reads records of a topic and writes them to stdout.

Invariants: without --group, leaves no state on the broker. With --group, commits only the offsets
of records that were written to stdout (at least once).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.completion import complete_groups, complete_topics
from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.positions import (
    Bounds,
    Partition,
    PositionSpec,
    PositionType,
    log_bounds,
    resolve,
)
from headrace.cli.progress import Meter
from headrace.cli.reader import ReadState, Span, read_group, read_spans
from headrace.cli.records_out import Writer, as_json, as_raw, template_writer, text_writer

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

EARLIEST = PositionSpec("earliest")
LATEST = PositionSpec("latest")
DELIMITER = r"\n"


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--from",
    "start",
    type=PositionType(),
    metavar="POSITION",
    help="Where to start. Default: earliest; with --follow, latest.",
)
@click.option(
    "--to",
    "stop",
    type=PositionType(),
    metavar="POSITION",
    help="Where to stop (exclusive). Default: the current end.",
)
@click.option("--follow", "-F", is_flag=True, help="Wait for new records; Ctrl-C stops.")
@click.option("--count", "-n", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option(
    "--group",
    "-g",
    shell_complete=complete_groups,
    help="Join this consumer group, continue from its offsets, and commit.",
)
@click.option(
    "--format",
    "-f",
    "form",
    type=click.Choice(["text", "json", "raw", "template"]),
    default="text",
    show_default=True,
)
@click.option("--json", "form", flag_value="json", help="Same as --format json.")
@click.option("--template", "-T", help=r"e.g. '{partition}:{offset} {key} {value}\n'.")
@click.option(
    "--keys", "-k", is_flag=True, help="Text format: print the key and a tab before the value."
)
@click.option("--headers", "-H", is_flag=True, help="Text format: print headers.")
@click.option("--offsets", "-o", is_flag=True, help="Text format: print partition:offset.")
@click.option("--times", "-t", is_flag=True, help="Text format: print timestamps.")
@click.option(
    "--delimiter",
    default=DELIMITER,
    show_default=True,
    help="Text format: separator after each record.",
)
@click.option(
    "--uncommitted", is_flag=True, help="Include records of open and aborted transactions."
)
@click.option("--summary", is_flag=True, help="Print totals and rate to stderr at the end.")
@click.option("--quiet", "-q", is_flag=True, help="Do not show progress.")
@click.pass_obj
def consume(session: CliSession, /, topic: str, **options: Any) -> None:
    """Read the records of TOPIC; with --follow, wait for new ones.

    A POSITION is earliest, latest, an offset, -N (the last N of each partition), a time
    (2013-01-31T12:00, local unless it has a zone; or @MILLISECONDS), or an age (15m, 1h30m).

    \b
    Examples:
      headrace consume orders --count 5
      headrace consume orders --from -10 --follow
      headrace consume orders --from 2013-01-31T12:00 --to 2013-01-31T13:00 --json
      headrace consume orders -p 2 --from 100 --to 200 --keys --headers
      headrace consume orders --group billing --follow
      headrace consume orders -T '{time} {key}: {value} {header[trace]}\\n'
      headrace consume images -p 0 --from 3 --count 1 --format raw > image.png
    """
    writer = _writer(options)
    found = session.partitions_of(topic)
    chosen = _chosen(topic, found, options["partitions"])
    meter = _meter(topic, options)
    reader = ReadState(
        session=session,
        write=writer,
        meter=meter,
        count_max=options["count"],
        read_uncommitted=options["uncommitted"],
        flush_each=options["follow"] or sys.stdout.isatty(),
    )
    interrupted = False
    try:
        if options["group"]:
            _consume_group(reader, topic, options)
        else:
            spans = _spans(session, chosen, options)
            meter.set_total(_total(spans, options))
            read_spans(reader, spans)
    except KeyboardInterrupt:
        interrupted = True
    if options["summary"]:
        meter.summary("consumed", f" from {topic}")
    meter.stop()
    sys.stdout.flush()
    if interrupted and not options["follow"]:
        raise KeyboardInterrupt


def _writer(options: dict[str, Any]) -> Writer:
    terminal = sys.stdout.isatty()
    form = "template" if options["template"] is not None else options["form"]
    if options["template"] is not None and options["form"] in ("json", "raw"):
        raise click.UsageError(f"--template cannot be combined with --format {options['form']}.")
    unused = [name for name in ("keys", "headers", "offsets", "times") if options[name]]
    unused += ["delimiter"] * (options["delimiter"] != DELIMITER)
    if unused and form != "text":
        raise click.UsageError(f"--{unused[0]} has no effect with --format {form}: omit it.")
    if options["template"] is not None:
        return template_writer(options["template"], terminal)
    match options["form"]:
        case "template":
            raise click.UsageError("--format template needs --template TEXT.")
        case "json":
            return as_json
        case "raw":
            return as_raw
        case _:
            return text_writer(
                keys=options["keys"],
                headers=options["headers"],
                positions=options["offsets"],
                times=options["times"],
                delimiter=options["delimiter"],
                terminal=terminal,
            )


def _chosen(topic: str, found: list[int], wanted: tuple[int, ...]) -> list[Partition]:
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise CommandFailed(
            f"topic {topic!r} has no partition {missing[0]}, only 0 to {max(found)}",
            f"See: headrace topic describe {topic}",
            NOT_FOUND,
        )
    return [Partition(topic, number) for number in (sorted(set(wanted)) or found)]


def _meter(topic: str, options: dict[str, Any]) -> Meter:
    # Records on a terminal show the progress; a bar between them would only disturb.
    show = not options["quiet"] and not sys.stdout.isatty()
    return Meter(f"consume {topic}", None, show)


def _spans(
    session: CliSession, partitions: list[Partition], options: dict[str, Any]
) -> dict[Partition, Span]:
    bounds = log_bounds(session, partitions)
    start = options["start"]
    if start is None:
        start = LATEST if options["follow"] and options["stop"] is None else EARLIEST
    begin = resolve(session, start, bounds)
    if options["stop"] is not None:
        end: dict[Partition, int | None] = dict(
            _stop_offsets(session, options["stop"], bounds, options["follow"])
        )
    elif options["follow"]:
        end = dict.fromkeys(partitions)
    else:
        end = {p: b.latest for p, b in bounds.items()}
    return {p: Span(begin[p], end[p]) for p in partitions}


def _stop_offsets(
    session: CliSession, stop: PositionSpec, bounds: dict[Partition, Bounds], follow: bool
) -> dict[Partition, int]:
    if follow and stop.kind == "offset":
        return dict.fromkeys(bounds, stop.number)  # it may still be produced
    return resolve(session, stop, bounds)


def _total(spans: dict[Partition, Span], options: dict[str, Any]) -> int | None:
    if options["count"]:
        return int(options["count"])
    if any(span.end is None for span in spans.values()):
        return None
    return sum(max(0, (span.end or 0) - span.begin) for span in spans.values())


def _consume_group(reader: ReadState, topic: str, options: dict[str, Any]) -> None:
    if options["partitions"] or options["stop"] is not None:
        raise click.UsageError(
            "--group cannot be combined with -p or --to: partitions are assigned."
        )
    start = options["start"] or EARLIEST
    if start.kind not in ("earliest", "latest"):
        raise click.UsageError(
            "With --group, --from must be earliest or latest and applies to groups"
            " without offsets. To move a group: headrace group reset."
        )
    read_group(reader, topic, options["group"], start.kind, follow=options["follow"])
