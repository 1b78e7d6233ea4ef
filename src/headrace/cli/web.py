"""Calls of a broker's HTTP interface.

Invariants: a problem returned by a broker becomes a CommandFailed with its next step; if it names
another broker, the call is repeated there. One connection per call.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import click

from headrace.cli.failures import CONFLICT, FAILED, NOT_FOUND, UNREACHABLE, USAGE, CommandFailed
from headrace.cli.session import host_and_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_HTTP: Final = "127.0.0.1:9180"
MISDIRECTED: Final = 421
HOPS_MAX: Final = 3
MOVING_S: Final = 5.0
"""How long brokers' views of ownership may differ, for example after a move or for a new group."""
PAUSE_S: Final = 0.1
PAGE_ITEMS_MAX: Final = 1_000
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
_EXIT_CODES: Final = {400: USAGE, 404: NOT_FOUND, 409: CONFLICT, 503: UNREACHABLE}
HTTP = click.option(
    "--http",
    metavar="HOST:PORT",
    default=DEFAULT_HTTP,
    show_default=True,
    envvar="HEADRACE_HTTP",
    show_envvar=True,
    help="HTTP address of a broker.",
)


def ask_each(
    address: str,
    timeout_s: float,
    method: str,
    path: str,
    body: Any = None,
    *,
    query: dict[str, Any] | None = None,
    wait_s: float = 0,
) -> Iterator[Any]:
    """Yield the response of each broker that serves a part of the topic, starting with `address`;
    page by page if responses have pages.

    For responses with the fields `broker` (the responding one) and `elsewhere` (partitions served
    by others); adds `asked_at`, its address. Raises CommandFailed if a broker cannot be queried.
    """
    given = {name: value for name, value in (query or {}).items() if value is not None}
    asked: set[int] = set()
    left = {-1: address}
    while left:
        web = Web(left.pop(next(iter(left))), timeout_s)
        for answer in web.ask_pages(method, path, body, query=given, wait_s=wait_s):
            asked.add(answer["broker"])
            yield answer | {"asked_at": web.answered_at}
        for other in answer["elsewhere"]:
            number = other.get("broker", {}).get("id", -1)
            if number >= 0 and number not in asked:
                left[number] = other["broker"]["http"]


def require_all(answers: list[dict[str, Any]], effect: str) -> None:
    """Raises CommandFailed if no responding broker serves some partition."""
    missed = set.intersection(
        *({other["partition"] for other in answer["elsewhere"]} for answer in answers)
    )
    if missed:
        numbers = ", ".join(map(str, sorted(missed)))
        raise CommandFailed(
            f"no broker of partitions {numbers} can be reached; {effect}",
            "Repeat the command when they are served; see headrace topic describe",
            FAILED,
        )


def require_none_failed(answer: dict[str, Any], effect: str) -> None:
    """For responses about a whole topic: raises CommandFailed if some partition is missing."""
    failed = answer.get("failed", [])
    if failed:
        numbers = ", ".join(str(one["partition"]) for one in failed)
        error = failed[0]["error"]
        raise CommandFailed(
            f"partitions {numbers} failed: {effect} ({error['detail']})",
            str(error["next_step"]).capitalize(),
            FAILED,
        )


def place_of(topic: str, other: dict[str, Any]) -> tuple[str, int]:
    """(topic, partition) of an item of `elsewhere`. A partition that every queried broker lists
    there was served by none of them: no broker serves it, or it moved meanwhile."""
    return other.get("topic", topic), other["partition"]


def path_of(*parts: str) -> str:
    """A path under /v1, with quoted parts."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


class Web:
    """The HTTP interface of the cluster, starting with one broker."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self.answered_at = address
        """The broker that sent the last response."""

    def ask(self, method: str, path: str, body: Any = None, *, wait_s: float = 0) -> Any:
        """Return a broker's response; `wait_s`: how long it may wait. Raises CommandFailed."""
        address, hops = self._address, 0
        deadline_s = time.monotonic() + MOVING_S
        status, answer = self._ask(address, method, path, body, wait_s)
        while status == MISDIRECTED:
            if "broker" in answer and hops < HOPS_MAX:
                address, hops = answer["broker"]["http"], hops + 1
            elif time.monotonic() < deadline_s:
                time.sleep(PAUSE_S)
                address, hops = self._address, 0
            else:
                break
            status, answer = self._ask(address, method, path, body, wait_s)
        self.answered_at = address
        if status < 400:
            return answer
        raise CommandFailed(
            str(answer.get("detail", f"the broker at {address} responded with status {status}")),
            str(answer.get("next_step", "")).capitalize(),
            _EXIT_CODES.get(status, FAILED),
        )

    def ask_pages(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any],
        wait_s: float = 0,
    ) -> Iterator[Any]:
        """Yield a broker's response, page by page if it has pages. Raises CommandFailed."""
        page = dict(query)
        while True:
            parameters = f"?{urlencode(page)}" if page else ""
            answer = self.ask(method, f"{path}{parameters}", body, wait_s=wait_s)
            yield answer
            if "next_page_token" not in answer:
                return
            page["page_token"] = answer["next_page_token"]

    def _ask(
        self, address: str, method: str, path: str, body: Any, wait_s: float
    ) -> tuple[int, Any]:
        host, port = host_and_port(address)
        connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s + wait_s)
        data = None if body is None else json.dumps(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise CommandFailed(
                f"the broker's HTTP interface at {address} did not respond ({error})",
                "Check that a broker is running there, or set its address with --http HOST:PORT",
                UNREACHABLE,
            ) from None
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, {"detail": text.decode(errors="replace").strip()[:200]}
