"""A schema registry that speaks Confluent's API, as a reader and a writer of topics need it.

Invariants: reads only; schemas are immutable, so each is asked for once per process. Answers are
bounded. The address is in errors, the login never.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from headrace.schemas.errors import RegistryUnavailable, SchemaUnusable

_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 8 << 20
_NOT_FOUND = 404
_SERVER_ERROR = 500
LATEST = "latest"


@dataclass(frozen=True)
class RegistryAccess:
    """A registry that speaks Confluent's API."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)


class RegisteredSchema(NamedTuple):
    """A schema; its id is -1 if it was asked for by GUID, its guid "" if the registry has none."""

    id: int
    guid: str
    type: str
    text: str


class SchemaUnknown(Exception):
    """The registry has no such schema."""


def of_subject(
    access: RegistryAccess, subject: str, version: str, *, is_serialized: bool = False
) -> RegisteredSchema:
    """A version of a subject, or its latest. Raises SchemaUnusable, RegistryUnavailable."""
    found = _version(access, subject, version)
    schema = _schema_of(access, found, int(found.get("id", -1)))
    return by_id(access, schema.id, is_serialized=True) if is_serialized else schema


def latest_version(access: RegistryAccess, subject: str) -> str:
    """The number of a subject's latest version. Raises SchemaUnusable, RegistryUnavailable."""
    return str(_version(access, subject, LATEST).get("version", LATEST))


def _version(access: RegistryAccess, subject: str, version: str) -> dict[str, Any]:
    path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}"
    try:
        return _get(access, path)
    except SchemaUnknown as error:
        raise SchemaUnusable(
            f"The registry {access.url} has no {version} version of a subject {subject!r}. Register"
            " the schema, or name the subject with valueSubject."
        ) from error


def by_reference(
    access: RegistryAccess, reference: int | bytes, *, is_serialized: bool = False
) -> RegisteredSchema:
    """The schema with an id, or a GUID. Raises SchemaUnknown, SchemaUnusable,
    RegistryUnavailable."""
    if isinstance(reference, int):
        return by_id(access, reference, is_serialized=is_serialized)
    return by_guid(access, reference, is_serialized=is_serialized)


@lru_cache(maxsize=1_024)
def by_id(
    access: RegistryAccess, schema_id: int, *, is_serialized: bool = False
) -> RegisteredSchema:
    """The schema with an id; a Protobuf file is asked for as a descriptor. Raises SchemaUnknown,
    RegistryUnavailable."""
    query = "?format=serialized" if is_serialized else ""
    return _schema_of(access, _get(access, f"/schemas/ids/{schema_id}{query}"), schema_id)


@lru_cache(maxsize=1_024)
def by_guid(
    access: RegistryAccess, guid: bytes, *, is_serialized: bool = False
) -> RegisteredSchema:
    """The schema with a GUID. Raises SchemaUnknown, RegistryUnavailable."""
    query = "?format=serialized" if is_serialized else ""
    return _schema_of(access, _get(access, f"/schemas/guids/{UUID(bytes=guid)}{query}"), -1)


def _schema_of(access: RegistryAccess, found: dict[str, Any], schema_id: int) -> RegisteredSchema:
    if found.get("references"):
        raise SchemaUnusable(
            f"Schema {schema_id} of {access.url} refers to others, which is not supported yet. Use"
            " a schema without references, or valueSchemaFile."
        )
    kind = str(found.get("schemaType", "AVRO"))
    return RegisteredSchema(schema_id, str(found.get("guid", "")), kind, str(found["schema"]))


def _get(access: RegistryAccess, path: str) -> dict[str, Any]:
    request = urllib.request.Request(access.url + path)  # noqa: S310 - checked with the options
    request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
    if access.user:
        login = base64.b64encode(f"{access.user}:{access.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            found = json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        with error:
            if error.code == _NOT_FOUND:
                raise SchemaUnknown(path) from error
            if error.code < _SERVER_ERROR:
                raise SchemaUnusable(
                    f"The registry {access.url} refuses {path} (HTTP {error.code}). Check"
                    " schemaRegistry.user and schemaRegistry.password."
                ) from error
        raise _unavailable(access, f"HTTP {error.code}") from error
    except (OSError, ValueError) as error:
        raise _unavailable(access, str(error)) from error
    if not isinstance(found, dict) or not isinstance(found.get("schema", ""), str):
        raise _unavailable(access, "its answer is no schema")
    return found


def _unavailable(access: RegistryAccess, reason: str) -> RegistryUnavailable:
    return RegistryUnavailable(
        f"The schema registry {access.url} did not answer: {reason}. Nothing is lost: start the"
        " job again when it is up."
    )
