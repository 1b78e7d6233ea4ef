"""Self-test: security holes planted in a real broker, each of which its case must find.

Invariants: as in `wire.bugs`: `spoiled.py` patches the process before it starts.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from headrace.broker.topics import topics
from headrace.broker.topics.topic import Topic
from headrace.kafka import apis, dispatch
from headrace.kafka.handlers import producers
from headrace.runtime import disk, log_text
from headrace_verify.wire.bugs import Bug, found_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_verify.store_bugs import Patch


_SERVE = "headrace.cli.serve"
"""Below the root package; patched by name before the process starts."""


def log_what_clients_call_themselves_as_it_is(patch: Patch) -> None:
    take = dispatch.KafkaFace.dispatch
    log = logging.getLogger("headrace.planted")  # dispatch's own is limited

    def telling(self: Any, connection: Any, frame: memoryview) -> None:
        size = int.from_bytes(frame[8:10])
        log.info("a request of %s", bytes(frame[10 : 10 + size]).decode(errors="replace"))
        take(self, connection, frame)

    patch(dispatch.KafkaFace, "dispatch", telling)
    patch(log_text, "one_line", lambda text: text)


def keep_topics_in_folders_of_their_names(patch: Patch) -> None:
    create = topics.Topics.create

    async def careless(self: Any, name: str, *arguments: Any, **settings: Any) -> Any:
        data_dir = sys.argv[sys.argv.index("--data-dir") + 1]
        # pathlib and os.path alike: an absolute name replaces everything before it.
        os.makedirs(os.path.join(data_dir, name.replace("\0", "")[:99]), exist_ok=True)
        return await create(self, name, *arguments, **settings)

    patch(topics.Topics, "create", careless)


def show_tracebacks_to_who_asks_oddly(patch: Patch) -> None:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse

    from headrace.http import app, monitoring

    async def limited(self: Any, request: Any) -> Any:
        int(request.query_params.get("limit", "0").replace("-", "minus"))
        return PlainTextResponse("ok\n")

    patch(monitoring.Monitoring, "_healthz", limited)
    patch(app, "Starlette", lambda routes: Starlette(routes=routes, debug=True))


def log_the_environment_at_debug(patch: Patch) -> None:
    serve = importlib.import_module(_SERVE)
    prepare = serve._prepare

    def telling(log_level: str) -> None:
        prepare(log_level)
        for name, value in os.environ.items():  # one line each: a long line is truncated
            serve.log.debug("started with %s=%s", name, value)

    patch(serve, "_prepare", telling)


def let_everybody_read_the_data(patch: Patch) -> None:
    patch(disk, "FILE_MODE", 0o644)
    patch(importlib.import_module(_SERVE), "_OWNER_ONLY_UMASK", 0)


def answer_for_any_host(patch: Patch) -> None:
    from headrace.http import app

    patch(app, "is_own_host", lambda _host: True)


def take_internal_topics_for_ordinary_ones(patch: Patch) -> None:
    patch(Topic, "is_internal", False)


def give_a_producer_the_id_that_it_names(patch: Patch) -> None:
    init = producers.init_producer_id

    async def believing(node: Any, request: Any, context: Any) -> Any:
        if request.transactional_id is None and request.producer_id >= 0:
            given = {"producer_id": request.producer_id, "producer_epoch": request.producer_epoch}
            return {"error_code": 0, **given}
        return await init(node, request, context)

    handlers: Any = {**dispatch._HANDLERS, apis.INIT_PRODUCER_ID: believing}
    patch(dispatch, "_HANDLERS", handlers)


BUGS = (
    Bug(log_what_clients_call_themselves_as_it_is, "what clients call themselves", "control"),
    Bug(keep_topics_in_folders_of_their_names, "topic names lead nowhere", "strange names"),
    Bug(show_tracebacks_to_who_asks_oddly, "odd query options", "500"),
    Bug(log_the_environment_at_debug, "secrets of the environment", "the log tells a secret"),
    Bug(let_everybody_read_the_data, "files are their owners alone", "mode"),
    Bug(answer_for_any_host, "other hosts names", "status 200"),
    Bug(give_a_producer_the_id_that_it_names, "producers do not pass", "gets it"),
    Bug(take_internal_topics_for_ordinary_ones, "what is the brokers own", "__consumer_offsets"),
)


def find(
    bug: Bug, seed: int, on_progress: Callable[[float, str], None], seconds: float = 4
) -> list[str]:
    """What its case has found; empty if not the bug."""
    from headrace_verify.security.run import plan, run_security

    return found_by(bug, run_security(plan(seconds, seed, (bug.case,), bug.name), on_progress))
