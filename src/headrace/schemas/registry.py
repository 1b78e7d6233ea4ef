"""A schema registry that speaks Confluent's API, as a reader and a writer of topics need it.

Invariants: reads only; schemas are immutable, so each is kept when it was asked for. Answers and
what is kept are bounded. The address is in errors, the login never; it is sent to the registry's
own address alone, wherever that redirects.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple
from uuid import UUID

from headrace.runtime.clock import SystemClock
from headrace.schemas.errors import (
    RegistryRefused,
    RegistryUnavailable,
    SchemaHasReferences,
    SchemaUnusable,
)

_ANSWER_BYTES_MAX = 8 << 20
_REDIRECTS = range(300, 400)
_NOT_FOUND = 404
_SERVER_ERROR = 500
LATEST = "latest"


@dataclass(frozen=True)
class RegistryAccess:
    """A registry that speaks Confluent's API."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 10.0
    """For a connection, for each part of an answer, and for the whole of its body."""


class RegisteredSchema(NamedTuple):
    """A schema; its id is -1 if it was asked for by GUID, its guid "" if the registry has none."""

    id: int
    guid: str
    type: str
    text: str


class SchemaUnknown(Exception):
    """The registry has no such schema."""


class SchemaCache:
    """The schemas that were used last, within a number of them and of characters."""

    def __init__(self, count_max: int, length_max: int) -> None:
        self._count_max = count_max
        self._length_max = length_max
        self._length = 0
        self._schemas: OrderedDict[object, RegisteredSchema] = OrderedDict()
        self._lock = Lock()

    def get(self, key: object) -> RegisteredSchema | None:
        """A schema that is kept."""
        with self._lock:
            if key in self._schemas:
                self._schemas.move_to_end(key)
            return self._schemas.get(key)

    def put(self, key: object, schema: RegisteredSchema) -> None:
        """Keep a schema, in place of those that were not used for longest."""
        with self._lock:
            before = self._schemas.pop(key, None)
            self._length += len(schema.text) - len(before.text if before else "")
            self._schemas[key] = schema
            while len(self._schemas) > self._count_max or self._length > self._length_max:
                self._length -= len(self._schemas.popitem(last=False)[1].text)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._schemas.clear()
            self._length = 0


KNOWN = SchemaCache(1_024, 64 << 20)
"""Of this process: a schema never changes."""


def of_subject(
    access: RegistryAccess, subject: str, version: str, *, is_serialized: bool = False
) -> RegisteredSchema:
    """A version of a subject, or its latest. Raises SchemaUnusable, RegistryUnavailable."""
    found = _version(access, subject, version)
    schema = _schema_of(access, found, int(found.get("id", -1)))
    return by_reference(access, schema.id, is_serialized=True) if is_serialized else schema


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
    """The schema with an id, or a GUID; a Protobuf file is asked for as a descriptor.

    Raises SchemaUnknown, SchemaUnusable, RegistryUnavailable.
    """
    key = (access, reference, is_serialized)
    if (known := KNOWN.get(key)) is not None:
        return known
    number = reference if isinstance(reference, int) else -1
    place = f"guids/{UUID(bytes=reference)}" if isinstance(reference, bytes) else f"ids/{number}"
    query = "?format=serialized" if is_serialized else ""
    answer = _get(access, f"/schemas/{place}{query}")
    found = _schema_of(access, answer, number)
    KNOWN.put(key, found)
    return found


def _schema_of(access: RegistryAccess, found: dict[str, Any], schema_id: int) -> RegisteredSchema:
    if found.get("references"):
        raise SchemaHasReferences(
            f"Schema {schema_id} of {access.url} refers to others, which is not supported yet. Use"
            " a schema without references, or valueSchemaFile."
        )
    kind = str(found.get("schemaType", "AVRO"))
    return RegisteredSchema(schema_id, str(found.get("guid", "")), kind, str(found["schema"]))


class _OwnRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within the registry: the login is for no other address."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """See HTTPRedirectHandler; None is an HTTPError."""
        if urllib.parse.urlsplit(newurl)[:2] != urllib.parse.urlsplit(req.full_url)[:2]:
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_OwnRedirects)


def _get(access: RegistryAccess, path: str) -> dict[str, Any]:
    request = urllib.request.Request(access.url + path)  # noqa: S310 - checked with the options
    request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
    if access.user:
        login = base64.b64encode(f"{access.user}:{access.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    try:
        with _OPENER.open(request, timeout=access.timeout_s) as answer:
            found = json.loads(_body(answer, access.timeout_s))
    except urllib.error.HTTPError as error:
        with error:
            if error.code == _NOT_FOUND:
                raise SchemaUnknown(path) from error
            if error.code in _REDIRECTS:
                raise RegistryRefused(
                    f"The registry {access.url} redirects {path} to another address, which was not"
                    " asked, so that it does not get the login. If it is the registry, set"
                    " schemaRegistry.url to it."
                ) from error
            if error.code < _SERVER_ERROR:
                raise RegistryRefused(
                    f"The registry {access.url} refuses {path} (HTTP {error.code}). Check"
                    " schemaRegistry.user and schemaRegistry.password."
                ) from error
        raise _unavailable(access, f"HTTP {error.code}") from error
    except (OSError, ValueError) as error:
        raise _unavailable(access, str(error)) from error
    if not isinstance(found, dict) or not isinstance(found.get("schema", ""), str):
        raise _unavailable(access, "its answer is not a schema")
    return found


def _body(answer: Any, timeout_s: float) -> bytes:
    """What was answered. Raises OSError, ValueError."""
    clock = SystemClock()
    end_ns = clock.now_ns() + int(timeout_s * 1_000_000_000)
    found = bytearray()
    while part := answer.read1(1 << 16):
        found += part
        if len(found) > _ANSWER_BYTES_MAX:
            raise ValueError(f"its answer has more than {_ANSWER_BYTES_MAX} bytes")
        if clock.now_ns() > end_ns:
            raise TimeoutError(f"its answer took more than {timeout_s} s")
    return bytes(found)


def _unavailable(access: RegistryAccess, reason: str) -> RegistryUnavailable:
    return RegistryUnavailable(
        f"The schema registry {access.url} did not answer: {reason}. Nothing is lost: start the"
        " job again when it is up."
    )
