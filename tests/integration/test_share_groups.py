"""Share groups with Apache Kafka's own KafkaShareConsumer and its tools (KIP-932)."""

from __future__ import annotations

import pytest
from tests.integration.java import session

pytestmark = pytest.mark.java


@pytest.mark.parametrize(
    "scenario", ["sharing", "settling", "ordered", "leaving", "failover", "administration"]
)
def test_java_share_consumer(broker, name, scenario):
    session().run("ShareScenarios", broker.kafka, scenario, name)
