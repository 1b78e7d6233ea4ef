"""Tasks over HTTP: start one, see its progress and results, cancel it.

Invariants: one shape for searches, traces and redrives. A task lives in the memory of the broker
that was asked, and is lost with it.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse

from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.tenant_shares import SharedPlaces
from headrace.broker.services.background_tasks import RESULTS_MAX, unknown_task
from headrace.errors import HeadraceError
from headrace.http.event_streams import EventStream, event
from headrace.http.operations import LIMIT_DEFAULT, PAGE, Call, Json, Operation, integer, text
from headrace.http.problems import Contradiction, details

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.responses import Response

    from headrace.broker.services.background_tasks import BackgroundTask, BackgroundTasks
    from headrace.http.schemas import Schema

TASK: Final = text(64, 1)
FOLLOWERS_MAX: Final = 64
EVENT_RESULTS: Final = 50
POLL_S: Final = 0.2
"""Between two looks at a task that is followed: it knows no followers."""
KEEP_ALIVE_TURNS: Final = 75


class TaskOperations:
    """The operations on the tasks of one kind."""

    def __init__(
        self,
        tasks: BackgroundTasks,
        kind: str,
        summary: str,
        body: Schema,
        begin: Callable[[Call], Awaitable[BackgroundTask]],
    ) -> None:
        """`kind`: its name in the plural with an s is the path's. `begin` starts a task."""
        self._tasks = tasks
        self._kind = kind
        self._begin = begin
        self._followers = SharedPlaces(f"clients that follow {plural(kind)}", FOLLOWERS_MAX)
        path, title = f"/v1/{plural(kind)}", kind.capitalize()
        named: dict[str, Schema] = {"task": TASK}
        self.operations = [
            Operation("POST", path, f"start{title}", summary, self._start, body=body,
                      success="202"),
            Operation("GET", path, f"list{title}Tasks", f"List this broker's {plural(kind)}.",
                      self._list),
            Operation("GET", f"{path}/{{task}}", f"get{title}",
                      f"Get the progress and results of a {kind}.", self._get, {**named, **PAGE}),
            Operation("GET", f"{path}/{{task}}/events", f"follow{title}",
                      f"Stream the results and progress of a {kind} as server-sent events.",
                      self._follow, named | {"from": integer(0, RESULTS_MAX, default=0)},
                      headers={"last-event-id": text(20)}, media_type="text/event-stream"),
            Operation("DELETE", f"{path}/{{task}}", f"cancel{title}",
                      f"Cancel a {kind}, or remove a finished one.", self._cancel, named),
        ]  # fmt: skip

    async def _start(self, call: Call) -> Response:
        task = await self._begin(call)
        task.owner = str(call.session.principal)
        headers = {"Location": f"/v1/{plural(self._kind)}/{task.id}"}
        return JSONResponse(_shown(task), 202, headers)

    async def _list(self, call: Call) -> Json:
        mine = [
            task
            for task in self._tasks.list(self._kind)
            if call.rights.is_mine(task.owner, Right.DESCRIBE)
        ]
        return {plural(self._kind): [_shown(task) for task in mine]}

    def _task(self, call: Call, right: Right) -> BackgroundTask:
        """Raises TaskUnknown, also for a task of another principal."""
        task = self._tasks.get(self._kind, call.path["task"])
        self._require_mine(task, call, right)
        return task

    def _require_mine(self, task: BackgroundTask, call: Call, right: Right) -> None:
        if not call.rights.is_mine(task.owner, right):
            raise unknown_task(self._kind, task.id)

    async def _get(self, call: Call) -> Json:
        task = self._task(call, Right.DESCRIBE)
        first = _first(call.query.get("page_token", ""))
        end = first + call.query.get("limit", LIMIT_DEFAULT)
        # Copied: what this client may not see is left out of the answer, not of the results.
        answer = _shown(task) | {"results": copy.deepcopy(task.results[first:end])}
        if end < len(task.results):
            answer["next_page_token"] = _token(end)
        return answer

    async def _follow(self, call: Call) -> Response:
        """Each event has the number of results that came so far as its id, so that a client that
        comes back gets the others alone."""
        task = self._task(call, Right.DESCRIBE)
        last = call.request.headers.get("last-event-id", "")
        first = int(last) if last.isascii() and last.isdigit() else call.query.get("from", 0)
        return EventStream(self._events(task, int(first), call), self._followers.take(call.tenant))

    async def _events(self, task: BackgroundTask, first: int, call: Call) -> AsyncIterator[bytes]:
        said: Json = {}
        quiet = 0
        while True:
            try:
                call.check_again()  # rights may have been withdrawn
                self._require_mine(task, call, Right.DESCRIBE)
            except HeadraceError as error:
                yield event("problem", call.shown(details(error)))
                return
            is_over = task.ended_ms >= 0  # before its results are read: no later ones come
            while first < len(task.results):
                part: Json = {"results": copy.deepcopy(task.results[first : first + EVENT_RESULTS])}
                first += len(part["results"])
                call.rights.filter(part)
                yield event("results", call.shown(part), str(first))
            now = call.shown(_shown(task))
            quiet = 0 if now != said else quiet + 1
            if now != said:
                said = json.loads(json.dumps(now))
                yield event("progress", now, str(first))
            if is_over:
                yield event("end", now, str(first))
                return
            if quiet % KEEP_ALIVE_TURNS == KEEP_ALIVE_TURNS - 1:
                yield b": still there\n\n"
            await asyncio.sleep(POLL_S)

    async def _cancel(self, call: Call) -> Json:
        task = self._task(call, Right.ALTER)
        call.body = task.asked  # what the audit log names
        return _shown(await self._tasks.cancel(self._kind, task.id))


def plural(kind: str) -> str:
    """The kind's name in a path."""
    return f"{kind}es" if kind.endswith("ch") else f"{kind}s"


def _shown(task: BackgroundTask) -> Json:
    shown: Json = {
        "id": task.id,
        "state": task.state,
        "asked": task.asked,
        "started_ms": task.started_ms,
        "progress": task.progress,
        "result_count": len(task.results),
    }
    if task.ended_ms >= 0:
        shown["ended_ms"] = task.ended_ms
    if task.error is not None:
        shown["error"] = details(task.error)
    return shown


def _token(first: int) -> str:
    return encode_token([first])


def _first(token: str) -> int:
    if not token:
        return 0
    (first,) = decode_token(token, (int,))
    return int(first)


def encode_token(values: list[str | int]) -> str:
    """A page token that holds these values; opaque to clients."""
    plain = json.dumps(values, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(plain).decode().rstrip("=")


def decode_token(token: str, kinds: tuple[type, ...]) -> list[str | int]:
    """The reverse. Raises Contradiction unless it holds values of these kinds."""
    try:
        plain = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        values = json.loads(plain)
        if not isinstance(values, list) or tuple(map(type, values)) != kinds:
            raise ValueError
        if any(isinstance(one, int) and not -1 <= one < 2**63 for one in values):
            raise ValueError
    except (ValueError, RecursionError) as error:
        raise Contradiction(
            "page_token is not one that this interface returned: begin without one"
        ) from error
    return values
