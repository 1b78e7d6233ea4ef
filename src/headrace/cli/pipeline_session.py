"""What the commands of Spark jobs share: options, a session, failures with a next step.

Invariants: Spark is imported only when a job runs, and only through `headrace.pipeline`.
"""

from __future__ import annotations

import importlib
import json
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.client import kafka
from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.output import say
from headrace.cli.parameters import TOPIC_NAME, Command, number_option
from headrace.cli.pipeline_interrupts import INTERRUPTION, REST
from headrace.cli.positions import TimeType
from headrace.cli.progress import watching
from headrace.cli.session import CliSession
from headrace.cli.web import HTTP, http_address
from headrace.java.jars import CACHE_VARIABLE, cache_folder
from headrace.records.tenant_names import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager


_KEPT_IN = "headrace.catalog"


def _keep(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    context.meta[_KEPT_IN] = value or ""


def _warehouse_of(context: click.Context, _parameter: click.Parameter, value: str | None) -> Any:
    """The place that --warehouse and --catalog name together."""
    kept_in = context.meta[_KEPT_IN]
    if value is None and kept_in:
        raise CommandFailed(
            "--catalog says where the catalog of a --warehouse is; nothing was read or written",
            "Give both",
            USAGE,
        )
    return None if value is None else job_module("warehouse").Warehouse.at(value, kept_in=kept_in)


def _warehouse_options(*, required: bool) -> Callable[[Command], Command]:
    catalog = click.option(
        "--catalog",
        metavar="rest:URL|DIR",
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="The warehouse's catalog: an Iceberg REST catalog, or an SQLite file in a directory."
        " By default in the warehouse's.",
    )
    warehouse = click.option(
        "--warehouse",
        metavar="DIR|s3://BUCKET/PREFIX|NAME",
        required=required,
        callback=_warehouse_of,
        help="Where the Iceberg tables are: a directory, a place in S3, or what the REST catalog"
        " calls it.",
    )
    return lambda command: warehouse(catalog(command))


def in_kafka(_context: object, _parameter: object, topics: str | None) -> str | None:
    """Topics of a command, separated by commas, as Kafka's protocol names them: an operator writes
    a tenant's as `acme/orders`."""
    return topics and ",".join(key_of(one.strip()) for one in topics.split(","))


WAREHOUSE = _warehouse_options(required=True)
WAREHOUSE_OR_NONE = _warehouse_options(required=False)
MASTER = click.option("--master", default="local[*]", show_default=True, help="Spark master URL.")


def _keep_objects(ctx: click.Context, _param: object, value: str | None) -> None:
    if isinstance(ctx.obj, CliSession):
        ctx.obj.objects = value


_OBJECTS = click.option(
    "--objects",
    metavar="URL",
    expose_value=False,
    callback=_keep_objects,
    help="Read tiered records from this object storage, not from brokers; their --objects.",
)


_TABLE = click.option(
    "--table",
    metavar="TABLE",
    help="With --warehouse: read from this archive of the topic what it holds, also what the log"
    " has deleted.",
)


def history_options(command: Command) -> Command:
    """Options of a job that may read older records from an archive of the topic."""
    return _TABLE(WAREHOUSE_OR_NONE(command))


def one_table(options: dict[str, Any], *names: str) -> str | None:
    """One of the tables that these options name, for the catalog of the job's session; None if
    there is none. Raises CommandFailed (usage) without --warehouse, or if they are in several."""
    given = {name: options[name] for name in names if options[name] is not None}
    for name in given if options["warehouse"] is None else ():
        raise CommandFailed(f"--{name} requires --warehouse", "Give both", USAGE)
    parse = job_module("catalog").TableName.parse if given else None
    if parse is not None and len({parse(table).catalog for table in given.values()}) > 1:
        raise CommandFailed(
            f"{' and '.join(given.values())} are in different catalogs; nothing was read",
            "Name tables of one catalog",
            USAGE,
        )
    return next(iter(given.values()), None)


def history_of(session: CliSession, spark: Any, options: dict[str, Any]) -> Any:
    """What such a job reads from."""
    table = options["table"] and job_module("catalog").TableName.parse(options["table"])
    return job_module("jobs.history").History(spark, connection_of(session), table)


def reading_job(command: Command) -> Command:
    """Options of a job that reads topics: the Spark master, where tiered records are, and who
    lists them."""
    return MASTER(_OBJECTS(HTTP(command)))


MODE = click.option(
    "--mode",
    type=click.Choice(["append", "upsert"]),
    default="append",
    show_default=True,
    help="upsert: keep the latest record of each key, as a compacted topic does.",
)
MEMORY = number_option("--memory", 2048, 512, "Memory of Spark's Java process.", metavar="MIB")
RESULT_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
RESULTS = click.option(
    "--results",
    metavar="TOPIC",
    type=TOPIC_NAME,
    callback=in_kafka,
    help="Also send the result to this topic, as JSON; the console's page of jobs shows it.",
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done; write nothing.")
MEMORY_MB = 2048
_CHECK_SQL = "Check the SQL, and that the tables are in --warehouse; the same command continues"


def window_options(command: Command) -> Command:
    """Add the options of a range of a topic."""
    for option in (
        click.option("--to-offsets", metavar="JSON", help="As --from-offsets; exclusive."),
        click.option("--from-offsets", metavar="JSON", help='Offsets: {"topic":{"0":23,"1":-2}}.'),
        click.option("--until", type=TimeType(), metavar="TIME", help="As --since; exclusive."),
        click.option(
            "--since", type=TimeType(), metavar="TIME", help="ISO 8601, or an age: 15m, 2h."
        ),
    ):
        command = option(command)
    return command


def job_module(name: str) -> Any:
    """A module of `headrace.pipeline`, imported now."""
    return importlib.import_module(f"headrace.pipeline.{name}")


def describe_topics(
    session: CliSession,
    options: dict[str, Any],
    reads: Sequence[str],
    writes: str | None = None,
    group: str = "",
) -> None:
    """Check that the topics of a job exist, and that it may read the first and send its result.
    Unless it is a dry run, check that it may write to the second, if there is one, and keep its
    progress in the group.

    Raises CommandFailed, RightsMissing.
    """
    results = [name for name in (options.get("results"),) if name]
    targets = [name for name in (writes,) if name]
    refused = None
    try:
        session.describe_topics([*reads, *targets, *results])
    except CommandFailed as failure:
        if not failure.lacks_right:
            raise
        refused = failure
    if options.get("dry_run"):
        group, targets = "", []
    rights = job_module("jobs.rights")
    rights.check_job(connection_of(session), group, reads, targets, results)
    if refused is not None:
        raise refused


def bounds_of(options: dict[str, Any]) -> Any:
    """Take the window's options out of `options`. Raises CommandFailed (usage)."""
    names = ("since", "until", "from_offsets", "to_offsets")
    since, until, start, end = (options.pop(name, None) for name in names)
    if (since is not None and start is not None) or (until is not None and end is not None):
        raise CommandFailed(
            "a range is given by times or by offsets; nothing was read",
            "Use --since and --until, or --from-offsets and --to-offsets",
            USAGE,
        )
    if since is not None and until is not None and since > until:
        raise CommandFailed("--since is after --until; nothing was read", "Swap them", USAGE)
    return job_module("jobs.windows").Bounds(since, until, start, end)


def connection_of(session: CliSession) -> Any:
    """The jobs' view of the cluster."""
    client, reads = session.client_config, reads_of(session)
    return job_module("jobs.windows").Connection(session.bootstrap, client, reads)


def reads_of(session: CliSession) -> dict[str, str]:
    """The data source's options for tiered records. Raises CommandFailed."""
    if session.objects is None:
        return {}
    return {"objects": session.objects, "http": http_address(session)}


def spark_tasks_shown() -> AbstractContextManager[None]:
    """A bar of the tasks of this process's session."""
    return watching("Spark tasks", job_module("jobs.running").spark_tasks())


@contextmanager
def spark_for(
    master: str,
    warehouse: Any,
    table: str | None = None,
    drivers: Sequence[Path] = (),
    *,
    counts_itself: bool = False,
) -> Iterator[Any]:
    """A session for one job; `drivers` are jars of JDBC drivers. A bar counts Spark's tasks, unless
    the job counts its work itself."""
    sessions = job_module("session")
    place = None
    if warehouse is not None:
        catalog = job_module("catalog").TableName.parse(table or "headrace.archive").catalog
        place = job_module("warehouse").Warehouse.at(warehouse, catalog)
    jars = ":".join(map(str, drivers))
    paths = ("spark.driver.extraClassPath", "spark.executor.extraClassPath") if jars else ()
    config = sessions.SessionConfig(
        master, warehouse=place, memory_mb=MEMORY_MB, short_run=master.startswith("local"),
        settings=dict.fromkeys(paths, jars),
    )  # fmt: skip
    spark = sessions.make_session(config)
    try:
        INTERRUPTION.check()
        with nullcontext() if counts_itself else spark_tasks_shown():
            yield spark
    finally:
        spark.stop()


def keep_result(
    session: CliSession, to: str | None, job: str, of: str, summary: str, result: Any
) -> None:
    """Send a job's result to the topic `to` (None: do nothing). Raises CommandFailed."""
    if to is None:
        return
    value = json.dumps({"job": job, "of": of, "summary": summary, "result": result}, default=str)
    outcomes: list[Any] = []
    producer = session.producer({"enable.idempotence": True})
    try:
        producer.produce(to, value, f"{job} {of}", on_delivery=lambda one, _: outcomes.append(one))
        producer.flush(session.timeout_s + 1)
    except kafka().KafkaException as error:
        outcomes.append(error.args[0])
    # No comparison with None by ==: the client's errors leave an exception behind.
    if not outcomes or outcomes[0] is not None:
        why = outcomes[0].str().rstrip(".") if outcomes else f"no answer in {session.timeout_s:g} s"
        raise CommandFailed(
            f"the job is done, but its result of {len(value):,} bytes is not in {to}: {why}",
            f"Check that {to} exists and its max.message.bytes; --json prints the result",
        )


def check_replaceable(warehouse: Any, table: str | None) -> None:
    """Refuse a table of results, if one was given, in a catalog that cannot replace its rows."""
    if table is not None:
        name = job_module("catalog").TableName.parse(table)
        job_module("publishing").check_replaceable(warehouse, name)


@contextmanager
def _spark_failures(step: str) -> Iterator[None]:
    """Convert Spark's failures to messages with a next step. Raises CommandFailed."""
    try:
        yield
    except KeyboardInterrupt:
        say(REST)
        raise
    except OSError as error:
        named, cache = error.filename, cache_folder()
        if not isinstance(named, str) or not Path(named).is_relative_to(cache):
            raise
        raise CommandFailed(
            f"the cache folder {cache} is of no use ({named}: {error.strerror}); nothing was done",
            f"Make it writable, or name another one in the environment: {CACHE_VARIABLE}=FOLDER",
        ) from error
    except Exception as error:
        if not type(error).__module__.startswith("pyspark."):
            raise
        ours = job_module("jobs.running").cause_of(error)
        if ours is not None:
            raise CommandFailed(
                ours.rstrip("."), "Once this is corrected, the same command continues"
            ) from error
        said = str(error).strip().splitlines()[:1]
        raise CommandFailed(f"Spark failed: {''.join(said).rstrip('.')}", step) from error


def restarted(job: Callable[[], Any], what: str, step: str = _CHECK_SQL) -> Any:
    """Run a restartable job until it returns: transient failures of Spark restart it, and Ctrl-C
    stops it (`INTERRUPTION`).

    Raises CommandFailed, with the next step, where Spark fails for another reason.
    """
    restarts = job_module("restarts")
    with _spark_failures(step):
        return INTERRUPTION.run(
            lambda: restarts.with_restarts(
                INTERRUPTION.guarded(job), what, wait_ms=INTERRUPTION.wait_ms
            )
        )
