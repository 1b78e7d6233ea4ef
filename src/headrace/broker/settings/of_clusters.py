"""Settings of brokers in a cluster: joining, TLS, load balancing. See `table`."""

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
        "ZooKeeper servers of the cluster to join. Records are stored in Apache"
        " BookKeeper, on the bookies registered in ZooKeeper; --data-dir is not"
        " used. See `headrace cluster dev`.",
        spelling="zookeeper",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.zookeeper.root",
        Text("PATH"),
        "With --zookeeper: path of the cluster's metadata. Each path is a separate cluster.",
        "/headrace",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.zookeeper.credential.file",
        PathName(),
        "File with USER:PASSWORD for ZooKeeper (digest authentication);"
        " alternatively, set HEADRACE_ZOOKEEPER_CREDENTIAL. Other users then"
        " have no access to the nodes, so bookies need the same credential.",
        is_sensitive=True,
        **OF_CLUSTER,
    ),
    of_config(
        "node.id",
        "broker_id",
        Whole(0),
        "With --zookeeper: id of this broker, unique in the cluster.",
        spelling="broker-id",
        **OF_CLUSTER,
    ),
    of_config(
        "broker.rack",
        "rack",
        Text(),
        "With --zookeeper: rack of this broker, reported to clients.",
        spelling="rack",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "zookeeper.session.timeout.ms",
        Whole(500),
        "With --zookeeper: session timeout, after which other brokers take over"
        " the partitions of an unresponsive broker.",
        "6000",
        spelling="session-timeout-ms",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        QUORUM,
        QuorumSizes(),
        "With --zookeeper: ensemble size, write quorum and ack quorum of new ledgers.",
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
        "With --zookeeper: move partitions away from overloaded brokers. Use"
        " the same value on all brokers, because any of them may decide.",
        spelling="balance",
        negative="no-balance",
        **LIVE,
        **OF_CLUSTER,
    ),
    of_config(
        "headrace.balance.cpu.percent",
        "balance_cpu_percent_min",
        Whole(0, 100_000),
        "With --zookeeper: load balancing moves no partition away from a broker that uses less"
        " than this percentage of a core.",
        **LIVE,
        **OF_CLUSTER,
    ),
    of_config(
        "headrace.balance.interval.ms",
        "balance_interval_ms",
        DURATION,
        "Interval of load reports and checks; 0: never.",
    ),
    of_config(
        "headrace.balance.patience",
        "balance_patience",
        Whole(1, 1_000_000),
        "Number of consecutive checks that must find a broker overloaded before a partition moves.",
        **LIVE,
    ),
    of_config(
        "headrace.balance.rest.ms",
        "balance_rest_ms",
        DURATION,
        "How long a partition stays on the broker to which load balancing moved it.",
        **LIVE,
    ),
    of_config(
        "headrace.balance.threshold.percent",
        "balance_threshold_percent",
        Whole(101, 10_000),
        "Percentage of the mean load above which a broker is overloaded.",
        **LIVE,
    ),
    of_config(
        "headrace.hand.over.timeout.ms",
        "hand_over_timeout_ms",
        Whole(0),
        "Maximum time that a stopping broker spends on handing over its partitions.",
        **LIVE,
    ),
    of_config(
        "headrace.join.timeout.ms",
        "join_timeout_ms",
        Whole(0),
        "Maximum time that a starting broker waits for the session of its previous process to"
        " expire.",
    ),
    of_config(
        "headrace.rebalance.delay.ms",
        "rebalance_delay_ms",
        Whole(0),
        "Delay after a broker joins or leaves before partitions move between live brokers.",
        **LIVE,
    ),
    of_config(
        "headrace.sweep.grace.ms",
        "sweep_grace_ms",
        INTERVAL,
        "How long a ledger must have been unreferenced before it is deleted.",
        **LIVE,
    ),
    of_config(
        "headrace.sweep.interval.ms",
        "sweep_interval_ms",
        INTERVAL,
        "Interval between checks for unreferenced ledgers, which one broker makes.",
        **LIVE,
    ),
)

TLS = (
    BrokerSetting(
        "zookeeper.ssl.client.enable",
        Switch(),
        "Use TLS to ZooKeeper; --zookeeper must contain its secure ports. Requires --cluster-ca.",
        "false",
        spelling="zookeeper-tls",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.bookie.tls",
        Switch(),
        "Use TLS to bookies, on their usual ports. Requires --cluster-ca.",
        "false",
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.bookie.credential.file",
        PathName(),
        "File with USER:PASSWORD for bookies (SASL DIGEST-MD5); alternatively, set"
        " HEADRACE_BOOKIE_CREDENTIAL. Use it with TLS, which alone encrypts.",
        is_sensitive=True,
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.cluster.ca",
        PathName(),
        "File with the trusted CA certificates for ZooKeeper and bookies.",
        is_sensitive=True,
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.cluster.cert",
        PathName(),
        "File with the client certificate for ZooKeeper and bookies.",
        is_sensitive=True,
        **OF_CLUSTER,
    ),
    BrokerSetting(
        "headrace.cluster.key",
        PathName(),
        "File with the unencrypted private key. Default: the file of --cluster-cert.",
        is_sensitive=True,
        **OF_CLUSTER,
    ),
)
