"""Options from a file: `--config FILE`, in TOML.

Rules of the room: a file says nothing that an option could not say, under the option's own name.
What counts is, in this order: the command line, the environment, the file, the default. A name that
no option has is an error, since it would be a setting that somebody believes in and nobody obeys.

    [serve]
    data-dir = "/var/lib/headrace"
    kafka = "127.0.0.1:9092"

    [cluster]
    zookeeper = "zk1:2181,zk2:2181,zk3:2181"
    broker-id = 1
    quorum = [3, 3, 2]
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CLUSTER_TABLE = "cluster"


def config_option(
    table: str | None, cluster_names: Sequence[str]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--config` for a command that reads `table`, and what `[cluster]` may hold."""

    def load(ctx: click.Context, _param: object, path: Path | None) -> None:
        if path is not None:
            ctx.default_map = _read(path, ctx.command, table, cluster_names)

    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        envvar="HEADRACE_CONFIG",
        is_eager=True,  # the defaults of the others depend on it
        expose_value=False,
        callback=load,
        help="A TOML file with options under their own names; the command line and the environment"
        " count more.",
    )


def _read(
    path: Path, command: click.Command, table: str | None, cluster_names: Sequence[str]
) -> dict[str, Any]:
    """What the file says about this command's options, by parameter. Raises CommandFailed."""
    try:
        with path.open("rb") as stream:
            content = tomllib.load(stream)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read as TOML: {error}") from error
    parameters = {
        option.removeprefix("--"): parameter.name or ""
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and parameter.expose_value
        for option in parameter.opts
    }
    own = [name for name in parameters if name not in cluster_names]
    found: dict[str, Any] = {}
    for name, section in content.items():
        known = cluster_names if name == CLUSTER_TABLE else own if name == table else None
        if known is None:
            _check_name(path, f"[{name}]", name, ["serve", CLUSTER_TABLE])
            continue  # for other commands
        if not isinstance(section, dict):
            raise CommandFailed(f"{path}: {name} stands alone; write it below [serve]")
        for key, value in section.items():
            _check_name(path, f"{key} in [{name}]", key, known)
            if key in parameters:
                found[parameters[key]] = _plain(path, key, value)
    return found


def _check_name(path: Path, shown: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        step = f"is it {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
        raise CommandFailed(f"{path}: there is no {shown}; nothing was started: {step}")


def _plain(path: Path, key: str, value: object) -> object:
    """The value as the command line would have it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, str | int | float | bool):
        return value
    raise CommandFailed(f"{path}: {key} must be text, a number, true, false or a list of these")
