"""Tasks over HTTP: start one, see its progress and results, cancel it.

Invariants: one shape for searches, traces and redrives. A task lives in the memory of the broker
that was asked to start it, and is lost with it; any broker lists, shows, follows and cancels those
of all. A broker that does not answer may have the task that is asked for, and is named.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse

from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.tenant_shares import SharedPlaces
from headrace.broker.services.background_tasks import RESULTS_MAX, TaskUnknown, unknown_task
from headrace.broker.services.broker_settings import BROKER_ID_MAX
from headrace.broker.services.owner_calls import checked, split
from headrace.errors import HeadraceError, PeerVersionDiffers, Retriable
from headrace.http.event_streams import EventStream, event
from headrace.http.operations import LIMIT_DEFAULT, PAGE, Call, Json, Operation, integer, text
from headrace.http.partitions import failed_brokers
from headrace.http.problems import Contradiction, details

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.responses import Response

    from headrace.broker.services.background_tasks import BackgroundTask
    from headrace.broker.services.services import Services
    from headrace.http.schemas import Schema

TASK: Final = text(64, 1)
_BROKER: Final = integer(0, BROKER_ID_MAX, description="Ask this broker alone. Default: all.")
FOLLOWERS_MAX: Final = 64
EVENT_RESULTS: Final = 50
POLL_S: Final = 0.2
"""Between two looks at a task that is followed: it knows no followers."""
POLL_OTHERS_S: Final = 1.0
"""The same of a task of another broker."""
KEEP_ALIVE_S: Final = 15.0
"""Between two comments to a client that follows a quiet task: proxies close silent connections."""
LIST_S: Final = 5.0
"""How long a list waits for other brokers."""
PAGE_BYTES: Final = 4 * 1024 * 1024
"""Of the results that a broker sends at a time; the last one may go beyond."""


class TaskOperations:
    """The operations on the tasks of one kind."""

    def __init__(
        self,
        services: Services,
        kind: str,
        summary: str,
        body: Schema,
        begin: Callable[[Call], Awaitable[BackgroundTask]],
    ) -> None:
        """`kind`: its name in the plural with an s is the path's. `begin` starts a task."""
        self._tasks, self._calls = services.tasks, services.calls
        self._broker_id = services.calls.broker_id
        self._kind = kind
        self._begin = begin
        self._followers = SharedPlaces(f"clients that follow {plural(kind)}", FOLLOWERS_MAX)
        path, title = f"/v1/{plural(kind)}", kind.capitalize()
        named: dict[str, Schema] = {"task": TASK}
        self.operations = [
            Operation("POST", path, f"start{title}", summary, self._start, body=body,
                      success="202"),
            Operation("GET", path, f"list{title}Tasks", f"List the {plural(kind)} of all brokers.",
                      self._list, {"broker": _BROKER}),
            Operation("GET", f"{path}/{{task}}", f"get{title}",
                      f"Get the progress and results of a {kind}.", self._get,
                      {**named, **PAGE, "broker": _BROKER}),
            Operation("GET", f"{path}/{{task}}/events", f"follow{title}",
                      f"Stream the results and progress of a {kind} as server-sent events.",
                      self._follow, named | {"from": integer(0, RESULTS_MAX, default=0)},
                      headers={"last-event-id": text(20)}, media_type="text/event-stream"),
            Operation("DELETE", f"{path}/{{task}}", f"cancel{title}",
                      f"Cancel a {kind}, or remove a finished one; until it ends, it is `running`.",
                      self._cancel, named),
        ]  # fmt: skip
        self._calls.offer_of_broker(f"{plural(kind)}.list", self._list_here)
        self._calls.offer_of_broker(f"{plural(kind)}.get", self._get_here)
        self._calls.offer_of_broker(f"{plural(kind)}.cancel", self._cancel_here)

    async def _start(self, call: Call) -> Response:
        task = await self._begin(call)
        task.owner = str(call.session.principal)
        headers = {"Location": f"/v1/{plural(self._kind)}/{task.id}"}
        return JSONResponse(self._public(self._shown(task)), 202, headers)

    def _shown(self, task: BackgroundTask) -> Json:
        shown: Json = {
            "id": task.id,
            "broker": self._broker_id,
            "state": task.state,
            "asked": task.asked,
            "started_ms": task.started_ms,
            "progress": task.progress,
            "result_count": len(task.results),
            "owner": task.owner,
        }
        if task.ended_ms >= 0:
            shown["ended_ms"] = task.ended_ms
        if task.error is not None:
            shown["error"] = details(task.error)
        return shown

    @staticmethod
    def _public(shown: Json) -> Json:
        """Without what decides who may see it."""
        return {name: value for name, value in shown.items() if name != "owner"}

    # --- what each broker knows: as texts, in which another one finds only JSON ---------------

    async def _list_here(self, asked: Any) -> str:
        checked(asked)
        return json.dumps([self._shown(task) for task in self._tasks.list(self._kind)])

    async def _get_here(self, asked: Any) -> list[str] | None:
        """The task and its results [first, end), fewer if they are large; None: it is not here."""
        task_id, first, end = checked(asked, str, int, int)
        try:
            task = self._tasks.get(self._kind, task_id)
        except TaskUnknown:
            return None
        found = [json.dumps(self._shown(task))]
        bytes_left = PAGE_BYTES
        for one in task.results[first:end]:
            found.append(json.dumps(one))
            bytes_left -= len(found[-1])
            if bytes_left <= 0:
                break
        return found

    async def _cancel_here(self, asked: Any) -> str | None:
        (task_id,) = checked(asked, str)
        try:
            return json.dumps(self._shown(await self._tasks.cancel(self._kind, task_id)))
        except TaskUnknown:
            return None

    # --- of all brokers -----------------------------------------------------------------------

    async def _list(self, call: Call) -> Json:
        of = [call.query["broker"]] if "broker" in call.query else None
        name = f"{plural(self._kind)}.list"
        answers = await self._calls.ask_brokers(name, [], limit_s=LIST_S, of=of)
        found, failed = split(answers)
        mine = [
            self._public(task)
            for broker in found.values()
            for task in json.loads(broker)
            if call.rights.is_mine(task["owner"], Right.DESCRIBE)
        ]
        return {plural(self._kind): mine, **failed_brokers(failed)}

    async def _find(
        self, call: Call, right: Right, first: int = 0, end: int = 0, at: int | None = None
    ) -> tuple[Json, list[Json]]:
        """(the task of this path, its results from `first` on); `at`: the broker that has it.

        Raises TaskUnknown, also for one of another principal; BrokerUnreachable if a broker that
        may have it does not answer.
        """
        task_id = call.path["task"]
        asked, name = (task_id, first, end), f"{plural(self._kind)}.get"
        failed: dict[int, HeadraceError] = {}
        found = await self._calls.ask_broker(name, self._broker_id if at is None else at, asked)
        if found is None and at is None:
            answers, failed = split(await self._calls.ask_others(name, asked))
            found = next(filter(None, answers.values()), None)
        if found is None:
            for error in failed.values():
                is_older = isinstance(error, PeerVersionDiffers)  # and has no such tasks
                if isinstance(error, Retriable) and not is_older:
                    raise error
            raise unknown_task(self._kind, task_id)
        task, *results = map(json.loads, found)
        if not call.rights.is_mine(task["owner"], right):
            raise unknown_task(self._kind, task_id)
        return task, results

    async def _get(self, call: Call) -> Json:
        first = _first(call.query.get("page_token", ""))
        limit = call.query.get("limit", LIMIT_DEFAULT)
        at = call.query.get("broker")
        task, results = await self._find(call, Right.DESCRIBE, first, first + limit, at)
        answer = self._public(task) | {"results": results}
        end = first + len(results)
        if results and end < task["result_count"]:
            answer["next_page_token"] = _token(end)
        return answer

    async def _follow(self, call: Call) -> Response:
        """Each event has the number of results that came so far as its id, so that a client that
        comes back gets the others alone."""
        last = call.request.headers.get("last-event-id", "")
        first = int(last) if last.isascii() and last.isdigit() else call.query.get("from", 0)
        task, _ = await self._find(call, Right.DESCRIBE)
        place = self._followers.take(call.holder)
        return EventStream(self._events(task["broker"], int(first), call), place)

    async def _events(self, broker: int, first: int, call: Call) -> AsyncIterator[bytes]:
        said: Json = {}
        quiet = 0
        poll_s = POLL_S if broker == self._broker_id else POLL_OTHERS_S
        turns = round(KEEP_ALIVE_S / poll_s)
        while True:
            try:
                call.check_again()  # rights may have been withdrawn
                asked = first, first + EVENT_RESULTS, broker
                task, results = await self._find(call, Right.DESCRIBE, *asked)
            except HeadraceError as error:
                yield event("problem", call.shown(details(error)))
                return
            if results:
                first += len(results)
                part: Json = {"results": results}
                call.rights.filter(part)
                yield event("results", call.shown(part), str(first))
                if first < task["result_count"]:
                    continue
            now = call.shown(self._public(task))
            quiet = 0 if now != said else quiet + 1
            if now != said:
                said = now
                yield event("progress", now, str(first))
            if "ended_ms" in now:
                yield event("end", now, str(first))
                return
            if quiet % turns == turns - 1:
                yield b": still there\n\n"
            await asyncio.sleep(poll_s)

    async def _cancel(self, call: Call) -> Json:
        task, _ = await self._find(call, Right.ALTER)
        call.body = task["asked"]  # what the audit log names
        asked = [task["id"]]
        name = f"{plural(self._kind)}.cancel"
        shown = await self._calls.ask_broker(name, task["broker"], asked)
        if shown is None:
            raise unknown_task(self._kind, task["id"])
        return self._public(json.loads(shown))


def plural(kind: str) -> str:
    """The kind's name in a path."""
    return f"{kind}es" if kind.endswith("ch") else f"{kind}s"


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
