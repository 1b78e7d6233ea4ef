"""A received HTTP message goes down through the packages, and climbs once at most.

A climb is a call from a package into one above it (the order is that of `.importlinter`) that hands
something over. What `runtime` calls is no climb: it returns a value to what waits for it. Neither
is a question without arguments, such as whether the client has disconnected.
"""

from __future__ import annotations

import configparser
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.unit.http.test_logins import ask, basic, served

if TYPE_CHECKING:
    from types import FrameType

RULES = Path(__file__).resolve().parents[3] / ".importlinter"


def levels() -> dict[str, int]:
    """Package -> its height."""
    config = configparser.ConfigParser()
    config.read(RULES)
    lines = config["importlinter:contract:layers"]["layers"].strip().splitlines()
    return {
        f"headrace.{package}": height
        for height, line in enumerate(reversed(lines))
        for package in re.findall(r"\w+", line)
    }


class Climbs:
    """Records the climbs while it is entered: (caller, what is called)."""

    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()
        self.packages: set[str] = set()
        self._levels = levels()

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)

    def _package(self, frame: FrameType) -> str | None:
        """The package that a call is in; None: another project's."""
        name = ".".join(frame.f_globals.get("__name__", "").split(".")[:2])
        return name if name in self._levels else None

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        called = self._package(frame)
        if event != "call" or called is None:
            return
        self.packages.add(called)
        caller = frame.f_back
        while caller is not None and self._package(caller) is None:
            caller = caller.f_back
        calling = None if caller is None else self._package(caller)
        if caller is None or calling is None or calling == "headrace.runtime":
            return
        arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if self._levels[called] > self._levels[calling] and set(arguments) - {"self"}:
            self.found.add((caller.f_code.co_qualname, frame.f_code.co_qualname))


async def test_a_received_message_climbs_once_at_most():
    async with served() as address:
        climbs: dict[str, set[tuple[str, str]]] = {}
        down = {"headrace.broker", "headrace.log", "headrace.storage", "headrace.coordination"}

        async def send(method: str, path: str, body: Any = None) -> Any:
            with Climbs() as seen:
                login = f"Authorization: {basic('alice', 'pä:ss')}"
                status, answer = await ask(address, method, path, login, body=body)
            assert status < 300, answer
            climbs[f"{method} {path}"] = seen.found
            down.difference_update(seen.packages)
            return json.loads(answer.partition("\r\n\r\n")[2])

        await send("POST", "/v1/topics", {"name": "jobs"})
        earliest = {"set": {"share.auto.offset.reset": "earliest"}}
        await send("PATCH", "/v1/groups/g/config", earliest)
        record = {"key": "a", "value": "b"}
        await send("POST", "/v1/topics/jobs/records", {"records": [record]})
        await send("GET", "/v1/topics/jobs/records?partition=0&offset=0")
        received = await send("POST", "/v1/queues/jobs/g/receive", {"max": 10})
        receipts = [one["receipt"] for one in received["messages"]]
        await send("POST", "/v1/queues/jobs/g/settle", {"ack": receipts})
        await send("GET", "/v1/queues/jobs/g")
        assert len(receipts) == 1
        assert not down, "the walk has not gone down to these"
        shown = ("PartitionDeliveries._add_records", "messages_for.<locals>.show")
        assert climbs["POST /v1/queues/jobs/g/receive"] == {shown}
        assert max(map(len, climbs.values())) == 1, climbs
