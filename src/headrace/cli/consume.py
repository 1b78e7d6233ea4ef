"""`headrace consume`: reads records of topics and writes them to stdout.

Invariants: without --group, leaves no state on the broker. With --group, commits only the offsets
of records that were written to stdout (at least once).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.last_records import begins_of_last
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import say
from headrace.cli.parameters import TOPIC_NAME
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
from headrace.cli.records_out import (
    PERCENT_FIELDS,
    Writer,
    as_json,
    as_raw,
    percent_writer,
    template_writer,
    text_writer,
)
from headrace.cli.topic_names import subscription, topics_named

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

EARLIEST = PositionSpec("earliest")
LATEST = PositionSpec("latest")
DELIMITER = r"\n"
FORMATS = ("text", "json", "raw", "template")


class FormatType(click.ParamType[str]):
    """A click type: one of FORMATS, or a text with fields such as %s."""

    name = "format"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """See click.ParamType."""
        text = str(value)
        if text not in FORMATS and "%" not in text:
            self.fail(
                f"{text!r} is none of {', '.join(FORMATS)}, and contains no field such as %s",
                param,
                ctx,
            )
        return text


def _complete_format(_ctx: object, _param: object, incomplete: str) -> list[str]:
    return [name for name in FORMATS if name.startswith(incomplete)]


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", type=TOPIC_NAME)
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
    type=GROUP_NAME,
    help="Join this consumer group, continue from its offsets, and commit.",
)
@click.option(
    "--format",
    "-f",
    "form",
    metavar="FORMAT",
    type=FormatType(),
    shell_complete=_complete_format,
    default="text",
    show_default=True,
    help=f"text, json, raw, template; or text with the fields {', '.join(PERCENT_FIELDS)}, as"
    " in kcat.",
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
def consume(session: CliSession, /, topics: tuple[str, ...], **options: Any) -> None:
    """Read the records of topics; with --follow, wait for new ones.

    A TOPIC may be a pattern such as 'orders-*'. With --group, topics that are created later and
    match it are read, too. The order of records is kept within a partition only.

    A POSITION is earliest, latest, an offset, -N (the last N of each partition), a time
    (2013-01-31T12:00, local unless it has a zone; or @MILLISECONDS), or an age (15m, 1h30m).

    \b
    Examples:
      headrace consume orders --count 5
      headrace consume orders --from -10 --follow
      headrace consume orders --from 2013-01-31T12:00 --to 2013-01-31T13:00 --json
      headrace consume orders -p 2 --from 100 --to 200 --keys --headers
      headrace consume orders --group billing --follow
      headrace consume 'orders-*' -f '%t %p %o %k %s\\n'
      headrace consume orders -T '{time} {key}: {value} {header[trace]}\\n'
      headrace consume images -p 0 --from 3 --count 1 --format raw > image.png
    """
    writer = _writer(options)
    names = topics_named(session, topics)
    chosen = _chosen(session, names, options["partitions"])
    label = names[0] if len(names) == 1 else f"{len(names)} topics"
    meter = _meter(label, options)
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
            _consume_group(reader, [subscription(one) for one in topics], options)
        else:
            spans = _spans(reader, chosen, options)
            meter.set_total(_total(spans, options))
            read_spans(reader, spans)
    except KeyboardInterrupt:
        interrupted = True
    if options["summary"]:
        meter.summary("consumed", f" from {label}")
    meter.stop()
    if not (meter.records or options["summary"] or options["quiet"]):
        say(f"no records from {label}")
    sys.stdout.flush()
    if interrupted and not options["follow"]:
        raise KeyboardInterrupt


def _writer(options: dict[str, Any]) -> Writer:
    terminal = sys.stdout.isatty()
    form = "template" if options["template"] is not None else options["form"]
    if options["template"] is not None and options["form"] not in ("text", "template"):
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
        case fields if "%" in fields:
            return percent_writer(fields, terminal)
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


def _chosen(session: CliSession, topics: list[str], wanted: tuple[int, ...]) -> list[Partition]:
    """Raises CommandFailed."""
    chosen = session.chosen_partitions(topics, wanted)
    return [Partition(name, number) for name, numbers in chosen.items() for number in numbers]


def _meter(label: str, options: dict[str, Any]) -> Meter:
    # Records on a terminal show the progress; a bar between them would only disturb.
    show = not options["quiet"] and not sys.stdout.isatty()
    return Meter(f"consume {label}", None, show)


def _spans(
    reader: ReadState, partitions: list[Partition], options: dict[str, Any]
) -> dict[Partition, Span]:
    session = reader.session
    bounds = log_bounds(session, partitions)
    start = options["start"]
    if start is None:
        start = LATEST if options["follow"] and options["stop"] is None else EARLIEST
    if start.kind == "last":
        begin = begins_of_last(reader, start.number, bounds)
    else:
        begin = resolve(session, start, bounds)
    if start.kind == "offset":
        _tell_of_ends(start.number, bounds)
    if options["stop"] is not None:
        end: dict[Partition, int | None] = dict(
            _stop_offsets(session, options["stop"], bounds, options["follow"])
        )
    elif options["follow"]:
        end = dict.fromkeys(partitions)
    else:
        end = {p: b.latest for p, b in bounds.items()}
    return {p: Span(begin[p], end[p]) for p in partitions}


def _tell_of_ends(offset: int, bounds: dict[Partition, Bounds]) -> None:
    """Say why nothing is read from partitions that end before the offset to start from."""
    short = [(p, b.latest) for p, b in bounds.items() if offset > b.latest]
    if short:
        shown = ", ".join(f"{p.topic}-{p.number} at {latest}" for p, latest in short[:3])
        more = f" and {len(short) - 3} more" if len(short) > 3 else ""
        say(f"headrace: --from {offset} is beyond the end of {shown}{more}: read from there.")


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


def _consume_group(reader: ReadState, topics: list[str], options: dict[str, Any]) -> None:
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
    read_group(reader, topics, options["group"], start.kind, follow=options["follow"])
