"""The types of setting values: what is accepted, and how it is written.

Invariants: text in, value out; no I/O. `parse` accepts what `format` writes, and raises ValueError
on anything else; `expected` completes the sentence "expected ..." of a message. Integers are ASCII
digits: other tools cannot read what Python accepts beyond that (`1_000`, blanks).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headrace.broker.security.connection_limits import parse_overrides
from headrace.broker.security.listener import PROTOCOLS
from headrace.broker.topics.topic_config import BOOLEAN, INT, INT32_MAX, LIST, LONG, STRING
from headrace.runtime.log_levels import LEVELS, parse_levels
from headrace.runtime.security_protocols import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.broker.topics.topic_config import ConfigDefinition

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_OFFSET: Final = re.compile(r"([+-])([0-9]{2}):([0-5][0-9])")
OFFSET_MINUTES_MAX: Final = 14 * 60
OFFSETS_MAX: Final = 8
"""Time zones; each one is a further time at which a signature holds."""
_PORT: Final = re.compile(r"[0-9]{1,5}")
LOOPBACK: Final = "127.0.0.1"
_LISTENER_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
HTTP_LISTENER: Final = "HTTP"
"""The name of the HTTP listener in settings of one listener."""
ADMIN_LISTENER: Final = "HTTP_ADMIN"
"""The name of the listener for health and metrics."""
ROCKETMQ_LISTENER: Final = "ROCKETMQ"
"""The name of the listener for RocketMQ's clients."""
_RESERVED: Final = re.compile(rf"{HTTP_LISTENER}(_[0-9]+)?|{ADMIN_LISTENER}|{ROCKETMQ_LISTENER}")
"""Names that Kafka listeners cannot have."""
PORT_MAX: Final = 65_535
PEM_LENGTH_MAX: Final = 256 * 1024
TEXT_LENGTH_MAX: Final = 4_096
"""Characters: a setting may be stored, and is listed with all others."""

Address = tuple[str, int]
"""Host and port."""


class Kind(Protocol):
    """What a setting accepts."""

    @property
    def wire_type(self) -> int:
        """`ConfigDef.Type` of DescribeConfigs."""
        ...

    @property
    def expected(self) -> str:
        """The accepted values, in words."""
        ...

    def parse(self, text: str) -> Any:
        """Parse a text. Raises ValueError."""
        ...

    def format(self, value: Any) -> str:
        """The text of a value."""
        ...


class Whole:
    """An integer within inclusive bounds."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int = INT32_MAX) -> None:
        self.low = low
        self.high = high

    @property
    def wire_type(self) -> int:
        """See Kind."""
        return INT if self.high <= INT32_MAX else LONG

    @property
    def expected(self) -> str:
        """See Kind."""
        return f"an integer from {self.low} to {self.high}"

    def parse(self, text: str) -> int:
        """See Kind."""
        if not _WHOLE.fullmatch(text) or not self.low <= int(text) <= self.high:
            raise ValueError(self.expected)
        return int(text)

    def format(self, value: int) -> str:
        """See Kind."""
        return str(value)


class Switch:
    """True or false."""

    wire_type = BOOLEAN
    expected = "true or false"

    def parse(self, text: str) -> bool:
        """See Kind."""
        if text not in {"true", "false"}:
            raise ValueError(self.expected)
        return text == "true"

    def format(self, value: bool) -> str:
        """See Kind."""
        return "true" if value else "false"


class OneOf:
    """One of a few words."""

    __slots__ = ("words",)
    wire_type = STRING

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    @property
    def expected(self) -> str:
        """See Kind."""
        return f"one of {', '.join(self.words)}" if len(self.words) > 1 else self.words[0]

    def parse(self, text: str) -> str:
        """See Kind."""
        if text not in self.words:
            raise ValueError(self.expected)
        return text

    def format(self, value: str) -> str:
        """See Kind."""
        return value


class Text:
    """Any single-line text."""

    __slots__ = ("metavar",)
    wire_type = STRING
    expected = f"a single line of at most {TEXT_LENGTH_MAX} characters"

    def __init__(self, metavar: str = "TEXT") -> None:
        self.metavar = metavar

    def parse(self, text: str) -> str:
        """See Kind."""
        if not text.isprintable() or len(text) > TEXT_LENGTH_MAX:
            raise ValueError(self.expected)
        return text

    def format(self, value: str | None) -> str:
        """See Kind."""
        return value or ""


class Pem:
    """Certificates or a key in PEM, in place of a file's name."""

    wire_type = STRING
    expected = f"text in PEM (-----BEGIN ...) of at most {PEM_LENGTH_MAX} characters"

    def parse(self, text: str) -> str:
        """See Kind."""
        if not text.isascii() or len(text) > PEM_LENGTH_MAX or "-----BEGIN " not in text:
            raise ValueError(self.expected)
        return text

    def format(self, value: str) -> str:
        """See Kind."""
        return value


class Choices:
    """Some of a few words, in an order that may matter."""

    __slots__ = ("choices",)
    wire_type = LIST

    def __init__(self, choices: tuple[str, ...]) -> None:
        self.choices = choices

    @property
    def expected(self) -> str:
        """See Kind."""
        return f"a list of {', '.join(self.choices)}, each at most once"

    def parse(self, text: str) -> tuple[str, ...]:
        """See Kind."""
        found = tuple(part.strip() for part in text.split(","))
        if not set(found) <= set(self.choices) or len(set(found)) < len(found):
            raise ValueError(self.expected)
        return found

    def format(self, value: Iterable[str]) -> str:
        """See Kind."""
        return ",".join(value)


class PathName:
    """The path of a file or folder on the broker's machine; never returned to clients."""

    __slots__ = ("is_folder",)
    wire_type = STRING

    def __init__(self, *, is_folder: bool = False) -> None:
        self.is_folder = is_folder

    @property
    def expected(self) -> str:
        """See Kind."""
        return "the path of a folder" if self.is_folder else "the path of a file"

    def parse(self, text: str) -> str:
        """See Kind."""
        if not text or "\0" in text:
            raise ValueError(self.expected)
        return text

    def format(self, value: object) -> str:
        """See Kind."""
        return str(value)


class HostAndPort:
    """An address to listen on or to connect to."""

    wire_type = STRING
    expected = "HOST:PORT, as in 127.0.0.1:9092"

    def parse(self, text: str) -> Address:
        """See Kind. `:PORT` is loopback; IPv6 addresses may be in brackets."""
        host, colon, port = text.rpartition(":")
        is_address = colon and _PORT.fullmatch(port) and int(port) <= PORT_MAX
        if not is_address or not host.isprintable() or set(host) & set(" ,/@"):
            raise ValueError(self.expected)
        return host.strip("[]") or LOOPBACK, int(port)

    def format(self, value: Address) -> str:
        """See Kind."""
        host, port = value
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Addresses:
    """Addresses to listen on, distinct unless their ports are chosen freely."""

    wire_type = STRING
    expected = "HOST:PORT, as in 127.0.0.1:9180, or several distinct ones: HOST:PORT,HOST:PORT"

    def parse(self, text: str) -> tuple[Address, ...]:
        """See Kind."""
        try:
            found = tuple(HostAndPort().parse(item.strip()) for item in text.split(","))
        except ValueError:
            raise ValueError(self.expected) from None
        fixed = [one for one in found if one[1]]
        if len(set(fixed)) < len(fixed):
            raise ValueError(self.expected)
        return found

    def format(self, value: Iterable[Address]) -> str:
        """See Kind."""
        return ",".join(map(HostAndPort().format, value))


class Listener(NamedTuple):
    """A named address."""

    name: str
    host: str
    port: int


class Listeners:
    """Named addresses, as Kafka writes them; `also`: a reserved name that may be among them."""

    wire_type = STRING
    expected = (
        "HOST:PORT, as in 127.0.0.1:9092, or NAME://HOST:PORT,... with distinct names of"
        " capital letters, digits and _, not HTTP"
    )

    def __init__(self, also: str = "") -> None:
        self._also = also

    def parse(self, text: str) -> tuple[Listener, ...]:
        """See Kind. An address without a name is the PLAINTEXT listener."""
        listeners: list[Listener] = []
        for item in text.split(","):
            name, separator, address = item.strip().rpartition("://")
            name = name if separator else PLAINTEXT
            is_reserved = name != self._also and _RESERVED.fullmatch(name)
            if not _LISTENER_NAME.fullmatch(name) or is_reserved:
                raise ValueError(self.expected)
            try:
                listeners.append(Listener(name, *HostAndPort().parse(address)))
            except ValueError:
                raise ValueError(self.expected) from None
        if len({listener.name for listener in listeners}) < len(listeners):
            raise ValueError(self.expected)
        return tuple(listeners)

    def format(self, value: Iterable[Listener]) -> str:
        """See Kind."""
        addresses = HostAndPort()
        return ",".join(f"{name}://{addresses.format((host, port))}" for name, host, port in value)


class LogLevelMap:
    """Levels of loggers."""

    wire_type = STRING
    expected = f"LOGGER=LEVEL,... such as headrace.kafka=debug, with {', '.join(LEVELS)}"

    def parse(self, text: str) -> dict[str, str]:
        """See Kind."""
        try:
            return parse_levels(text)
        except ValueError:
            raise ValueError(self.expected) from None

    def format(self, value: Mapping[str, str]) -> str:
        """See Kind."""
        return ",".join(f"{name}={level}" for name, level in value.items())


class ProtocolMap:
    """Security protocols by listener name, as Kafka writes them."""

    wire_type = STRING
    expected = f"NAME:PROTOCOL,... with the protocols {', '.join(PROTOCOLS)}"

    def parse(self, text: str) -> dict[str, str]:
        """See Kind."""
        protocols: dict[str, str] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, _, protocol = item.partition(":")
            is_known = _LISTENER_NAME.fullmatch(name) and protocol in PROTOCOLS
            if not is_known or name in protocols:
                raise ValueError(self.expected)
            protocols[name] = protocol
        return protocols

    def format(self, value: Mapping[str, str]) -> str:
        """See Kind."""
        return ",".join(f"{name}:{protocol}" for name, protocol in value.items())


class UtcOffsets:
    """Time zones by their differences from UTC, in seconds."""

    wire_type = STRING
    expected = "+HH:MM,... or -HH:MM,..., at most 14 hours, as in +08:00,-05:00"

    def parse(self, text: str) -> tuple[int, ...]:
        """See Kind."""
        found = []
        for item in filter(None, (part.strip() for part in text.split(","))):
            match = _OFFSET.fullmatch(item)
            if match is None or int(match[2]) * 60 + int(match[3]) > OFFSET_MINUTES_MAX:
                raise ValueError(self.expected)
            seconds = (int(match[2]) * 60 + int(match[3])) * 60
            found.append(-seconds if match[1] == "-" else seconds)
        if len(found) > OFFSETS_MAX:
            raise ValueError(self.expected)
        return tuple(found)

    def format(self, value: tuple[int, ...]) -> str:
        """See Kind."""
        signs = ("-" if one < 0 else "+" for one in value)
        minutes = (divmod(abs(one) // 60, 60) for one in value)
        return ",".join(
            f"{sign}{hour:02}:{minute:02}"
            for sign, (hour, minute) in zip(signs, minutes, strict=True)
        )


class Overrides:
    """Connection limits of addresses, as Kafka writes them."""

    wire_type = STRING
    expected = "ADDRESS:COUNT,... with numeric addresses, as in 10.0.0.7:200"

    def parse(self, text: str) -> str:
        """See Kind."""
        try:
            parse_overrides(text)
        except ValueError:
            raise ValueError(self.expected) from None
        return text

    def format(self, value: str) -> str:
        """See Kind."""
        return value


class QuorumSizes:
    """Ensemble, write quorum and ack quorum."""

    wire_type = STRING
    expected = "three numbers E,W,A with E >= W >= A >= 1, as in 3,3,2"

    def parse(self, text: str) -> tuple[int, int, int]:
        """See Kind."""
        parts = text.split(",")
        if len(parts) != 3 or not all(_WHOLE.fullmatch(part) for part in parts):
            raise ValueError(self.expected)
        ensemble, write, ack = map(int, parts)
        if not ensemble >= write >= ack >= 1:
            raise ValueError(
                f"{self.expected}: no number may exceed the one before it or be below 1"
            )
        return ensemble, write, ack

    def format(self, value: tuple[int, int, int]) -> str:
        """See Kind."""
        return ",".join(map(str, value))


class TopicDefault:
    """The default of a topic setting, for topics that do not set it."""

    __slots__ = ("definition",)

    def __init__(self, definition: ConfigDefinition) -> None:
        self.definition = definition

    @property
    def wire_type(self) -> int:
        """See Kind."""
        return self.definition.type

    @property
    def expected(self) -> str:
        """See Kind."""
        return f"a value of {self.definition.name} ({self.definition.documentation.rstrip('.')})"

    def parse(self, text: str) -> str:
        """See Kind."""
        if not self.definition.check(text):
            raise ValueError(self.expected)
        return text

    def format(self, value: str) -> str:
        """See Kind."""
        return value
