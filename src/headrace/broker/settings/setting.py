"""The definition of one broker setting.

Invariants: a value; no I/O. The command-line option, the environment variable and the
configuration-file key are derived from it by one rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.settings.kinds import Whole
from headrace.broker.topics.topic_config import INT, INT64_MAX, LONG
from headrace.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.settings.kinds import Kind

SERVE, CLUSTER = "serve", "cluster"
"""The tables of the configuration file."""
_HEADRACE: Final = "headrace."


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """One row of the table."""

    name: str
    kind: Kind
    documentation: str
    default: str | None = None
    """None: not set."""
    field: str | None = None
    """The field of BrokerConfig that holds it; None: the server reads it at start-up."""
    spelling: str | None = None
    """The option without its dashes, if it is not derived from the name."""
    section: str = SERVE
    can_change: bool = False
    """Whether it may change while the broker runs."""
    is_sensitive: bool = False
    """Never returned to clients: secrets, and paths of the machine."""
    is_secret: bool = False
    """Refused on the command line, which other users of the machine can read."""
    can_differ: bool = False
    """Whether `listener.name.<name>.` before its name sets it for one listener."""
    is_common: bool = False
    """Whether `headrace serve --help` lists it; the reference page lists all."""
    negative: str | None = None
    """For a switch that is on by default: the option that turns it off."""

    @property
    def option(self) -> str:
        """The option of `headrace serve` without its dashes, and the key in the file."""
        return self.spelling or self.name.removeprefix(_HEADRACE).replace(".", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "HEADRACE_" + self.option.replace("-", "_").upper()

    @property
    def type(self) -> int:
        """`ConfigDef.Type` of DescribeConfigs."""
        return self.kind.wire_type

    def parse(self, text: str | None, source: str) -> Any:
        """Parse `text`. Raises ConfigInvalid, which names `source`."""
        try:
            if text is None:
                raise ValueError(self.kind.expected)
            return self.kind.parse(text)
        except ValueError as error:
            shown = "null" if text is None else repr(text[:100])
            raise ConfigInvalid(
                f"{self.name}={shown} from {source} is not valid: expected {error}; nothing was"
                f" changed. {self.next_step}"
            ) from error

    @property
    def next_step(self) -> str:
        """The hint for a value that is not accepted."""
        if self.default is None:
            return "Use a valid value, or remove the setting"
        shown = self.default or "empty"
        return f"Use a valid value, or remove the setting to use the default, {shown}"


_UNITS: Final = {"ms": "ms", "seconds": "s", "minutes": "min", "percent": "%"}


def unit_of(setting: BrokerSetting) -> str | None:
    """The unit of its value, which its name says; None: it has none."""
    words = setting.name.split(".")
    if setting.type not in {INT, LONG}:
        return None
    for size, unit in (("bytes", "B"), ("mib", "MiB")):
        if size in words:
            return f"{unit}/s" if "per" in words else unit
    if words[-2:] == ["creation", "rate"]:
        return "1/s"
    return next((_UNITS[word] for word in words if word in _UNITS), None)


_CONFIG = BrokerConfig()


def of_config(name: str, field: str, kind: Kind, documentation: str, **more: Any) -> BrokerSetting:
    """A setting whose default is defined in BrokerConfig."""
    value = getattr(_CONFIG, field)
    default = None if value is None else kind.format(value)
    return BrokerSetting(name, kind, documentation, default, field, **more)


LIVE: Final[Mapping[str, Any]] = {"can_change": True}
OF_CLUSTER: Final[Mapping[str, Any]] = {"section": CLUSTER, "is_common": True}
INTERVAL: Final = Whole(100, INT64_MAX)
DURATION: Final = Whole(0, INT64_MAX)
