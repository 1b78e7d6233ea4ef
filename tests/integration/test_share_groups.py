"""Share groups with Apache Kafka's own KafkaShareConsumer and its tools (KIP-932)."""

from __future__ import annotations

import pytest
from tests.integration.clients import admin
from tests.integration.java import session

pytestmark = pytest.mark.java


SCENARIOS = ["sharing", "settling", "ordered", "leaving", "failover", "administration"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java_share_consumer(broker, name, scenario):
    session().run("ShareScenarios", broker.kafka, scenario, name)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java_share_consumers_of_two_tenants_use_the_same_names(tenants, name, scenario):
    for place in tenants:
        assert name not in admin(place.kafka).list_topics(timeout=30).topics
        session().run("ShareScenarios", place.kafka, scenario, name)
