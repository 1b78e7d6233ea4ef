"""The OpenAPI 3.1 document of the HTTP API, served at `/openapi.json`.

Invariants: operations under `/v1` describe themselves (`operations`), the rest is data here. A test
compares it with the routes, another with a real broker's answers. Its version is the interface's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.http.answers import components
from headrace.http.operations import PROBLEM_CONTENT, described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.http.operations import Operation

_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_ERRORS = {
    "405": {"description": "Only GET and HEAD are served here.", "content": PROBLEM_CONTENT},
    "421": {
        "description": "A loopback listener received another machine's host name.",
        "content": PROBLEM_CONTENT,
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
            "description": "True while records are rejected for lack of space; reads continue.",
        },
        "reason": {"type": "string", "description": "Why this broker cannot write now."},
        "damaged_partitions": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Partitions that are not served because their data is damaged.",
        },
        "problems": {
            "type": "array",
            "description": "What is not served here, or not as it was set. The broker stays ready"
            " while it serves any partition.",
            "items": {
                "type": "object",
                "required": ["what", "reason"],
                "properties": {"what": {"type": "string"}, "reason": {"type": "string"}},
            },
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
        "description": "Any broker serves all partitions and groups: it forwards what others own.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": {
        "/healthz": _get(
            "health",
            "Check that the process is alive and its event loop runs.",
            {"200": _answer("Alive.", _TEXT)},
        ),
        "/readyz": _get(
            "readiness",
            "Check that the broker can serve Kafka clients and store their records.",
            {
                "200": _answer("Ready.", _READINESS),
                "503": _answer(
                    "Starting, stopping, disk full, or not ready for `reason`.", _READINESS
                ),
            },
        ),
        "/metrics": _get(
            "metrics",
            "Get the broker's metrics in Prometheus format.",
            {
                "200": _answer("Metrics, one per line.", _TEXT),
                "503": _answer("Too many concurrent requests.", _TEXT),
            },
        ),
        "/openapi.json": _get(
            "interface",
            "Get this document.",
            {"200": _answer("OpenAPI 3.1.", {"application/json": {"schema": {"type": "object"}}})},
        ),
    },
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document, with these operations."""
    paths = _DOCUMENT["paths"] | described(operations)
    return _DOCUMENT | {"paths": paths, "components": {"schemas": components()}}
