"""Options of `headrace serve`, generated from the table of settings.

Invariants: an option, its variable, its key in a file and its validation come from one row
(`headrace.broker.settings.table`). An error about a value names its source, the accepted values and
the next step.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from headrace.broker.settings.kinds import (
    Addresses,
    HostAndPort,
    Listeners,
    PathName,
    QuorumSizes,
    Switch,
    Text,
    Whole,
)
from headrace.broker.settings.setting import CLUSTER
from headrace.broker.settings.table import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.broker.settings.setting import BrokerSetting

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_SOURCES = {
    ParameterSource.COMMANDLINE: " on the command line",
    ParameterSource.ENVIRONMENT: " in the environment",
    ParameterSource.DEFAULT_MAP: " in the file",
}
BY_OPTION: Mapping[str, BrokerSetting] = {setting.option: setting for setting in SETTINGS.values()}
CLUSTER_NAMES = tuple(name for name, setting in BY_OPTION.items() if setting.section == CLUSTER)
"""The options allowed in the file's `[cluster]`."""


class SettingType(click.ParamType[Any]):
    """The click type of a setting."""

    def __init__(self, setting: BrokerSetting) -> None:
        self.setting = setting
        kind = setting.kind
        if isinstance(kind, Whole):
            self.name = "integer"
        elif isinstance(kind, HostAndPort | Addresses | Listeners):
            self.name = "HOST:PORT"
        elif isinstance(kind, QuorumSizes):
            self.name = "E,W,A"
        else:
            self.name = kind.metavar if isinstance(kind, Text) else "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str | int):
            return value  # already parsed
        setting = self.setting
        found = None
        if ctx is not None and param is not None and param.name is not None:
            found = ctx.get_parameter_source(param.name)
        if setting.is_secret and found == ParameterSource.COMMANDLINE:
            self.fail(
                f"the command line can be read by other users of this machine: set"
                f" {setting.variable}, or {setting.name} in a file (--config)",
                param,
                ctx,
            )
        try:
            return setting.kind.parse(str(value))
        except ValueError as error:
            where = _SOURCES.get(found, "") if found is not None else ""
            if setting.is_secret:
                self.fail(f"the value{where}: expected {error}", param, ctx)
            self.fail(
                f"{str(value)[:100]!r}{where}: expected {error}. {setting.next_step}", param, ctx
            )


class SettingOption(click.Option):
    """An option defined by a row of the table."""

    def __init__(self, *args: Any, setting: BrokerSetting, **more: Any) -> None:
        super().__init__(*args, **more)
        self.setting = setting

    def value_from_envvar(self, ctx: click.Context) -> Any:
        return self.resolve_envvar_value(ctx) if self.multiple else super().value_from_envvar(ctx)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """What was repeated is one value, as in a file or a variable."""
        if not self.multiple or value is None:
            return super().type_cast_value(ctx, value)
        if not isinstance(value, str) and not value:
            return None  # no default
        text = value if isinstance(value, str) else ",".join(value)
        return self.type.convert(text, self, ctx)


def setting_option(option: str, **changes: Any) -> Decorator:
    """The option of `headrace serve` with this name, without its dashes; with `changes` of click's
    own attributes, for commands that use it differently."""
    setting = BY_OPTION[option]
    declaration = f"--{setting.option}"
    attributes: dict[str, Any] = {
        "help": setting.documentation,
        "envvar": setting.variable,
        "show_envvar": True,
        "hidden": not setting.is_common,
        "default": setting.default,
        "show_default": setting.default is not None,
    }
    kind = setting.kind
    if isinstance(kind, Switch):
        attributes["default"] = setting.default == "true"
        if setting.negative is not None:
            declaration += f"/--{setting.negative}"
        else:
            attributes |= {"is_flag": True, "show_default": False}
    elif isinstance(kind, PathName):
        attributes["type"] = click.Path(
            exists=not kind.is_folder,
            dir_okay=kind.is_folder,
            file_okay=not kind.is_folder,
            path_type=Path,
        )
        if setting.default is not None:
            attributes["default"] = Path(setting.default)
    elif words := getattr(kind, "words", None):
        attributes["type"] = click.Choice(words)
    else:
        attributes["type"] = SettingType(setting)
        if isinstance(kind, Addresses | Listeners):
            default = [] if setting.default is None else [setting.default]
            attributes |= {"multiple": True, "default": default}
    return click.option(declaration, cls=SettingOption, setting=setting, **(attributes | changes))


def with_options(options: Iterable[Decorator]) -> Decorator:
    """All of these options; the help shows them in their order."""

    def apply(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(list(options)):
            command = option(command)
        return command

    return apply


def setting_options(names: Iterable[str] = tuple(BY_OPTION)) -> Decorator:
    """The options with these names."""
    return with_options([setting_option(name) for name in names])


def given_settings(ctx: click.Context) -> dict[str, str]:
    """The settings given on the command line, in the environment or in the file, as text."""
    given: dict[str, str] = {}
    for param in ctx.command.params:
        if not isinstance(param, SettingOption) or param.name is None:
            continue
        source = ctx.get_parameter_source(param.name)
        value = ctx.params.get(param.name)
        if source in _SOURCES and value is not None:
            given[param.setting.name] = param.setting.kind.format(value)
    return given
