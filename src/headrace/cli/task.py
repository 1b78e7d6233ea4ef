"""`headrace task`: the searches, traces and redrives that brokers run in the background.

Invariants: uses HTTP; any broker answers for the tasks of all, which each keeps in memory. A broker
that does not answer is named.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from headrace.cli.completion import session_of
from headrace.cli.failures import FAILED, NOT_FOUND, USAGE, CommandFailed
from headrace.cli.output import AS_JSON, Cell, iso_time, print_json, print_table, say
from headrace.cli.parameters import CommandGroup
from headrace.cli.web import HTTP, PAGE_ITEMS_MAX, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

KINDS: Final = {"searches": "search", "traces": "trace", "redrives": "redrive"}
"""By their names in paths."""
RUNNING: Final = "running"


def _complete_ids(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    try:
        found, _ = _tasks(Web(session_of(ctx)))
    except CommandFailed:
        return []
    return [
        CompletionItem(one["id"], help=f"{one['kind']}, {one['state']}")
        for one in found
        if one["id"].startswith(incomplete)
    ]


ID = click.argument("task_id", metavar="ID", shell_complete=_complete_ids)


@click.group(cls=CommandGroup)
def task() -> None:
    """List, show and stop searches, traces and redrives in the background.

    \b
    Examples:
      headrace task list --running
      headrace task show 1f0c3a --json
      headrace task stop 1f0c3a

    The console and POST /v1/searches, /v1/traces, /v1/redrives start them. The first characters of
    an ID are enough. Each broker keeps the last 64 that have ended, until it restarts.
    """


@task.command("list")
@click.option("--kind", type=click.Choice([*KINDS.values()]), help="Only of this kind.")
@click.option("--running", "is_running", is_flag=True, help="Only those that run.")
@HTTP
@AS_JSON
@click.pass_obj
def list_(session: CliSession, /, kind: str | None, is_running: bool, as_json: bool) -> None:
    """List the tasks of all brokers that you may see, the newest first."""
    found, failed = _tasks(Web(session), kind)
    if is_running:
        found = [one for one in found if one["state"] == RUNNING]
    if as_json:
        print_json({"tasks": found, **({"failed": failed} if failed else {})})
    else:
        print_table(
            ["id", "broker", "kind", "state", "progress", "results", "started", "asked"],
            [_row(one) for one in found],
            empty="no such tasks: a broker keeps them until it restarts",
        )
    if failed:
        raise _missing(failed, "its tasks are not listed")


@task.command()
@ID
@HTTP
@AS_JSON
@click.pass_obj
def show(session: CliSession, /, task_id: str, as_json: bool) -> None:
    """Show a task: what was asked, its progress, and its results as JSON lines."""
    web = Web(session)
    one = _one(web, task_id)
    query = {"limit": PAGE_ITEMS_MAX}
    pages = [*web.ask_pages("GET", path_of(_path(one), one["id"]), query=query)]
    whole = {**pages[-1], "kind": one["kind"],
             "results": [found for page in pages for found in page["results"]]}  # fmt: skip
    whole.pop("next_page_token", None)
    if as_json:
        print_json(whole)
        return
    ended = f", ended {iso_time(whole['ended_ms'])}" if "ended_ms" in whole else ""
    say(f"{whole['kind']} {whole['id']}: {whole['state']}{ended}")
    say(f"asked: {_text(whole['asked'])}")
    say(f"progress: {_progress(whole)}; {whole['result_count']:,} results")
    if "error" in whole:
        say(f"error: {whole['error']['detail']}; next: {whole['error']['next_step']}")
    for found in whole["results"]:
        click.echo(json.dumps(found, ensure_ascii=False))


@task.command()
@ID
@HTTP
@click.pass_obj
def stop(session: CliSession, /, task_id: str) -> None:
    """Stop a task. What it has found or sent by then stays; one that has ended is left alone."""
    web = Web(session)
    one = _one(web, task_id)
    if one["state"] != RUNNING:
        click.echo(f"{one['kind']} {one['id']} has ended already: {one['state']}")
        return
    after = web.ask("DELETE", path_of(_path(one), one["id"]))
    is_ending = after["state"] == RUNNING
    state = "is being stopped: see headrace task show" if is_ending else after["state"]
    click.echo(f"{one['kind']} {one['id']}: {state}")


def _tasks(web: Web, kind: str | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the tasks, the brokers that did not answer, each with its error)."""
    paths = [path for path, name in KINDS.items() if kind in {None, name}]
    answers = {path: web.ask("GET", path_of(path)) for path in paths}
    found = [{"kind": KINDS[path], **one} for path in paths for one in answers[path][path]]
    failed = {one["broker"]: one for path in paths for one in answers[path].get("failed", ())}
    found.sort(key=lambda one: (-one["started_ms"], one["id"]))
    return found, [failed[broker] for broker in sorted(failed)]


def _missing(failed: list[dict[str, Any]], effect: str) -> CommandFailed:
    numbers = ", ".join(str(one["broker"]) for one in failed)
    error = failed[0]["error"]
    return CommandFailed(
        f"broker {numbers} did not answer: {effect} ({error['detail']})",
        str(error["next_step"]).capitalize(),
        FAILED,
    )


def _one(web: Web, task_id: str) -> dict[str, Any]:
    """The task whose id begins so. Raises CommandFailed."""
    tasks, failed = _tasks(web)
    found = [one for one in tasks if one["id"].startswith(task_id)]
    if not found and failed:
        raise _missing(failed, f"it may have the task {task_id!r}")
    if not found:
        raise CommandFailed(
            f"no broker has a task {task_id!r}", "See headrace task list", NOT_FOUND
        )
    if len(found) > 1:
        ids = ", ".join(one["id"] for one in found[:5])
        raise CommandFailed(f"{task_id!r} begins several tasks: {ids}", "Give more of it", USAGE)
    return found[0]


def _path(one: dict[str, Any]) -> str:
    return next(path for path, kind in KINDS.items() if kind == one["kind"])


def _row(one: dict[str, Any]) -> list[Cell]:
    return [
        *(one["id"], one.get("broker"), one["kind"], one["state"], _progress(one)),
        one["result_count"],
        *(iso_time(one["started_ms"]), _text(one["asked"])),
    ]


def _progress(one: dict[str, Any]) -> str:
    progress = one["progress"]
    if progress.get("total"):
        return f"{progress['done']:,} of {progress['total']:,}"
    return f"{progress['records']:,} records read" if "records" in progress else "-"


def _text(asked: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in asked.items()
    )
