"""Empties a topic through a Kafka share group: librdkafka's share consumer, one process.

    python -m headrace_bench.systems.share_load BOOTSTRAP TOPIC each|hundred|confirmed

Runs until it is killed, and prints as JSON each half second how many messages it has acknowledged.
`each`: every message is marked by itself and sent with the next fetch, as librdkafka does;
`hundred`: polls of a hundred, each accepted with the next fetch; `confirmed`: a request for each
message, and the next one after its answer.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

REPORT_S = 0.5
_POLL_S = 0.5


def configure(bootstrap: str, group: str, config: dict[str, str]) -> None:
    """Set a group's configuration."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def rate_of(line: str) -> float | None:
    """Messages a second since the line before; None of what is no such line."""
    try:
        said = json.loads(line)
        return float(said["messages"] / said["seconds"])
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


def main(bootstrap: str, topic: str, acknowledge: str) -> None:
    """Empty the topic, until killed."""
    group = f"{topic}-{acknowledge}"
    configure(bootstrap, group, {"share.auto.offset.reset": "earliest"})
    mode = "implicit" if acknowledge == "hundred" else "explicit"
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
    # By polls of 500, its default, it waits for fetches that have no room: a quarter of the rate.
    settings |= {"share.acknowledgement.mode": mode, "max.poll.records": "100"}
    consumer = ShareConsumer(settings)
    consumer.subscribe([topic])
    done, told_at = 0, time.perf_counter()
    while True:
        messages = consumer.poll(_POLL_S)
        for message in messages:
            if message.error() is not None:
                raise SystemExit(f"receiving failed: {message.error()}")
            if mode == "explicit":
                consumer.acknowledge(message)
            if acknowledge == "confirmed":
                failed = [one for one in consumer.commit_sync(30).values() if one is not None]
                if failed:
                    raise SystemExit(f"an acknowledgement failed: {failed[0]}")
                done += 1
                done, told_at = _tell(done, told_at)
        if acknowledge != "confirmed":
            done += len(messages)
        done, told_at = _tell(done, told_at)


def _tell(done: int, told_at: float) -> tuple[int, float]:
    now = time.perf_counter()
    if now - told_at < REPORT_S:
        return done, told_at
    print(json.dumps({"messages": done, "seconds": now - told_at}), flush=True)
    return 0, now


if __name__ == "__main__":
    main(*sys.argv[1:])
