"""Operations of the HTTP interface: one definition makes the route, the checks and the document.

Invariants: nothing reaches a handler that its operation's schemas do not allow. While HTTP clients
are not authenticated, operations are served on loopback alone. Every input is bounded: the body in
bytes, depth by the parser, lists and texts by the schemas.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.tenant_shares import Holder
from headrace.broker.services.fair_shares import FREE, path_of, user_of
from headrace.broker.services.tenant_view import OF_ALL, TenantView, written_view_of
from headrace.coordination.quotas.entities import NAME_LENGTH_MAX, PRODUCER, REQUEST
from headrace.errors import (
    AuthenticationFailed,
    HeadraceError,
    RequestInvalid,
    Retriable,
)
from headrace.http import schemas
from headrace.http.access import ACCESS
from headrace.http.answer_parts import PROBLEM as ANSWERED_PROBLEM
from headrace.http.answer_room import AnswerMemory, AnswerRoom
from headrace.http.answers import ANSWERS, component
from headrace.http.authorization import Rights
from headrace.http.body_memory import Body, BodyMemory
from headrace.http.connection import CONNECTION, LOGIN, PLACE, PRINCIPAL, SCOPE
from headrace.http.event_streams import HeldStream
from headrace.http.login_watch import LoginWatch
from headrace.http.page_tokens import key_before, page_token
from headrace.http.problems import PROBLEM, PathRoute, problem, refused
from headrace.http.request_figures import HttpFigures
from headrace.http.shapes import example_of, schema_of
from headrace.http.tenancy import enter, leave, leave_response
from headrace.records.attributes import TRACEPARENT
from headrace.records.tenant_names import CLOSE, OPEN, tenant_of
from headrace.records.tenant_names import TENANT as TENANT_NAME
from headrace.runtime.loop_turns import Paced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import Receive, Scope, Send

    from headrace.broker.security.access import Access
    from headrace.broker.services.services import Services
    from headrace.http.schemas import Schema

CLIENT_ID, CLIENT_ID_DEFAULT = "x-client-id", "http"
NAMES, KEYS = "headrace-names", "keys"
"""With this header, operators write and get names of tenants as they are stored."""
"""The header that names whose quotas a call is charged to; clients are not authenticated."""
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
BODY_S_MAX: Final = 60.0
"""A request holds one of the server's tasks while its body arrives."""
LIMIT_DEFAULT, LIMIT_MAX, LINES_MAX = 100, 1_000, 10_000
Json = dict[str, Any]
CREATED: Final = "201"
INT64_MAX: Final = 2**63 - 1


@dataclass(slots=True)
class Call:
    """A request that its operation's schemas allow."""

    request: Request
    path: dict[str, Any]
    query: dict[str, Any]
    body: Json
    session: ClientSession
    """Whose quotas it is charged to."""
    size_bytes: int = 0
    """Of the body, as it was sent."""
    charge: int | None = None
    """What its quota is charged; None: the bytes of records."""
    rights: Rights = field(kw_only=True)
    """What its client may do."""
    room: AnswerRoom = field(kw_only=True)
    view: TenantView = field(kw_only=True)
    """How its client writes names; `path`, `query` and `body` have keys."""

    def shown(self, value: Any) -> Any:
        """A part of a stream as its client may see it; other answers are translated as a whole."""
        return leave(self.view, value)

    def check_again(self) -> None:
        """After a wait: raise AuthenticationFailed if the client's login has ended, Unauthorized
        if a right was withdrawn."""
        login = self.request.scope.get("state", {}).get(LOGIN)
        if login is not None and not login.holds():
            raise AuthenticationFailed("the login has ended while its request was answered")
        self.rights.check(self.path, self.body)

    @property
    def holder(self) -> Holder:
        """For whom the places count that it takes."""
        return Holder(tenant_of(self.view.prefix), user_of(self.session))

    @property
    def waits(self) -> bool:
        """Whether it may take as long as its client wants."""
        return bool(self.query.get("wait_ms") or self.body.get("wait_ms"))

    @property
    def is_dry_run(self) -> bool:
        """Whether to check only, and change nothing."""
        return bool(self.query.get("dry_run"))


Handler = Callable[[Call], Awaitable[Json | Response]]


@dataclass(slots=True, frozen=True)
class Operation:
    """One method of one path. `body` None: it takes none."""

    method: str
    path: str
    name: str
    summary: str
    handle: Handler
    parameters: dict[str, Schema] = field(default_factory=dict)
    """By name: in the path where it is named there, else in the query."""
    body: Schema | None = None
    is_body_required: bool = True
    headers: dict[str, Schema] = field(default_factory=dict)
    """Request headers that it knows, by name in lower case."""
    lines: str = ""
    """The field of the body that may also be sent as NDJSON, an item a line; empty: none."""
    media_type: str = "application/json"
    other_media_types: tuple[str, ...] = ()
    """That an answer may have instead, with the same schema."""
    success: str = "200"
    quota: str = ""
    """The quota that its calls are charged to; empty: none."""
    is_read: bool = False
    """Whether a success shows what only an owner knows, as that of each GET does. Other successes
    were stored."""
    is_checked: bool = True
    """False: its handler checks the body, for speed; the schema says the same."""
    is_public: bool = False
    """Whether it also answers clients that are not authenticated, on any listener."""
    own_access: Access | None = None
    """What its client must be allowed to do; None: as the table in `http/access` says."""

    @property
    def is_reading(self) -> bool:
        """Whether its success shows something, rather than that it was stored."""
        return self.is_read or self.method == "GET"

    @property
    def access(self) -> Access:
        """What its client must be allowed to do. Raises LookupError for an operation without."""
        return self.own_access or ACCESS[self.name]


def integer(low: int, high: int, **more: Any) -> Schema:
    """An integer's schema."""
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def text(length_max: int, low: int = 0, **more: Any) -> Schema:
    """A text's schema."""
    return {"type": "string", "minLength": low, "maxLength": length_max, **more}


def listing(items: Schema, count_max: int, low: int = 0) -> Schema:
    """A list's schema."""
    return {"type": "array", "items": items, "minItems": low, "maxItems": count_max}


def fields(required: Sequence[str] = (), **properties: Schema) -> Schema:
    """The schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "required": [*required],
        "properties": properties,
        "additionalProperties": False,
    }


def needing(*names: str, true: Sequence[str] = ()) -> Schema:
    """The schema of an object that has these fields, and others that are true: a part of `anyOf`
    or `not`."""
    is_true = {"type": "boolean", "enum": [True]}
    return {
        "type": "object",
        "required": [*names, *true],
        "properties": dict.fromkeys(true, is_true),
    }


OF_TENANT: Final = f"({OPEN}{TENANT_NAME}{CLOSE})?"
"""What operators write before the names of tenants."""
TOPIC: Final = text(283, 1, pattern=f"^({OF_TENANT}|{TENANT_NAME}/)[a-zA-Z0-9._-]{{1,249}}$")
GROUP: Final = text(8_000, 1)
SET_GROUP: Final = text(289, 1)
"""A share group, or another group with settings: 255 characters, and 34 of a tenant."""
SLASH: Final = "\udc2f"
"""Stands for an escaped slash within a part of a path, which no text contains otherwise."""
PARTITION: Final = integer(0, 1_000_000)
OFFSET: Final = integer(0, INT64_MAX)
_OF_QUOTAS: Final = frozenset({"listQuotas", "changeQuota", "deleteQuota"})
"""Whoever has used up a quota may change it."""
DRY_RUN: Final = {"type": "boolean", "description": "Check everything, change nothing."}
PAGE: Final[dict[str, Schema]] = {
    "limit": integer(1, LIMIT_MAX, default=LIMIT_DEFAULT),
    "page_token": text(2_000, description="`next_page_token` of the page before."),
}
NDJSON: Final = "application/x-ndjson"
ETAG: Final[dict[str, Schema]] = {
    "if-match": text(100, 1, description="The ETag of the settings that are to be changed.")
}
BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


# --- pages -----------------------------------------------------------------------------------


def page(items: Sequence[Json], key: str, call: Call, name: str) -> Json:
    """The part of `items`, which are sorted by `key`, that the request asks for."""
    after = key_before(call.query.get("page_token", ""))
    limit = call.query.get("limit", LIMIT_DEFAULT)
    items = call.rights.shown(items, name)
    rest = [item for item in items if item[key] > after] if after else items
    found: Json = {name: rest[:limit]}
    if len(rest) > limit:
        found["next_page_token"] = page_token(str(rest[limit - 1][key]))
    return found


# --- requests --------------------------------------------------------------------------------


async def _received(request: Request, held: Body) -> bytearray:
    """The bytes of the body. Raises RequestInvalid, ClientDisconnect, QuotaExceeded."""
    parts = bytearray()
    has_more = True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts += message.get("body", b"")
        has_more = message.get("more_body", False)
        if len(parts) > BODY_BYTES_MAX:
            raise RequestInvalid(
                f"a body has at most {BODY_BYTES_MAX} bytes: send several requests"
            )
        held.grow(len(parts))
    held.received()
    return parts


async def read_body(request: Request, held: Body, *, is_required: bool, lines: str = "") -> Json:
    """The request's JSON object; none stands for an empty one, unless it `is_required`.

    NDJSON, where it is taken, is the list `lines` of an object. Raises RequestInvalid,
    ClientDisconnect, QuotaExceeded.
    """
    try:
        async with asyncio.timeout(BODY_S_MAX) as held.timer:
            parts = await _received(request, held)
    except TimeoutError:
        held.check()
        raise RequestInvalid(
            f"the body did not arrive within {BODY_S_MAX:.0f} s: send it faster, or in several"
            " requests"
        ) from None
    request.state.body_bytes = len(parts)
    if not parts and not is_required:
        return {}
    # A form of another site cannot send this type without the browser asking first.
    media_type = request.headers.get("content-type", "").split(";")[0].strip()
    if lines and media_type == NDJSON:
        return {lines: _parse_lines(parts)}
    if media_type != "application/json":
        raise RequestInvalid("send JSON, with Content-Type: application/json")
    try:
        body = _loads(parts)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"the body is not valid JSON ({error})"[:200]) from error
    if not isinstance(body, dict):
        raise RequestInvalid("the body is not a JSON object")
    return body


def _loads(data: bytearray | bytes) -> Any:
    """Raises ValueError also for numbers that are none in JSON (RFC 8259, section 6)."""
    return json.loads(data, parse_constant=_no_number, parse_float=_finite)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return value


def _parse_lines(data: bytearray) -> list[Any]:
    """One JSON value a line; empty lines are passed over. Raises RequestInvalid."""
    found: list[Any] = []
    for number, line in enumerate(data.split(b"\n", LINES_MAX), 1):
        if number > LINES_MAX:
            raise RequestInvalid(f"a body has at most {LINES_MAX} lines: send several requests")
        if not line.strip():
            continue
        try:
            found.append(_loads(line))
        except (ValueError, RecursionError) as error:
            raise RequestInvalid(
                f"line {number} of the body is not valid JSON ({error})"[:200]
            ) from error
    return found


def wants_lines(request: Request) -> bool:
    """Whether the client takes NDJSON rather than JSON."""
    return NDJSON in request.headers.get("accept", "")


def as_lines(items: Sequence[Json], **headers: str) -> Response:
    """NDJSON: an item a line."""
    data = "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in items)
    return Response(data, headers=headers, media_type=NDJSON)


def _parsed(name: str, given: str, schema: Schema) -> Any:
    """A parameter of a path or a query. Raises RequestInvalid."""
    value: Any = given
    if schema["type"] == "integer":
        digits = given.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise RequestInvalid(f"{name!r} is not an integer")
        value = int(given)
    elif schema["type"] == "boolean":
        if given not in BOOLEANS:
            raise RequestInvalid(f"{name!r} is true or false")
        value = BOOLEANS[given]
    schemas.check(value, schema, repr(name))
    return value


async def _call(
    services: Services,
    operation: Operation,
    request: Request,
    session: ClientSession,
    held: Body,
    room: AnswerRoom,
) -> Call:
    """Raises RequestInvalid."""
    path = {
        name: _parsed(name, value.replace(SLASH, "/"), operation.parameters[name])
        for name, value in request.path_params.items()
    }
    query: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        schema = operation.parameters.get(name)
        if schema is None or name in path:
            raise RequestInvalid(f"unknown parameter {name[:50]!r}")
        if name in query:
            raise RequestInvalid(f"the parameter {name!r} is given twice")
        query[name] = _parsed(name, value, schema)
    body: Json = {}
    if operation.body is not None:
        body = await read_body(
            request, held, is_required=operation.is_body_required, lines=operation.lines
        )
        if operation.is_checked:
            schemas.check(body, operation.body, "the body")
    for name, schema in operation.headers.items():
        if name in request.headers:
            schemas.check(request.headers[name], schema, f"the header {name}")
    size_bytes = getattr(request.state, "body_bytes", 0)
    rights = Rights(services, session, operation.access, operation.name)
    view = written_view_of(services, session)
    if view.is_operator and request.headers.get(NAMES) == KEYS:
        view = OF_ALL
    enter(view, operation.name, operation.access, {"path": path, "query": query, "body": body})
    return Call(
        request, path, query, body, session, size_bytes, rights=rights, room=room, view=view
    )


def session_of(request: Request) -> ClientSession:
    """The client that sent a request."""
    state = request.scope.get("state", {})
    principal = state.get(PRINCIPAL, ANONYMOUS)
    host = "" if request.client is None else request.client.host
    session = ClientSession("HTTP", host, principal)
    name = request.headers.get(CLIENT_ID, CLIENT_ID_DEFAULT)
    session.client_id = name[:NAME_LENGTH_MAX]
    session.scope, session.place = state.get(SCOPE), state.get(PLACE)
    return session


def routes(
    services: Services,
    operations: Sequence[Operation],
    *,
    is_local: bool,
    figures: HttpFigures | None = None,
    bodies: BodyMemory | None = None,
    answers: AnswerMemory | None = None,
) -> list[PathRoute]:
    """The routes of `operations`, one for each path; `figures`: where responses are counted."""
    counted = figures or HttpFigures()
    if bodies is None or answers is None:
        config = services.settings.current
        bodies = bodies or BodyMemory(config.request_memory_bytes_max)
        answers = answers or AnswerMemory(config.response_bytes_max, asyncio.get_running_loop())
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        assert operation.access, operation.name
        for schema in operation.parameters.values():
            schemas.verify(schema)
        if operation.body is not None and operation.is_checked:
            schemas.verify(operation.body)
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [
        PathRoute(
            path,
            _Resource(services, found, counted, bodies, answers, is_local=is_local),
            methods=[*found],
        )
        for path, found in by_path.items()
    ]


async def _handled(operation: Operation, call: Call) -> Json | Response:
    """The handler's answer; an administrative change is noted, also one that failed."""
    failed = True
    try:
        found = await operation.handle(call)
        failed = False
    finally:
        if not call.is_dry_run:
            call.rights.note_change(call.path, call.body, failed=failed)
    return found


def _shown(call: Call, found: Json | Response) -> Response:
    """What the client gets of a handler's answer: what it may see, by the names that it uses."""
    if isinstance(found, Response):
        return leave_response(call.view, found)
    call.rights.filter(found)
    return JSONResponse(call.shown(found))


def _release(found: Json | Response) -> None:
    """Give back what an answer holds that is not sent."""
    if isinstance(found, HeldStream):
        found.release()


class _Resource:
    """What answers on one path. An application of its own: Starlette would put two layers around
    each call of a function."""

    def __init__(
        self,
        services: Services,
        operations: Mapping[str, Operation],
        figures: HttpFigures,
        bodies: BodyMemory,
        answers: AnswerMemory,
        *,
        is_local: bool,
    ) -> None:
        self._services = services
        self._answers = answers
        self._bodies = bodies
        self._figures = figures
        self._operations = operations
        self._is_local = is_local
        self._watch = LoginWatch()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        guard = services.cluster.guard
        term = 0 if guard is None else guard.term_now()
        request = Request(scope, receive)
        session = session_of(request)
        room = AnswerRoom(self._answers, scope.get("state", {}).get(CONNECTION))
        share = services.fair_shares.of(session)
        room.path = *path_of(session, share), room.is_slow
        now_ns = services.appends.clock.now_ns  # the loop's own time counts milliseconds
        begun_ns = now_ns()
        response: Response | None = None
        try:
            with Body(self._bodies, share) as held:
                answering = self._answer(request, session, held, room)
                paced = Paced(services.turns, room.path, answering, now_ns)
                try:
                    response = await paced
                finally:  # whatever its handler ended with
                    services.quotas.take(session, REQUEST, paced.spent_ns)
            if guard is not None and guard.term_now() != term:
                response = self._owned(request, response)
            room.answered(response, paced.spent_ns)
            await response(scope, receive, send)
            if room.held_bytes:
                room.sent()
        except ClientDisconnect:
            pass  # before it had sent its request, or a read has begun
        finally:
            if room.held_bytes:
                room.rest()
            if response is not None:
                self._note(request, response, now_ns() - begun_ns)

    def _note(self, request: Request, response: Response, took_ns: int) -> None:
        name, host = self._operation(request).name, request.client
        client = "" if host is None else f"{host.host}:{host.port}"
        traceparent = request.headers.get(TRACEPARENT, "")
        self._figures.note(name, client, response.status_code, took_ns, traceparent)

    def _owned(self, request: Request, response: Response) -> Response:
        """The response of a broker that may not have been an owner all the time."""
        if not self._needs_owner(request, response):
            return response
        _release(response)
        return refused(
            Retriable(
                "this broker stopped serving its partitions while it answered, and another one may"
                " serve them by now"
            )
        )

    def _operation(self, request: Request) -> Operation:
        return self._operations["GET" if request.method == "HEAD" else request.method]

    def _needs_owner(self, request: Request, response: Response) -> bool:
        """Whether only an owner may give this response: it shows state, or refuses because of it.
        What was stored is stored."""
        return self._operation(request).is_reading or response.status_code >= 400

    async def _answer(
        self, request: Request, session: ClientSession, held: Body, room: AnswerRoom
    ) -> Response:
        operation = self._operation(request)
        if operation.is_reading and room.is_of_no_use:  # it may have waited for its turn
            raise ClientDisconnect
        is_closed = not self._is_local and not operation.is_public
        if is_closed and session.principal == ANONYMOUS:
            return problem(
                403,
                "beyond loopback this is served to authenticated clients alone",
                "use a listener that authenticates (headrace.http.security.protocol), or ask from"
                " the broker's own machine",
            )
        quotas = self._services.quotas
        is_charged = bool(operation.quota) and quotas.is_active
        try:
            connection = request.scope.get("state", {}).get(CONNECTION)
            self._services.connections.join(connection, session)
            if quotas.is_active and not operation.is_public and operation.name not in _OF_QUOTAS:
                quotas.check(session, REQUEST, operation.quota)
            if is_charged:
                await quotas.wait_slowed(session, operation.quota)
            call = await _call(self._services, operation, request, session, held, room)
            found = await self._in_share(operation, call, session)
        except HeadraceError as error:
            return self._refused(session, error)
        if operation.is_reading:
            try:
                call.check_again()  # it may have waited
            except HeadraceError as error:
                _release(found)
                return self._refused(session, error)
        response = _shown(call, found)
        if is_charged:
            amount = call.charge
            if amount is None:
                is_producer = operation.quota == PRODUCER
                amount = call.size_bytes if is_producer else len(getattr(response, "body", b""))
            quotas.take(session, operation.quota, amount, is_stored=True)
        return response

    async def _in_share(
        self, operation: Operation, call: Call, session: ClientSession
    ) -> Json | Response:
        """The handler's answer. A write holds its tenant's share, and other requests may wait long
        (see `fair_shares`). Raises QuotaExceeded."""
        charge = FREE
        if not operation.is_public or session.principal != ANONYMOUS:
            charge = await self._services.fair_shares.enter(session, call.size_bytes)
        try:
            if operation.is_reading:
                charge.pass_turn()
            call.check_again()  # it may have waited, for its body, too
            await self._look_up(call)
            if not call.waits:
                return await _handled(operation, call)
            async with self._watch.watched(call.check_again):
                return await _handled(operation, call)
        finally:
            charge.release()

    def _refused(self, session: ClientSession, error: HeadraceError) -> Response:
        return leave_response(written_view_of(self._services, session), refused(error))

    async def _look_up(self, call: Call) -> None:
        """Get the topics of `call` that this broker does not know: another one may have created
        them just now."""
        for name in (call.path.get("topic"), call.body.get("topic"), call.body.get("to")):
            if isinstance(name, str) and name:
                await self._services.topics.look_up(name)


# --- the document ----------------------------------------------------------------------------

PROBLEM_CONTENT: Final[Json] = {
    PROBLEM: {"schema": schema_of(ANSWERED_PROBLEM), "example": example_of(ANSWERED_PROBLEM)}
}
_ERRORS: Final = {
    "400": "The request is invalid.",
    "403": "Available on loopback only, or forbidden by the broker.",
    "404": "The topic, group or task does not exist.",
    "405": "The path does not allow the method.",
    "409": "The request conflicts with the current state.",
    "412": "The settings have changed since the ETag in If-Match.",
    "421": "A loopback listener received another machine's host name.",
    "429": "A quota is exhausted: retry after the seconds in Retry-After.",
    "503": "Temporarily unavailable: retry.",
}


def described(operations: Sequence[Operation]) -> dict[str, Json]:
    """The paths of the OpenAPI document."""
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return paths


def _described(operation: Operation) -> Json:
    answered = {"schema": {"$ref": f"#/components/schemas/{component(operation.name)}"}}
    answered["example"] = example_of(ANSWERS[operation.name])
    media_types = operation.media_type, *operation.other_media_types
    content = dict.fromkeys(media_types, answered)
    answers: Json = {operation.success: {"description": "Done.", "content": content}}
    if operation.success == CREATED and "dry_run" in operation.parameters:
        answers["200"] = {"description": "Checked: nothing was created.", "content": content}
    for status, meaning in _ERRORS.items():
        answers[status] = {"description": meaning, "content": PROBLEM_CONTENT}
    found: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": answers,
    }
    parameters = [
        _parameter(operation, name, schema) for name, schema in operation.parameters.items()
    ]
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": schema}
        for name, schema in operation.headers.items()
    ]
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        found["requestBody"] = {
            "required": operation.is_body_required,
            "content": {"application/json": {"schema": operation.body}},
        }
    if operation.lines:
        found["description"] = (
            f"Also accepts Content-Type: {NDJSON}, one item of `{operation.lines}` per line."
        )
    return found


def _parameter(operation: Operation, name: str, schema: Schema) -> Json:
    is_in_path = f"{{{name}}}" in operation.path
    return {
        "name": name,
        "in": "path" if is_in_path else "query",
        "required": is_in_path,
        "schema": schema,
    }
