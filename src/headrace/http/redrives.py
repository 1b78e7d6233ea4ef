"""Redrives of dead letters over HTTP, as tasks.

Invariants: one implementation, `headrace dead redrive`, which runs in a process of its own: a Kafka
client reaches every broker's partitions, and its transactions make each record come once, however
often a redrive is cancelled, lost with its broker, or started again, here or on the command line.
Its memory and its CPU time are not the broker's. One redrive of a topic at a time. It may do what
its client may: it logs in as the client, or, where the inter-broker listener takes no logins,
everything that it may need is checked before it starts.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.tenant_shares import PLACES_PARTS, Held, TenantShares
from headrace.broker.services.background_tasks import RUNNING, TooManyTasks
from headrace.errors import HeadraceError
from headrace.http.background import TaskOperations
from headrace.http.dead_letters import LETTER
from headrace.http.operations import TOPIC, Call, Json, fields, integer, listing, needing, text
from headrace.http.problems import Contradiction
from headrace.runtime.child_process import (
    HELPER_VARIABLE,
    run_python,  # noqa: TID251 - the package's own command; arguments are checked values
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from headrace.broker.services.background_tasks import BackgroundTask, BackgroundTasks
    from headrace.broker.services.services import Services

RATE_MAX: Final = 1_000_000
LETTERS_MAX: Final = 500
"""That one redrive names."""
RUNNING_MAX: Final = 4
"""Processes at a time."""
RIGHTS_S: Final = 1.0
"""Between two looks at the rights of a client whose redrive does not log in as itself."""


class RedriveFailed(HeadraceError):
    """The redrive has ended before its end: what it had sent by then stays sent."""


class RedriveOperations:
    """The operations on redrives."""

    def __init__(self, services: Services, tasks: BackgroundTasks) -> None:
        self._services = services
        self._tasks = tasks
        body = fields(
            ["topic"],
            topic=TOPIC,
            to=TOPIC,
            group=text(255, 1),
            reason=text(1_000, 1),
            rate=integer(1, RATE_MAX),
            loop_max=integer(1, 1_000),
            letters=listing(LETTER, LETTERS_MAX, 1),
            dry_run={"type": "boolean"},
        )
        body["not"] = needing("rate", true=["dry_run"]) | {
            "description": "'rate' has no effect with 'dry_run': omit it"
        }
        summary = "Redrive the records of a dead letter topic in a task, each once."
        self.operations = TaskOperations(services, "redrive", summary, body, self._begin).operations

    async def _begin(self, call: Call) -> BackgroundTask:
        body = call.body
        topic = self._services.topics.get(body["topic"])
        if "to" in body:
            self._services.topics.get(body["to"])
        running = [task for task in self._tasks.list("redrive") if task.state == RUNNING]
        if any(task.asked["topic"] == topic.name for task in running):
            raise Contradiction(
                f"a redrive of {topic.name} runs already: cancel it, or wait for its end"
            )
        shares = TenantShares("redrives running", RUNNING_MAX, "this broker", PLACES_PARTS)
        held = Held()
        for task in running:
            held.add(task.holder)
        if excess := shares.excess_of(call.holder, held):
            raise TooManyTasks(f"{excess}: wait for one to end")
        host, port = self._services.cluster.kafka_address
        arguments = ["-m", "headrace", f"--bootstrap={host}:{port}", "dead", "redrive"]
        access = self._services.helper_access(call.session)
        asked = call.shown(body) if access.is_of_client else body
        asked = {**asked, "group": body["group"]} if "group" in body else asked  # any client's key
        arguments += [
            f"--{option}={asked[option]}"
            for option in ("to", "group", "reason", "rate")
            if option in asked
        ]
        arguments += [f"--loop-max={body['loop_max']}"] if "loop_max" in body else []
        arguments += [f"--letter={one}" for one in body.get("letters", ())]
        arguments += ["--dry-run"] if body.get("dry_run") else []
        arguments += ["--lines", "--", asked["topic"]]
        if not access.is_of_client and "to" not in body:
            # The command has other rights: no rule that denies the client a topic would stop it.
            call.rights.require_each(
                Operation.WRITE, ResourceType.TOPIC, self._services.topics.names()
            )
        environment = {HELPER_VARIABLE: json.dumps(dict(access.settings))}

        async def work(task: BackgroundTask) -> None:
            if access.is_of_client:
                await _follow(task, arguments, environment)
            else:
                await _while_allowed(call, _follow(task, arguments, environment))

        return self._tasks.start("redrive", body, work, call.holder)


async def _while_allowed(call: Call, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, which has other rights than the client, as long as the client has its own.

    Raises Unauthorized, AuthenticationFailed, and what `work` raises.
    """

    async def watch() -> None:
        while True:
            await asyncio.sleep(RIGHTS_S)
            call.check_again()

    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            await work
            watching.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _follow(
    task: BackgroundTask, arguments: list[str], environment: Mapping[str, str]
) -> None:
    """Run the command. Its lines are the task's progress and what became of each letter, as many as
    fit; the last one is its result, which is in the progress, too."""

    def take(line: str) -> None:
        event: Json = json.loads(line)
        if "done" in event:
            task.progress = event
        elif "letter" not in event:
            task.progress = {**task.progress, "result": event}
            task.add(event, len(line))
        elif task.is_full:
            task.progress["left_out"] = task.progress.get("left_out", 0) + 1
        else:
            task.add(event, len(line))

    try:
        code, errors = await run_python(arguments, take, environment)
    except (OSError, ValueError) as error:  # a null byte cannot be an argument
        raise RedriveFailed(f"no process can be started for it: {error}") from error
    if code:
        said = " ".join(errors.replace("headrace: ", "", 1).split())
        raise RedriveFailed(f"{said[:1_000] or 'it ended'} (exit code {code})")
