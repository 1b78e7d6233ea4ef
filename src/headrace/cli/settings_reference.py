"""The reference page of the settings of brokers, topics and groups, generated from their tables.

python -m headrace.cli.settings_reference > docs/reference/settings.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.coordinators.group_config import GROUP_DEFINITIONS
from headrace.broker.settings.setting import CLUSTER
from headrace.broker.settings.table import SECTIONS
from headrace.broker.topics.topic_config import DEFINITIONS, INT32_MAX, INT64_MAX, Between, OneOf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.broker.settings.setting import BrokerSetting
    from headrace.broker.topics.topic_config import ConfigDefinition

_HEAD = """\
# Settings

Generated from `headrace.broker.settings.table`, `topic_config` and `group_config`; do not edit.
[CONFIGURATION](../CONFIGURATION.md) describes how to set and change settings. Settings of brokers
come first, then those of [topics](#settings-of-topics) and [groups](#settings-of-groups).

Each setting of a broker has a name (Kafka's, where Kafka has the setting), an option of `headrace
serve` and an environment variable. In a configuration file (`--config`) it has a key: its name, or
its option without the leading dashes, in `[cluster]` where this page says so, otherwise in
`[serve]`. *Live* settings can be changed at run time, with `headrace config` or a Kafka client;
changes of the others take effect at the next start.
"""
_TOPICS = """\
## Settings of topics

Set with `--set` of `headrace topic create` and `alter`, or a Kafka client. All can be changed
at any time. The defaults of many are settings of the broker (`log.retention.ms`).
"""
_GROUPS = """\
## Settings of groups

Set with `headrace group set`, `headrace config` or a Kafka client, by the kind of the group:
`consumer.` (of the new protocol), `share.` and `errors.` (share groups), `streams.`. All can be
changed at any time.
"""


def page() -> str:
    """The page, as Markdown."""
    lines = [_HEAD]
    for title, settings in SECTIONS.items():
        lines += [f"## {title}", ""]
        for setting in sorted(settings, key=lambda one: one.name):
            lines += [*_described(setting), ""]
    lines += [_TOPICS, *_listed(DEFINITIONS), "", _GROUPS, *_listed(GROUP_DEFINITIONS)]
    return "\n".join(lines).rstrip() + "\n"


def _listed(definitions: Mapping[str, ConfigDefinition]) -> Iterator[str]:
    yield "| setting | default | meaning |"
    yield "|---|---|---|"
    for one in definitions.values():
        is_listed = isinstance(one.check, OneOf) or (
            isinstance(one.check, Between) and one.check.high not in {INT32_MAX, INT64_MAX}
        )
        meaning = one.documentation + (f" Allowed: {one.check}." if is_listed else "")
        default = f"`{one.default}`" if one.default else "empty"
        yield f"| `{one.name}` | {default} | {meaning.replace('|', chr(92) + '|')} |"


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
