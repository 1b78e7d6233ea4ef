"""What the HTTP face offers, as an OpenAPI 3.1 document: served at `/openapi.json`.

Invariants: operations under `/v1` describe themselves (`operations`), the rest is data here. A test
compares it with the routes, another with a real broker's answers. Its version is the interface's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.http.operations import described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.http.operations import Operation

_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_ERRORS = {
    "405": {"description": "Only GET and HEAD are served here."},
    "421": {
        "description": "A listener of this machine alone was asked under another host's name.",
        "content": _TEXT,
    },
}
_READY: dict[str, Any] = {
    "type": "object",
    "required": ["ready"],
    "additionalProperties": False,
    "properties": {
        "ready": {"type": "boolean"},
        "disk_full": {
            "type": "boolean",
            "description": "True while records are refused for lack of space; reading goes on.",
        },
        "reason": {"type": "string", "description": "Why nothing can be written here now."},
        "damaged_partitions": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Partitions that are not served, because their data is damaged.",
        },
    },
}


def _answer(description: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": content}


def _get(name: str, summary: str, responses: dict[str, Any]) -> dict[str, Any]:
    return {"get": {"operationId": name, "summary": summary, "responses": responses | _ERRORS}}


_READINESS = {"application/json": {"schema": _READY}}
_DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Headrace: topics, records, queues, groups, health and metrics of a broker",
        "version": "1",
        "description": "Each broker serves the partitions that it owns and the groups that it"
        " coordinates; a problem with status 421 names the broker to ask.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": {
        "/healthz": _get(
            "health",
            "The process is alive and its loop turns.",
            {"200": _answer("Alive.", _TEXT)},
        ),
        "/readyz": _get(
            "readiness",
            "Kafka clients can be served, and what they send can be stored.",
            {
                "200": _answer("Ready.", _READINESS),
                "503": _answer(
                    "Starting, stopping, the disk is full, or `reason` says why not.", _READINESS
                ),
            },
        ),
        "/metrics": _get(
            "metrics",
            "Figures of the broker, as Prometheus reads them.",
            {
                "200": _answer("Figures, one a line.", _TEXT),
                "503": _answer("Too many ask at once.", _TEXT),
            },
        ),
        "/openapi.json": _get(
            "interface",
            "This document.",
            {"200": _answer("OpenAPI 3.1.", {"application/json": {"schema": {"type": "object"}}})},
        ),
    },
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document, with these operations."""
    return _DOCUMENT | {"paths": _DOCUMENT["paths"] | described(operations)}
