"""What the HTTP face offers, as an OpenAPI 3.1 document: served at `/openapi.json`.

Rules of the room: data. A test holds it against the routes, another against a real broker's
answers. Its version is that of the interface; what runs behind it is nobody's business here.
"""

from __future__ import annotations

from typing import Any

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


_PROBLEM: dict[str, Any] = {
    "application/problem+json": {
        "schema": {
            "type": "object",
            "required": ["type", "status", "detail", "retriable", "next_step"],
            "properties": {
                "type": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string"},
                "retriable": {"type": "boolean"},
                "next_step": {"type": "string"},
            },
        }
    }
}
_QUEUE_ERRORS = {
    "400": _answer("The request cannot be taken as it is.", _PROBLEM),
    "403": _answer("Queues are served on loopback alone.", _PROBLEM),
    "404": _answer("There is no such topic.", _PROBLEM),
    "405": {"description": "Not a method of this resource."},
    "409": _answer("The group or the topic is in the way.", _PROBLEM),
    "421": {"description": "Ask the broker that serves the topic, under its own name."},
    "503": _answer("Not now: try again.", _PROBLEM),
}


def _path_parameter(name: str, length_max: int) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": length_max}
    return {"name": name, "in": "path", "required": True, "schema": schema}


_QUEUE = [_path_parameter("topic", 249), _path_parameter("group", 255)]
_RECEIPTS: dict[str, Any] = {
    "type": "array",
    "maxItems": 10_000,
    "items": {
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "required": ["receipt"],
                "properties": {
                    "receipt": {"type": "string"},
                    "delay_ms": {"type": "integer", "minimum": -1, "maximum": 31_536_000_000},
                    "lock_ms": {"type": "integer", "minimum": -1, "maximum": 31_536_000_000},
                    "reason": {"type": "string", "maxLength": 1_000},
                },
            },
        ]
    },
}


def _queue_call(
    name: str, summary: str, body: dict[str, Any], *, is_required: bool
) -> dict[str, Any]:
    content = {"application/json": {"schema": body}}
    result = {"application/json": {"schema": {"type": "object"}}}
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "parameters": _QUEUE,
            "requestBody": {"required": is_required, "content": content},
            "responses": {"200": _answer("Done.", result), **_QUEUE_ERRORS},
        }
    }


_RECEIVE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "max": {"type": "integer", "minimum": 1, "maximum": 1_000},
        "wait_ms": {"type": "integer", "minimum": 0, "maximum": 60_000},
        "lock_ms": {"type": "integer", "minimum": -1, "maximum": 43_200_000},
    },
}
_SETTLE: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": dict.fromkeys(("ack", "nack", "extend", "dead_letter"), _RECEIPTS),
}
_READINESS = {"application/json": {"schema": _READY}}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Headrace: queues, health and metrics of a broker",
        "version": "1",
        "description": "Topics and groups are administered over Kafka's protocol.",
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
        "/v1/queues/{topic}/{group}": {
            "get": {
                "operationId": "queue",
                "summary": "Where a group stands on the topic's partitions that are served here.",
                "parameters": _QUEUE,
                "responses": {
                    "200": _answer(
                        "Per partition: offsets, lag, what is in flight.",
                        {"application/json": {"schema": {"type": "object"}}},
                    ),
                    **_QUEUE_ERRORS,
                },
            }
        },
        "/v1/queues/{topic}/{group}/receive": _queue_call(
            "receive",
            "Messages for this consumer alone, with receipts.",
            _RECEIVE,
            is_required=False,
        ),
        "/v1/queues/{topic}/{group}/settle": _queue_call(
            "settle",
            "Acknowledge, give back, extend or dead-letter messages, each by its receipt.",
            _SETTLE,
            is_required=True,
        ),
        "/openapi.json": _get(
            "interface",
            "This document.",
            {"200": _answer("OpenAPI 3.1.", {"application/json": {"schema": {"type": "object"}}})},
        ),
    },
}
