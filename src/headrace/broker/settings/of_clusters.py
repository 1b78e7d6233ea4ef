"""The settings of brokers that share a cluster: how they join, TLS, balance. See `table`."""

from __future__ import annotations

from headrace.broker.settings.kinds import PathName, QuorumSizes, Switch, Text, Whole
from headrace.broker.settings.setting import (
    DURATION,
    INTERVAL,
    LIVE,
    OF_CLUSTER,
    BrokerSetting,
    of_config,
)
from headrace.broker.topics.topic_config import QUORUM

JOINING = (
    BrokerSetting(
        "zookeeper.connect",
        Text("HOST:PORT,..."),
        "Join the cluster whose facts are there. Records are kept in Apache BookKeeper, whose"
        " bookies ZooKeeper knows, and nothing in --data-dir. See `headrace cluster dev`.",
        spelling="zookeeper",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.zookeeper.root",
        Text("PATH"),
        "With --zookeeper: path of the cluster's facts. Another path, another cluster.",
        "/headrace",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.zookeeper.credential.file",
        PathName(),
        "A file with USER:PASSWORD for ZooKeeper (digest). The environment may hold that, as"
        " HEADRACE_ZOOKEEPER_CREDENTIAL. Nodes are then closed to others: bookies need the same.",
        is_sensitive=True,
        **OF_CLUSTER,
    ),
    of_config(
        "node.id",
        "broker_id",
        Whole(0),
        "With --zookeeper: the id of this broker, unique in the cluster.",
        spelling="broker-id",
        **OF_CLUSTER,
    ),
    of_config(
        "broker.rack",
        "rack",
        Text(),
        "With --zookeeper: the rack of this broker, for clients that ask.",
        spelling="rack",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "zookeeper.session.timeout.ms",
        Whole(500),
        "With --zookeeper: how long after its last sign of life other brokers take over this"
        " broker's partitions.",
        "6000",
        spelling="session-timeout-ms",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        QUORUM,
        QuorumSizes(),
        "With --zookeeper: of a new ledger, the bookies it is spread over, those that get each"
        " entry, and how many of these must have synced it.",
        "3,3,2",
        spelling="quorum",
        **OF_CLUSTER,
    ),
)

BALANCE = (
    of_config(
        "headrace.balance.enable",
        "is_balancing",
        Switch(),
        "With --zookeeper: move partitions away from a broker that carries much more than the"
        " others. Set it alike on all brokers: any of them may decide.",
        spelling="balance",
        negative="no-balance",
        **LIVE,
        **OF_CLUSTER,
    ),
    of_config(
        "headrace.balance.cpu.percent",
        "balance_cpu_percent_min",
        Whole(0, 100_000),
        "With --zookeeper: a broker that uses less of a core keeps what it has.",
        **LIVE,
        **OF_CLUSTER,
    ),
    of_config(
        "headrace.balance.interval.ms",
        "balance_interval_ms",
        DURATION,
        "How often load is reported and looked at; 0: never.",
    ),
    of_config(
        "headrace.balance.patience",
        "balance_patience",
        Whole(1, 1_000_000),
        "Consecutive looks that must find a broker overloaded before anything moves.",
        **LIVE,
    ),
    of_config(
        "headrace.balance.rest.ms",
        "balance_rest_ms",
        DURATION,
        "How long a partition stays where load has moved it.",
        **LIVE,
    ),
    of_config(
        "headrace.balance.threshold.percent",
        "balance_threshold_percent",
        Whole(101, 10_000),
        "Of the mean load: a broker that carries more is overloaded.",
        **LIVE,
    ),
    of_config(
        "headrace.hand.over.timeout.ms",
        "hand_over_timeout_ms",
        Whole(0),
        "How long a broker that stops hands its partitions over.",
        **LIVE,
    ),
    of_config(
        "headrace.join.timeout.ms",
        "join_timeout_ms",
        Whole(0),
        "How long a starting broker waits for the session of its former process to end.",
    ),
    of_config(
        "headrace.rebalance.delay.ms",
        "rebalance_delay_ms",
        Whole(0),
        "How long after a broker joined or left partitions begin to move between live brokers.",
        **LIVE,
    ),
    of_config(
        "headrace.sweep.grace.ms",
        "sweep_grace_ms",
        INTERVAL,
        "How long a ledger must have belonged to no partition before it is deleted.",
        **LIVE,
    ),
    of_config(
        "headrace.sweep.interval.ms",
        "sweep_interval_ms",
        INTERVAL,
        "How often one broker looks for ledgers that belong to no partition.",
        **LIVE,
    ),
)

TLS = (
    BrokerSetting(
        "zookeeper.ssl.client.enable",
        Switch(),
        "Speak TLS to ZooKeeper: --zookeeper names its secure ports. Needs --cluster-ca.",
        "false",
        spelling="zookeeper-tls",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.bookie.tls",
        Switch(),
        "Speak TLS to bookies, at the ports they have. Needs --cluster-ca.",
        "false",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.cluster.ca",
        PathName(),
        "A file with the CA certificates that ZooKeeper's and the bookies' are checked against.",
        is_sensitive=True,
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.cluster.cert",
        PathName(),
        "A file with the client certificate for ZooKeeper and bookies.",
        is_sensitive=True,
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.cluster.key",
        PathName(),
        "A file with its key, without a password. Default: in the file of --cluster-cert.",
        is_sensitive=True,
        **OF_CLUSTER,
    ),
)
