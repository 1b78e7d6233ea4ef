"""A plugin of pytest for kafka-python's own suite: Headrace in the place of the brokers it starts.

Invariants: the tests themselves are not changed. What is replaced is how they start Kafka (from a
folder of its programs), the module that starts processes, which the source distribution lacks,
and the list of topics, for which the suite asks Kafka's program.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

_LISTENERS = json.loads(os.environ["SUITE_LISTENERS"])


class _Running:
    """The process of a broker, as far as the suite uses it."""

    def __init__(self, *_: object) -> None:
        pass

    def dump_logs(self) -> None:
        """The test that runs the suite keeps Headrace's log."""


_service: Any = types.ModuleType("test.service")
_service.ExternalService = _service.SpawnedService = _Running
sys.modules["test.service"] = _service

from kafka import KafkaAdminClient  # noqa: E402
from test.integration import fixtures  # type: ignore[attr-defined]  # noqa: E402


class Headrace(fixtures.KafkaFixture):  # type: ignore[misc,name-defined]
    """One listener of the broker."""

    kafka_root = os.getcwd()

    @classmethod
    def instance(cls, broker_id: int, **settings: Any) -> Headrace:
        transport = settings.get("transport", "PLAINTEXT")
        host, _, port = _LISTENERS[transport].rpartition(":")
        settings |= {"host": host, "port": int(port), "external": True}
        made = cls(broker_id=broker_id, **settings)
        made.ssl_dir = str(Path(os.environ["SUITE_CA"]).parent)
        return made

    def start(self) -> None:
        """It runs."""

    def close(self) -> None:
        """It goes on for the next test."""

    def get_topic_names(self) -> list[str]:
        with KafkaAdminClient(**self._enrich_client_params({})) as admin:
            return list(admin.list_topics())


fixtures.KafkaFixture = Headrace
