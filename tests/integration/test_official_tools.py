"""Each of Apache Kafka's command-line tools, operation by operation, against one broker.

Invariants: the commands run in the order of the table, and what one makes another one uses. Each
must print what is expected. Tools that never reach a broker, or start one, are not in the table.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from tests.integration.java import session
from tests.integration.test_client_suites import PASSWORD, USER, Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_000)]

MAINS = {
    "kafka-acls": "AclCommand",
    "kafka-broker-api-versions": "BrokerApiVersionsCommand",
    "kafka-client-metrics": "ClientMetricsCommand",
    "kafka-cluster": "ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "consumer.ConsoleConsumer",
    "kafka-console-producer": "ConsoleProducer",
    "kafka-console-share-consumer": "consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "ConsumerPerformance",
    "kafka-delegation-tokens": "DelegationTokenCommand",
    "kafka-delete-records": "DeleteRecordsCommand",
    "kafka-e2e-latency": "EndToEndLatency",
    "kafka-features": "FeatureCommand",
    "kafka-get-offsets": "GetOffsetShell",
    "kafka-groups": "GroupsCommand",
    "kafka-leader-election": "LeaderElectionCommand",
    "kafka-log-dirs": "LogDirsCommand",
    "kafka-metadata-quorum": "MetadataQuorumCommand",
    "kafka-producer-perf-test": "ProducerPerformance",
    "kafka-reassign-partitions": "reassign.ReassignPartitionsCommand",
    "kafka-share-consumer-perf-test": "ShareConsumerPerformance",
    "kafka-share-groups": "consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset": "StreamsResetter",
    "kafka-streams-groups": "streams.StreamsGroupCommand",
    "kafka-topics": "TopicCommand",
    "kafka-transactions": "TransactionsCommand",
}
RECORDS = "--num-records 200 --record-size 100 --throughput -1"

# Each line: tool, operation ; what it prints (a regular expression).
COMMANDS = f"""
kafka-topics --create --topic t --partitions 2 ; Created topic t
kafka-topics --list ; ^t$
kafka-topics --describe --topic t ; PartitionCount: 2
kafka-topics --alter --topic t --partitions 3 ; \\A(?!(?s:.*)(?:rror|xception))
kafka-configs --alter --entity-type topics --entity-name t --add-config retention.ms=86400000 ; Completed
kafka-configs --describe --entity-type topics --entity-name t ; retention.ms=86400000
kafka-configs --alter --entity-type topics --entity-name t --delete-config retention.ms ; Completed
kafka-configs --describe --all --entity-type brokers --entity-name 0 ; node.id=0
kafka-configs --alter --entity-type users --entity-name bob --add-config SCRAM-SHA-256=[password=bobs] ; Completed
kafka-configs --describe --entity-type users --entity-name bob ; SCRAM-SHA-256
kafka-configs --alter --entity-type users --entity-name bob --add-config producer_byte_rate=1000000 ; Completed
kafka-configs --alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=50000 ; Completed
kafka-console-producer --topic t < a b c ; \\A(?!(?s:.*)(?:rror|xception))
kafka-console-consumer --topic t --group g --from-beginning --max-messages 3 --timeout-ms 90000 ; Processed a total of 3
kafka-get-offsets --topic t ; ^t:\\d:\\d
kafka-consumer-groups --list ; ^g$
kafka-consumer-groups --describe --group g ; ^g +t +
kafka-consumer-groups --describe --group g --members ; has no active members
kafka-consumer-groups --describe --group g --state ; Empty
kafka-consumer-groups --reset-offsets --group g --topic t --to-earliest --execute ; ^g +t +
kafka-consumer-groups --delete-offsets --group g --topic t ; Successful
kafka-consumer-groups --delete --group g ; successful
kafka-groups --list ; GROUP
kafka-configs --alter --entity-type groups --entity-name s --add-config share.auto.offset.reset=earliest ; Completed
kafka-console-share-consumer --topic t --group s --max-messages 3 --timeout-ms 90000 ; Processed a total of 3
kafka-share-groups --list ; ^s$
kafka-share-groups --describe --group s ; ^s +t +
kafka-share-groups --describe --group s --members ; has no active members
kafka-share-groups --describe --group s --state ; Empty
kafka-share-groups --reset-offsets --group s --topic t --to-earliest --execute ; ^s +t +
kafka-share-groups --delete-offsets --group s --topic t ; t
kafka-streams-groups --list ; \\A(?!(?s:.*)(?:rror|xception))
kafka-streams-application-reset --application-id none --input-topics t ; \\A(?!(?s:.*)(?:rror|xception))
kafka-producer-perf-test --topic t {RECORDS} ; 200 records sent
kafka-consumer-perf-test --topic t --num-records 200 --timeout 90000 ; \\d+, 
kafka-configs --alter --entity-type groups --entity-name perf --add-config share.auto.offset.reset=earliest ; Completed
kafka-share-consumer-perf-test --topic t --group perf --num-records 200 --timeout 90000 ; \\d+, 
kafka-share-groups --delete --group perf ; successful
kafka-e2e-latency --topic t --num-records 20 --producer-acks 1 --record-size 100 ; Percentiles
kafka-delete-records --offset-json-file DELETE ; low_watermark
kafka-acls --add --allow-principal User:bob --operation Read --topic t ; Adding ACLs
kafka-acls --list --topic t ; User:bob
kafka-acls --remove --force --allow-principal User:bob --operation Read --topic t ; \\A(?!(?s:.*)(?:rror|xception))
kafka-delegation-tokens --create --max-life-time-period -1 --owner-principal User:{USER} ; TOKENID
kafka-delegation-tokens --describe --owner-principal User:{USER} ; TOKENID
kafka-delegation-tokens --renew --renew-time-period -1 --hmac HMAC ; renew
kafka-delegation-tokens --expire --expiry-time-period -1 --hmac HMAC ; expir
kafka-client-metrics --alter --name m --metrics org.apache.kafka. --interval 1000 --match client_id=x ; \\A(?!(?s:.*)(?:rror|xception))
kafka-client-metrics --describe --name m ; interval.ms=1000
kafka-client-metrics --delete --name m ; \\A(?!(?s:.*)(?:rror|xception))
kafka-cluster cluster-id ; Cluster ID
kafka-cluster list-endpoints ; 127.0.0.1
kafka-cluster unregister --id 9 ; not registered
kafka-broker-api-versions ; Fetch\\(1\\)
kafka-features describe ; share.version
kafka-features upgrade --feature share.version=9 ; Could not upgrade
kafka-leader-election --election-type preferred --topic t --partition 0 ; already elected
kafka-log-dirs --describe --topic-list t ; "partition":"t-0"
kafka-metadata-quorum describe --status ; no metadata quorum
kafka-reassign-partitions --reassignment-json-file PLAN --execute ; Successfully started
kafka-reassign-partitions --reassignment-json-file PLAN --verify ; is completed
kafka-reassign-partitions --list ; No partition reassignments
kafka-transactions list ; TransactionalId
kafka-transactions describe-producers --topic t --partition 0 ; ProducerId
kafka-transactions find-hanging --topic t ; Topic
kafka-transactions describe --transactional-id none ; could not be found
kafka-configs --alter --entity-type users --entity-name bob --delete-config SCRAM-SHA-256 ; Completed
kafka-topics --delete --topic t ; \\A(?!(?s:.*)(?:rror|xception))
"""  # noqa: E501, W291


class Tools:
    """Kafka's tools as a user who logs in by SCRAM."""

    def __init__(self, folder: Path) -> None:
        self.served = Served(folder / "broker", "--super-users", f"User:{USER}")
        self.bootstrap = self.served.addresses["SASL_PLAINTEXT"]
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        login = f'{module} required username="{USER}" password="{PASSWORD}";'
        self.config = folder / "client.properties"
        self.config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            f"sasl.jaas.config={login}\n"
        )
        plan = {"partitions": [{"topic": "t", "partition": 0, "replicas": [0]}], "version": 1}
        delete = {"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 1}
        self.words = {"PLAN": str(folder / "plan.json"), "DELETE": str(folder / "delete.json")}
        for name, content in (("PLAN", plan), ("DELETE", delete)):
            (folder / self.words[name]).write_text(json.dumps(content))

    def run(self, line: str) -> str:
        """What a command of the table prints."""
        command, _, text = line.partition(" < ")
        tool, *words = (self.words.get(word, word) for word in command.split())
        main = MAINS[tool]
        main = main if main.startswith("kafka.") else f"org.apache.kafka.tools.{main}"
        at = ["--bootstrap-server", self.bootstrap]
        config = ["--config" if tool == "kafka-cluster" else "--command-config", str(self.config)]
        first = [words.pop(0)] if tool == "kafka-cluster" else []
        text = "".join(f"{value}\n" for value in text.split())
        return session().run(main, *first, *at, *config, *words, text=text, ok=False)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    made = Tools(tmp_path_factory.mktemp("tools"))
    yield made
    made.served.broker.stop()


def test_official_tools(tools: Tools) -> None:
    failed = {}
    lines = COMMANDS.strip().splitlines()
    for line in lines:
        command, _, expected = (part.strip() for part in line.partition(" ; "))
        out = tools.run(command)
        if not re.search(expected, out, re.MULTILINE):
            failed[command] = out[-2000:]
        elif "kafka-delegation-tokens --create" in command:
            tools.words["HMAC"] = re.findall(r"\S{40,}", out)[0]
    told = "".join(f"\n{command}\n{out}" for command, out in failed.items())
    assert not failed, f"{len(failed)} of {len(lines)} failed:{told}"
