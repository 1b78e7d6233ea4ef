"""The process of one client: `python -m headrace_verify.blackbox.worker SPEC HISTORY`.

Invariants: exits when its standard input is closed, and immediately when the run dies.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_verify.blackbox.committed_reads import run_committed_reader
from headrace_verify.blackbox.compacted import run_compacted_consumer
from headrace_verify.blackbox.consumers import (
    run_aiokafka_member,
    run_kafka_python_member,
    run_librdkafka_member,
)
from headrace_verify.blackbox.context import Context, Spec
from headrace_verify.blackbox.languages.go import run_go_member, run_go_producer
from headrace_verify.blackbox.languages.java import (
    run_java_copier,
    run_java_member,
    run_java_producer,
)
from headrace_verify.blackbox.languages.rocketmq import (
    run_rocketmq_library_consumer,
    run_rocketmq_library_producer,
)
from headrace_verify.blackbox.lite_part import run_lite_consumer, run_lite_producer
from headrace_verify.blackbox.producers import (
    run_aiokafka_producer,
    run_kafka_python_producer,
    run_librdkafka_producer,
)
from headrace_verify.blackbox.queue_consumers import run_http_consumer, run_share_consumer
from headrace_verify.blackbox.queue_producers import run_http_producer, run_queue_producer
from headrace_verify.blackbox.raw_clients import (
    run_churn,
    run_observer,
    run_raw_producer,
    run_raw_reader,
)
from headrace_verify.blackbox.rocketmq_clients import run_rocketmq_consumer, run_rocketmq_producer
from headrace_verify.blackbox.transactional_libraries import (
    run_aiokafka_copier,
    run_aiokafka_writer,
    run_librdkafka_copier,
    run_librdkafka_writer,
)
from headrace_verify.blackbox.zombies import run_zombies
from headrace_verify.history import History

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS: dict[str, Callable[[Context], None]] = {
    "librdkafka-producer": run_librdkafka_producer,
    "kafka-python-producer": run_kafka_python_producer,
    "aiokafka-producer": run_aiokafka_producer,
    "librdkafka-member": run_librdkafka_member,
    "kafka-python-member": run_kafka_python_member,
    "aiokafka-member": run_aiokafka_member,
    "java-producer": run_java_producer,
    "java-member": run_java_member,
    "go-producer": run_go_producer,
    "go-member": run_go_member,
    "raw-producer": run_raw_producer,
    "raw-reader": run_raw_reader,
    "observer": run_observer,
    "churn": run_churn,
    "zombies": run_zombies,
    "librdkafka-writer": run_librdkafka_writer,
    "aiokafka-writer": run_aiokafka_writer,
    "librdkafka-copier": run_librdkafka_copier,
    "aiokafka-copier": run_aiokafka_copier,
    "java-copier": run_java_copier,
    "committed-reader": run_committed_reader,
    "queue-producer": run_queue_producer,
    "http-producer": run_http_producer,
    "http-consumer": run_http_consumer,
    "compacted-consumer": run_compacted_consumer,
    "share-consumer": run_share_consumer,
    "rocketmq-producer": run_rocketmq_producer,
    "rocketmq-consumer": run_rocketmq_consumer,
    "rocketmq-lite-producer": run_lite_producer,
    "rocketmq-lite-consumer": run_lite_consumer,
    "rocketmq-library-producer": run_rocketmq_library_producer,
    "rocketmq-library-consumer": run_rocketmq_library_consumer,
}


def main() -> None:
    """Run one client until standard input is closed."""
    spec = Spec(**json.loads(sys.argv[1]))
    context = Context(spec, History(Path(sys.argv[2]), spec.name))

    def wait_for_the_end() -> None:
        sys.stdin.read()
        context.over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    context.note("started", kind=spec.kind)
    try:
        KINDS[spec.kind](context)
    except Exception as error:  # noqa: BLE001 - the run must learn of it
        context.gave_up(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    context.note("ended")


if __name__ == "__main__":
    main()
