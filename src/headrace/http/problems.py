"""Errors over HTTP: problem details (RFC 9457) that say whether to retry, and what to do next.

Invariants: the one table from errors to status codes.
"""

from __future__ import annotations

import inspect
import re
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse
from starlette.routing import Route

from headrace import errors
from headrace.broker.services.background_tasks import TaskUnknown
from headrace.broker.services.configurations import VersionMismatch
from headrace.errors import HeadraceError, Retriable
from headrace.schemas.errors import SchemasNotConfigured

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send


class Contradiction(errors.Rejected):
    """The request fits its schema, and contradicts itself."""


PROBLEM: Final = "application/problem+json"
_SAME: Final = "correct the request before you retry it"
_AS_SAID: Final = "do what the detail says; if it names no step, no request of this kind is allowed"
_STATUS: Final[tuple[tuple[tuple[type[HeadraceError], ...], int, str], ...]] = (
    ((errors.TopicUnknown, errors.TopicIdUnknown), 404, "create the topic, or check its name"),
    ((TaskUnknown,), 404, "start it again"),
    ((errors.CredentialUnknown, errors.BrokerUnknown), 404, "list them again"),
    ((errors.SecurityDisabled,), 409, "set headrace.authorizer=acl on every broker, then restart"),
    (
        (SchemasNotConfigured,),
        409,
        "set headrace.schema.registry.url or headrace.schema.folder on every broker, then restart",
    ),
    ((VersionMismatch,), 412, "read the settings and their ETag again, then decide again"),
    ((errors.GroupUnknown,), 404, "check the group's id"),
    ((errors.RequestInvalid, errors.GroupIdInvalid), 400, _SAME),
    ((errors.GroupNotEmpty,), 409, "stop the group's consumers, then try again"),
    ((errors.AuthenticationFailed,), 401, "send valid credentials"),
    ((errors.Unauthorized,), 403, "ask an administrator: `headrace acl explain` names the rule"),
    ((errors.PolicyViolation,), 403, _AS_SAID),
    ((errors.LiteTopicsFull,), 409, _AS_SAID),
    ((errors.QuotaExceeded,), 429, "wait as long as Retry-After says, then try again"),
    ((errors.DiskFull,), 503, "make room on the broker's disk, then try again"),
    ((Retriable,), 503, "try again"),
)
"""The first that fits; 409 for what else is refused."""
_LOGIN_FAILED: Final = "the credentials are not valid"
_PATH: Final = re.compile(r"(?<![\w/:.])(?:/[\w.+@~-]+){2,}")


def status_of(error: HeadraceError) -> tuple[int, str]:
    """(the status code, what the client can do)."""
    for kinds, status, next_step in _STATUS:
        if isinstance(error, kinds):
            return status, next_step
    return 409, _SAME


def next_steps() -> set[str]:
    """All that `details` may name."""
    return {_SAME, *(step for _kinds, _status, step in _STATUS)}


def shown_text(text: str) -> str:
    """The text without paths: where files lie on the broker's machine is for its log alone."""
    return _PATH.sub("(a path)", text)


def details(error: HeadraceError) -> dict[str, Any]:
    """The problem's members."""
    if isinstance(error, errors.TopicIdUnknown):  # of another broker: a client here knows no ids
        error = errors.TopicUnknown("the topic does not exist")
    status, next_step = status_of(error)
    is_login = isinstance(error, errors.AuthenticationFailed)  # its text is for the log alone
    return {
        "type": "about:blank",
        "status": status,
        "code": type(error).__name__,
        "detail": _LOGIN_FAILED if is_login else shown_text(_text(error)),
        "retriable": isinstance(error, Retriable) and status in {429, 503},
        "next_step": next_step,
    }


def _text(error: HeadraceError) -> str:
    """What was raised without a text is named by what its class means."""
    text = str(error)
    if text == type(error).__name__:
        return (inspect.getdoc(error) or text).split("\n")[0].rstrip(".")
    return text


def refused(error: HeadraceError) -> Response:
    """The response for an error."""
    body = details(error)
    headers: dict[str, str] = {}
    if isinstance(error, errors.QuotaExceeded):
        headers["Retry-After"] = str(ceil(error.fields["throttle_ms"] / 1_000))
    return JSONResponse(body, body["status"], headers, PROBLEM)


def problem(status: int, detail: str, next_step: str) -> Response:
    """A response for an error that is not the broker's."""
    body = {
        "type": "about:blank",
        "status": status,
        "detail": detail,
        "retriable": False,
        "next_step": next_step,
    }
    return JSONResponse(body, status, media_type=PROBLEM)


class PathRoute(Route):
    """A route whose refusal of a method is problem details, too."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer on this path."""
        if self.methods is None or scope["method"] in self.methods:
            await self.app(scope, receive, send)
            return
        allowed = ", ".join(sorted(self.methods))
        refusal = problem(
            405, "this path does not allow the method of the request", f"use one of: {allowed}"
        )
        refusal.headers["Allow"] = allowed  # RFC 9110, section 15.5.6
        await refusal(scope, receive, send)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer on a path that does not exist."""
    refusal = problem(404, "this path does not exist", "see /openapi.json for the paths")
    await refusal(scope, receive, send)
