"""The reference page of broker settings, generated from their table.

python -m headrace.cli.settings_reference > docs/reference/settings.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.settings.setting import CLUSTER
from headrace.broker.settings.table import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.broker.settings.setting import BrokerSetting

_HEAD = """\
# Broker settings

Generated from `headrace.broker.settings.table`; do not edit.
[CONFIGURATION](../CONFIGURATION.md) describes how to set and change settings.

Each setting has a name (Kafka's, where Kafka has the setting), an option of `headrace serve` and an
environment variable. In a configuration file (`--config`) it has a key: its name, or its option
without the leading dashes, in `[cluster]` where this page says so, otherwise in `[serve]`. *Live*
settings can be changed at run time, with `headrace config` or a Kafka client; changes of the others
take effect at the next start.
"""


def page() -> str:
    """The page, as Markdown."""
    lines = [_HEAD]
    for title, settings in SECTIONS.items():
        lines += [f"## {title}", ""]
        for setting in sorted(settings, key=lambda one: one.name):
            lines += [*_described(setting), ""]
    return "\n".join(lines).rstrip() + "\n"


def _described(setting: BrokerSetting) -> Iterator[str]:
    option = f"`--{setting.option}`"
    if setting.negative is not None:
        option += f", `--{setting.negative}`"
    yield f"### {setting.name}"
    yield setting.documentation
    yield ""
    yield "| option | variable | value | default | change |"
    yield "|---|---|---|---|---|"
    default = "none" if setting.default is None else f"`{setting.default}`"
    change = "live" if setting.can_change else "restart"
    value = setting.kind.expected.replace("|", "\\|")
    notes = ["in `[cluster]`"] if setting.section == CLUSTER else []
    notes += ["not shown to clients"] if setting.is_sensitive else []
    change = "; ".join([change, *notes])
    yield f"| {option} | `{setting.variable}` | {value} | {default} | {change} |"


if __name__ == "__main__":
    print(page(), end="")
