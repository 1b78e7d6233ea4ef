"""Options from a file: `--config FILE`, in TOML (docs/CONFIGURATION.md).

Invariants: a file can set only what options can set, under the option's own name or the setting's
(`num.partitions`). The precedence is: command line, environment, file, default. Unknown names and
values of the wrong type are errors, because they would be settings without effect.

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
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.broker.settings.kinds import QuorumSizes, Whole
from headrace.broker.settings.setting import CLUSTER, SERVE
from headrace.cli.failures import CommandFailed
from headrace.cli.listener_settings import PREFIX, checked, keep_of_file
from headrace.cli.setting_options import BY_OPTION, SettingOption
from headrace.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

SERVE_TABLE = SERVE
CLUSTER_TABLE = CLUSTER
_OPTION_OF = {setting.name: option for option, setting in BY_OPTION.items()}
_FILE_META = "headrace.cli.config_file"


NEAR: Final = 0.55
"""How similar a name must be to be suggested: `data_directory` finds `data-dir`."""
NAMES_SHOWN_MAX: Final = 20
"""More names than these are not listed in an error."""


def config_option(
    table: str | None, cluster_names: Sequence[str]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--config` for a command that reads `table`, and the names allowed in
    `[cluster]`."""

    def load(ctx: click.Context, _param: object, path: Path | None) -> None:
        if path is not None:
            ctx.meta[_FILE_META] = path
            found = read_file(path, ctx, table, cluster_names)
            keep_of_file(ctx, found)
            ctx.default_map = found

    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        envvar="HEADRACE_CONFIG",
        is_eager=True,  # the defaults of the others depend on it
        expose_value=False,
        callback=load,
        help="A TOML file of options; the command line and the environment take precedence.",
    )


def file_of(ctx: click.Context) -> Path | None:
    """The file given with `--config`."""
    found: Path | None = ctx.meta.get(_FILE_META)
    return found


def read_file(
    path: Path, ctx: click.Context, table: str | None, cluster_names: Sequence[str]
) -> dict[str, Any]:
    """Load the file's options of the context's command. Raises CommandFailed."""
    try:
        with path.open("rb") as stream:
            content = tomllib.load(stream)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read as TOML: {error}") from error
    options = {
        option.removeprefix("--"): parameter
        for parameter in ctx.command.params
        if isinstance(parameter, SettingOption)
        or (isinstance(parameter, click.Option) and not parameter.hidden and parameter.expose_value)
        for option in parameter.opts
    }
    own = [name for name in options if name not in cluster_names]
    found: dict[str, Any] = {}
    for name, section in content.items():
        if not isinstance(section, dict):
            raise CommandFailed(_outside(path, name, cluster_names))
        known = cluster_names if name == CLUSTER_TABLE else own if name == table else None
        if known is None:
            _check_name(path, f"[{name}]", name, [SERVE_TABLE, CLUSTER_TABLE], aliases=())
            continue  # for other commands
        for written, value in _settings_of(section, options):
            if written.startswith(PREFIX) and name == SERVE_TABLE == table:
                try:
                    found[written] = checked(written, value)
                except ConfigInvalid as error:
                    raise CommandFailed(f"{path}: {error}; nothing was started") from error
                continue
            key = _OPTION_OF.get(written, written)
            _check_name(path, f"{written} in [{name}]", key, known)
            if key in options:
                option = options[key]
                if (option.name or "") in found:
                    raise CommandFailed(f"{path}: {written} in [{name}] is set twice: remove one")
                found[option.name or ""] = _checked(
                    f"{path}: {written} in [{name}]", value, option, ctx
                )
    return found


def _settings_of(
    section: Mapping[str, Any], options: Container[str], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of each setting. TOML parses `num.partitions = 6` as a nested table."""
    for key, value in section.items():
        name = prefix + key
        if isinstance(value, dict) and name not in options:
            yield from _settings_of(value, options, f"{name}.")
        else:
            yield name, value


def _outside(path: Path, name: str, cluster_names: Sequence[str]) -> str:
    if name in {SERVE_TABLE, CLUSTER_TABLE}:
        return f"{path}: {name} must be a table: write [{name}], and its settings below"
    table = CLUSTER_TABLE if name in cluster_names else SERVE_TABLE
    return f"{path}: {name} is outside a table: put [{table}] on a line above it"


def _check_name(
    path: Path, shown: str, name: str, known: Sequence[str], aliases: Iterable[str] = _OPTION_OF
) -> None:
    if name not in known:
        names = {one.lower(): one for one in (*aliases, *known)}
        plain = name.lower().replace("_", "-")
        near = difflib.get_close_matches(plain, names, 3, NEAR)
        near += [one for one in names if plain in one and one not in near][: 3 - len(near)]
        step = "docs/reference/settings.md lists all settings"
        if near:
            step = f"did you mean {' or '.join(names[one] for one in near)}?"
        elif len(known) <= NAMES_SHOWN_MAX:
            step = f"known are {', '.join(sorted(known))}"
        raise CommandFailed(f"{path}: unknown {shown}; nothing was started: {step}")


def _checked(where: str, value: object, option: click.Option, ctx: click.Context) -> object:
    """Convert the value to command-line text. Raises CommandFailed."""
    expected, is_right = _expected(option, value)
    if not is_right:
        shown = "of another type" if _is_secret(option) else _shown(value)
        raise CommandFailed(f"{where} is {shown}: expected {expected}; nothing was started")
    plain = ",".join(map(str, value)) if isinstance(value, list) else value
    if isinstance(plain, bool):
        return plain
    try:
        option.type.convert(plain, option, ctx)
    except click.BadParameter as error:
        if _is_secret(option):
            raise CommandFailed(f"{where} is not valid; nothing was started") from None
        raise CommandFailed(
            f"{where} is {_shown(value)}: {error.message.rstrip('.')}; nothing was started"
        ) from error
    return plain


def _is_secret(option: click.Option) -> bool:
    return isinstance(option, SettingOption) and option.setting.is_secret


def _expected(option: click.Option, value: object) -> tuple[str, bool]:
    """(a description of the option's type, whether the value matches it)."""
    is_bool = isinstance(value, bool)
    if option.is_flag:
        return "true or false", is_bool
    kind = option.setting.kind if isinstance(option, SettingOption) else None
    if isinstance(kind, QuorumSizes):
        is_list = isinstance(value, list) and all(type(item) is int for item in value)
        return "three numbers, as in [3, 3, 2]", is_list or isinstance(value, str)
    if isinstance(kind, Whole) or isinstance(option.type, click.types.IntParamType):
        return "an integer without quotes", isinstance(value, int) and not is_bool
    if isinstance(option.type, click.types.FloatParamType):
        return "a number, without quotes", isinstance(value, int | float) and not is_bool
    return 'a quoted string, as in "..."', isinstance(value, str)


def _shown(value: object) -> str:
    kinds = {str: "text", bool: "true or false", list: "a list", dict: "a table"}
    kind = kinds.get(type(value), "a number" if isinstance(value, int | float) else "a date")
    return f"{str(value).lower() if isinstance(value, bool) else repr(value)} ({kind})"
