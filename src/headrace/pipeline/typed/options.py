"""Options of typed values, parsed.

Invariants: pure. A contradiction is refused before anything is read. Secrets are in no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from headrace.pipeline.errors import OptionInvalid
from headrace.schemas.registry import LATEST, RegistryAccess

if TYPE_CHECKING:
    from collections.abc import Mapping

Format = Literal["avro", "json", "protobuf"]
FORMATS = ("avro", "json", "protobuf")
NAMES = (
    "valueFormat", "valueSchemaFile", "valueMessage", "valueSubject", "valueSchemaVersion",
    "valueSchemaId",
    "schemaRegistry", "schemaRegistry.user", "schemaRegistry.password", "onUndecodable",
)  # fmt: skip
_PLACES = ("prefix", "header")
_REACTIONS = ("column", "fail")


@dataclass(frozen=True)
class TypedOptions:
    """What values are: `file` is a path; `subject` None is `<topic>-value`.

    `message` is the full name of a Protobuf message, "" the first of its file. `version` of the
    subject gives the columns; "latest" may be another one in each process.
    """

    format: Format
    file: str | None = None
    message: str = ""
    subject: str | None = None
    registry: RegistryAccess | None = None
    version: str = LATEST
    id_in_header: bool = False
    fails: bool = False


def parse_typed(options: Mapping[str, str]) -> TypedOptions | None:
    """Parse options in lower case; None: values are bytes. Raises OptionInvalid."""
    kind = options.get("valueformat", "binary").lower()
    given = [name for name in NAMES[1:] if name.lower() in options]
    if kind == "binary":
        if given:
            raise OptionInvalid(f"The option {given[0]} needs valueFormat: {', '.join(FORMATS)}.")
        return None
    if kind not in FORMATS:
        raise OptionInvalid(
            f"Option valueFormat must be binary, {', '.join(FORMATS)}, not {kind!r}."
        )
    url, file = options.get("schemaregistry"), options.get("valueschemafile")
    if (url is None) == (file is None):
        raise OptionInvalid("Set valueSchemaFile or schemaRegistry, one of them, with valueFormat.")
    if url is not None and not url.startswith(("http://", "https://")):
        raise OptionInvalid("The option schemaRegistry must be an http:// or https:// address.")
    if url is not None and "@" in url:  # it is shown in errors
        raise OptionInvalid(
            "The option schemaRegistry must not contain a user or a password. Use"
            " schemaRegistry.user and schemaRegistry.password."
        )
    version = options.get("valueschemaversion", LATEST)
    if version != LATEST and (not version.isdecimal() or url is None):
        raise OptionInvalid(
            f"Option valueSchemaVersion must be {LATEST} or a number, with schemaRegistry, not"
            f" {version!r}."
        )
    registry = None
    if url is not None:
        user, password = (options.get(f"schemaregistry.{name}", "") for name in _LOGIN)
        registry = RegistryAccess(url.rstrip("/"), user, password)
    return TypedOptions(
        cast("Format", kind),
        file,
        options.get("valuemessage", ""),
        options.get("valuesubject"),
        registry,
        version,
        id_in_header=_word(options, "valueSchemaId", _PLACES) == "header",
        fails=_word(options, "onUndecodable", _REACTIONS) == "fail",
    )


_LOGIN = ("user", "password")


def _word(options: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    word = options.get(name.lower(), known[0])
    if word not in known:
        raise OptionInvalid(f"Option {name} must be {' or '.join(known)}, not {word!r}.")
    return word
