"""The command `headrace`: global options, lazily imported commands, errors as messages.

Invariants: imports only what the chosen command needs, so that `headrace serve` starts quickly. The
user never sees a traceback.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from contextlib import suppress
from typing import Any, Final

import click

from headrace.cli.connection import before_commands, behind_commands
from headrace.cli.failures import EXIT_CODES, FAILED, INTERRUPTED, OK, CommandFailed
from headrace.cli.session import CliSession
from headrace.cli.text import visible
from headrace.errors import HeadraceError
from headrace.runtime import compiled

# name -> module, its line in `headrace --help`
COMMANDS = {
    "serve": ("headrace.cli.serve", "Run a broker."),
    "topic": ("headrace.cli.topic", "Create, list, describe, alter, copy, trim and delete topics."),
    "produce": ("headrace.cli.produce", "Write records: lines, JSON, files."),
    "consume": ("headrace.cli.consume", "Read records: from, to, follow, in many formats."),
    "group": ("headrace.cli.group", "List, describe, reset, export, import and delete groups."),
    "queue": ("headrace.cli.queue", "Receive and settle messages of share groups."),
    "backlog": (
        "headrace.cli.backlog",
        "Show, reset, skip and move what groups have not read.",
    ),
    "dead": ("headrace.cli.dead", "List, show, redrive and purge dead letters."),
    "delayed": ("headrace.cli.delayed", "List and cancel delayed records."),
    "half": ("headrace.cli.half", "List, commit and roll back half messages."),
    "find": ("headrace.cli.find", "Find messages by id, key, tag, header or time."),
    "trace": ("headrace.cli.trace", "Show the history of a message."),
    "task": ("headrace.cli.task", "List, show and stop searches, traces and redrives."),
    "txn": ("headrace.cli.txn", "List and describe transactions; abort hanging ones."),
    "config": (
        "headrace.cli.config",
        "Show and change settings of brokers and groups.",
    ),
    "acl": ("headrace.cli.acl", "Add, list, remove and explain access control lists."),
    "tenant": ("headrace.cli.tenant", "Create, list, change and delete tenants."),
    "quota": ("headrace.cli.quota", "List, set and delete client quotas."),
    "user": ("headrace.cli.user", "Add, list and remove users; change passwords."),
    "key": ("headrace.cli.key", "Create, list and revoke API keys for HTTP."),
    "info": ("headrace.cli.info", "Show cluster id, brokers, topics and versions."),
    "connections": (
        "headrace.cli.connections",
        "List Kafka clients, their quotas and throttling.",
    ),
    "health": ("headrace.cli.health", "Show whether brokers are alive and ready, or why not."),
    "dashboards": ("headrace.cli.dashboards", "Export dashboards and alert rules."),
    "cluster": ("headrace.cli.cluster", "Manage a cluster; run a development cluster."),
    "context": ("headrace.cli.context", "Name clusters, and how to reach them."),
    "init": ("headrace.cli.init", "Write the configuration of a broker, secure if asked."),
    "unit": ("headrace.cli.unit", "Print a systemd unit for one broker."),
    "cert": ("headrace.cli.cert", "Make certificates, signed by a CA of your own."),
    "top": ("headrace.cli.top", "Show rates and lag of topics and groups, refreshed."),
    "doctor": ("headrace.cli.doctor", "Collect facts for a bug report, without secrets."),
    "backup": ("headrace.cli.backup", "Copy the data of a broker while it runs."),
    "restore": ("headrace.cli.backup", "Make a data directory of a backup."),
    "salvage": ("headrace.cli.salvage", "Copy what is readable of a damaged partition."),
    "check": ("headrace.cli.check", "Check a data directory for damage."),
    "dump": ("headrace.cli.dump", "Show segments, write-ahead log and metadata."),
    "demo": ("headrace.cli.demo", "Run the pipeline end to end on real data."),
    "table": ("headrace.cli.table", "Keep topics as Iceberg tables."),
    "pipeline": ("headrace.cli.pipeline", "Run Spark jobs, such as the Iceberg archive."),
    "verify": (
        "headrace_verify.commands.verify",
        "Test this installation: crashes, damage, faults, attacks.",
    ),
    "bench": ("headrace_bench.command", "Benchmark this installation, Kafka and others."),
    "completion": ("headrace.cli.completion", "Print a shell completion script."),
}

OF_A_CLUSTER = {
    "topic", "produce", "consume", "group", "queue", "backlog", "find", "trace", "task", "txn",
    "dead", "config", "quota", "acl", "tenant", "user", "key", "info", "connections", "health",
    "top", "doctor", "pipeline", "salvage", "table",
}  # fmt: skip
"""Commands that connect to brokers: these options may also follow them."""


EXTRAS = {
    "cluster": {"google"},
    "objects": {"obstore"},
    "verify": {"headrace_verify", "aiokafka", "kafka", "schemathesis"},
    "bench": {"headrace_bench"},
}
"""Modules that belong to an extra other than `pipeline`."""


class _PipeClosedError(Exception):
    """The reader of the output has closed the pipe."""


SYNONYMS: Final = {
    "rm": ("delete", "remove", "revoke"),
    "del": ("delete", "remove", "revoke"),
    "delete": ("remove", "revoke"),
    "remove": ("delete", "revoke"),
    "ls": ("list",),
    "search": ("find",),
    "show": ("describe", "list"),
    "get": ("describe", "show", "list"),
    "new": ("create", "add"),
    "add": ("create",),
    "create": ("add",),
}
"""What other tools call a command, and what it is called here, the likeliest first."""


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click.Group; COMMANDS is in the order of typical use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click.Group."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name == "serve":
            _use_compiled_core()
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        if cmd_name in OF_A_CLUSTER:
            behind_commands(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click.Group; suggests commands that have not been imported, too."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, None, COMMANDS, ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """See click.Group; we handle a closed pipe ourselves (click would exit with 1)."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise _PipeClosedError from None
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Group: lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _use_compiled_core() -> None:
    """Called before anything imports its modules, as the table of settings does."""
    with suppress(compiled.CoreUnusableError):  # `serve` logs it at its start
        compiled.use()


def _print_version(ctx: click.Context, _param: object, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"headrace {version('headrace')}")
        ctx.exit()


@before_commands
@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
@click.pass_context
def cli(
    ctx: click.Context,
    bootstrap: str | None,
    context_name: str | None,
    timeout_s: float,
    client_config: dict[str, str],
) -> None:
    """Headrace, a message queue that speaks Kafka's protocol.

    \b
    Getting started:
      headrace serve --data-dir ./headrace-data
      headrace topic create orders --partitions 3
      seq 1000 | headrace produce orders
      headrace consume orders --count 5
      headrace group list
    """
    ctx.obj = CliSession(bootstrap, timeout_s, client_config, context_name=context_name)
    ctx.obj.is_default = bootstrap is None


def _sentence(text: str) -> str:
    """With a full stop, unless it would be copied as part of a command."""
    is_whole = text.endswith("?") or re.search(r": headrace (?:(?!\. [A-Z])[^;])*$", text)
    return text if is_whole else f"{text}."


def _run(arguments: list[str] | None) -> int:
    try:
        result = cli.main(arguments, prog_name="headrace", standalone_mode=False)
    except _PipeClosedError:
        _silence_stdout()
        return OK  # the reader has exited, as in `headrace consume t | head`
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except CommandFailed as failure:
        click.echo(visible(f"headrace: {_sentence(failure.message)}"), err=True)
        if failure.next_step:
            click.echo(visible(f"  {_sentence(failure.next_step)}"), err=True)
        return failure.exit_code
    except HeadraceError as error:
        click.echo(visible(f"headrace: {error}"), err=True)
        return FAILED
    except click.ClickException as failure:
        _meant(failure).show()
        return failure.exit_code
    return result if isinstance(result, int) else OK


def _meant(failure: click.ClickException) -> click.ClickException:
    """The same failure; for a command's name that other tools have, with ours for it. By letters
    alone, `topic rm` would be answered by `trim`."""
    ctx = failure.ctx if isinstance(failure, click.NoSuchCommand) else None
    if ctx is None or not isinstance(ctx.command, click.Group):
        return failure
    assert isinstance(failure, click.NoSuchCommand)
    known = ctx.command.list_commands(ctx)
    meant = [one for one in SYNONYMS.get(failure.command_name, ()) if one in known]
    meant = meant or _below(ctx, ctx.command, failure.command_name)
    if not meant:
        return failure
    name = failure.command_name
    return click.UsageError(f"No such command {name!r}. Did you mean {meant[0]!r}?", ctx)


def _below(ctx: click.Context, group: click.Group, name: str) -> list[str]:
    """Where the command is, if one group alone has it: `pipeline run archive`."""
    found = []
    for one in group.list_commands(ctx):
        with suppress(ModuleNotFoundError):  # of a package that is not installed
            command = group.get_command(ctx, one)
            if isinstance(command, click.Group) and name in command.list_commands(ctx):
                found.append(f"{one} {name}")
    return found if len(found) == 1 else []


def _silence_stdout() -> None:
    """Prevent the interpreter's error message about the closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal_error(error: Exception) -> int:
    if os.environ.get("HEADRACE_TRACEBACK"):
        raise error
    click.echo(
        f"headrace: internal error, {type(error).__name__}: {error}.\n"
        "  The command has stopped. Run it again with HEADRACE_TRACEBACK=1 to see where, and "
        "report it.",
        err=True,
    )
    return FAILED


def _extra_of(module: str | None) -> str:
    """The extra of this package that provides a module."""
    top = (module or "").partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if top in modules), "pipeline")


def _not_installed(module: str | None) -> str:
    extra = _extra_of(module)
    if module == f"headrace_{extra}":
        return (
            f"headrace: `headrace {extra}` is a package of its own, headrace-{extra}, which is not"
            f" installed: pip install 'headrace[{extra}]'."
        )
    return (
        f"headrace: this command needs the module {module!r}, which is not installed; nothing was"
        f" done.\n  Install it: pip install 'headrace[{extra}]'."
    )


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line and exit with its exit code."""
    try:
        code = _run(arguments)
    except ModuleNotFoundError as error:
        click.echo(_not_installed(error.name), err=True)
        code = FAILED
    except Exception as error:  # noqa: BLE001 - the edge: a user never sees a traceback
        code = _internal_error(error)
    sys.exit(code)


if __name__ == "__main__":
    main()
