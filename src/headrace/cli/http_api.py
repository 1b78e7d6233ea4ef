"""Calls of a broker's HTTP interface, for commands that Kafka's protocol has no request for.

Invariants: an answer that is an error becomes a CommandFailed with the broker's own words and next
step. Nothing but the standard library is imported, and no proxy is asked.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.failures import CONFLICT, FAILED, NOT_FOUND, UNREACHABLE, USAGE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_HTTP: Final = "127.0.0.1:9180"
TIMEOUT_S: Final = 30.0
_EXIT_CODES: Final = {400: USAGE, 404: NOT_FOUND, 409: CONFLICT, 503: UNREACHABLE}
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))

HTTP = click.option(
    "--http",
    "address",
    metavar="HOST:PORT",
    default=DEFAULT_HTTP,
    envvar="HEADRACE_HTTP",
    show_default=True,
    show_envvar=True,
    help="The HTTP address of a broker that serves the topic.",
)


def call(address: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The answer to one request. Raises CommandFailed."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{address}{path}",
        data,
        {"Content-Type": "application/json"} if data else {},
        method=method,
    )
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refused(error) from None
    except (OSError, ValueError) as error:
        raise CommandFailed(
            f"cannot ask http://{address}: {getattr(error, 'reason', error)}; nothing was changed",
            "Is a broker running there? `headrace serve` prints its HTTP address; name it with"
            " --http HOST:PORT (or HEADRACE_HTTP)",
            UNREACHABLE,
        ) from None


def _refused(error: urllib.error.HTTPError) -> CommandFailed:
    problem: dict[str, Any] = {}
    try:
        problem = json.load(error)
        detail, next_step = problem["detail"], problem["next_step"]
    except (ValueError, KeyError, OSError):
        detail, next_step = f"the broker answered {error.code} {error.reason}", ""
    broker = problem.get("broker") if error.code == 421 else None
    if broker:
        next_step = f"Ask the broker that serves it: --http {broker['http']}"
    return CommandFailed(detail, next_step, _EXIT_CODES.get(error.code, FAILED))


def path_of(*parts: str) -> str:
    """The path below /v1 of these names."""
    return "/v1/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)


def pages(address: str, path: str, name: str, **query: Any) -> Iterator[dict[str, Any]]:
    """The items `name` of all pages."""
    given = {key: value for key, value in query.items() if value is not None}
    while True:
        answer = call(address, "GET", f"{path}?{urllib.parse.urlencode(given)}")
        yield from answer[name]
        if "next_page_token" not in answer:
            return
        given["page_token"] = answer["next_page_token"]
