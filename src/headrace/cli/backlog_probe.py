"""`headrace backlog probe`: the delay of a message from its producer to a share group's consumer.

Invariants: sends real messages to the topic and receives them through its own share group over
HTTP, so it measures the broker, its disk and its queue, and takes no messages from application
groups. Other consumers of the topic see the probes, which have the header `headrace-probe`, by
which a group's filter can exclude them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import click

from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.output import AS_JSON, print_json, say
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.queue import Milliseconds
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

HEADER: Final = "headrace-probe"
GROUP_PREFIX: Final = "headrace-probe."
WAIT_MS: Final = 10_000


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@click.option("--partition", "-p", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--count", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--every", type=Milliseconds(), default="100ms", show_default=True)
@HTTP
@AS_JSON
@click.pass_obj
def probe(session: CliSession, /, topic: str, **options: Any) -> None:
    """Measure the delivery delay by sending, receiving and acknowledging messages one by one.

    Consumers of TOPIC see the probes, which have the header headrace-probe. A share group can
    exclude them with the filter "headrace-probe" IS NULL.
    """
    web, run = Web(session), uuid4().hex[:12]
    group = GROUP_PREFIX + run
    config = {"set": {"share.auto.offset.reset": "latest", "headrace.share.filter.sql":
                      f"\"{HEADER}\" = '{run}'"}}  # fmt: skip
    group_path = path_of("groups", group)
    web.ask("PATCH", f"{group_path}/config", config)
    rounds: list[dict[str, float]] = []
    try:
        path = path_of("queues", topic, group)
        web.ask("POST", f"{path}/receive", {"max": 1})  # the group starts here
        for number in range(options["count"]):
            begun_s = time.perf_counter()
            rounds.append(_round(web, topic, path, options["partition"], f"{run}", number))
            rest_s = options["every"] / 1000 - (time.perf_counter() - begun_s)
            time.sleep(max(rest_s, 0.0))
    finally:
        reset = {"reset": [*config["set"]]}
        web.ask("PATCH", f"{group_path}/config", reset)
        web.ask("DELETE", group_path)
    result: dict[str, Any] = {"topic": topic, "partition": options["partition"],
                              "count": len(rounds)}  # fmt: skip
    for name in ("stored_ms", "received_ms", "acknowledged_ms"):
        result[name] = _summary([one[name] for one in rounds])
    if options["as_json"]:
        print_json(result)
        return
    for name in ("stored_ms", "received_ms", "acknowledged_ms"):
        one = result[name]
        label = name.removesuffix("_ms")
        say(f"{label:>12}  p50 {one['p50']:8.2f} ms  p99 {one['p99']:8.2f} ms  "
            f"max {one['max']:8.2f} ms")  # fmt: skip


def _round(
    web: Web, topic: str, path: str, partition: int, run: str, number: int
) -> dict[str, float]:
    """Return the ms from the send until one probe was stored, received and acknowledged."""
    value = f"probe {number}"
    record = {"value": value, "partition": partition, "headers": [[HEADER, run]]}
    begun_s = time.perf_counter()
    answer = web.ask("POST", f"{path_of('topics', topic, 'records')}", {"records": [record]})
    (sent,) = answer["results"]
    if not sent["ok"]:
        raise CommandFailed(
            f"a probe was refused: {sent['error']['detail']}", sent["error"]["next_step"], FAILED
        )
    stored_s = time.perf_counter()
    deadline_s = stored_s + WAIT_MS / 1000
    while True:
        body = {"max": 1, "wait_ms": WAIT_MS}
        answer = web.ask("POST", f"{path}/receive", body, wait_s=WAIT_MS / 1000)
        if answer["messages"]:
            break
        if time.perf_counter() > deadline_s:
            raise CommandFailed(
                f"a probe was stored but not received within {WAIT_MS / 1000:.0f} s",
                f"See the state of the queue: headrace trace {topic} {partition}:{sent['offset']}",
                FAILED,
            )
    (got,) = answer["messages"]
    received_s = time.perf_counter()
    assert got["value"] == value, "the group's filter lets the probes of this run through alone"
    web.ask("POST", f"{path}/settle", {"ack": [got["receipt"]]})
    ended_s = time.perf_counter()
    ends = {"stored_ms": stored_s, "received_ms": received_s, "acknowledged_ms": ended_s}
    return {name: (end_s - begun_s) * 1000 for name, end_s in ends.items()}


def _summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    p99 = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
    found = {"p50": ordered[len(ordered) // 2], "p99": p99, "max": ordered[-1]}
    return {name: round(value, 3) for name, value in found.items()}
