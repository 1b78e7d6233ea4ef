"""What the operations on a cluster and its brokers answer: a part of the table in `answers`."""

from __future__ import annotations

from typing import Any, Final

from headrace.http.answer_parts import AT_MS, FAILED_BROKERS, POINT, SHOWN_PROBLEM, STREAM, TOKEN
from headrace.http.shapes import Entries, Json, OrNull, Part

FIGURES: Final = Part(
    "BrokerFigures",
    {
        **{f"{name}?": value for name, value in POINT.shape.items() if name != "at_ms"},
        "problems": 0,
        "copies_missing": 0,
        "tier": OrNull(
            Part(
                "TierActivity",
                {
                    "is_away": False,
                    "problem": OrNull("object storage does not answer"),
                    "pending_ledgers": 2,
                    "pending_bytes": 128_000_000,
                    "offloads": 40,
                    "offload_bytes": 2_600_000_000,
                    "cold_reads": 12,
                    "cold_bytes": 48_000_000,
                    "deletes": 3,
                    "failures": 0,
                    "corrupt_blocks": 0,
                },
            )
        ),
    },
)
_VALUE: Final[Json] = {"value": OrNull("604800000"), "source": "start"}
BROKER_SETTINGS: Final[Json] = {
    "broker": OrNull(1),
    "settings": [
        Part(
            "BrokerSetting",
            {
                "name": "log.retention.ms",
                **_VALUE,
                "default": OrNull("604800000"),
                "type": "integer",
                "unit": OrNull("ms"),
                "accepts": "an integer from -1 to 9223372036854775807",
                "change": "live",
                "sensitive": False,
                "documentation": "For how long records are kept.",
                "values": [Part("SettingValue", _VALUE)],
            },
        )
    ],
}
_CHANGED: Final[Json] = {"broker": OrNull(1), "changed": ["log.retention.ms"], "dry_run": False}
CLUSTER_ANSWERS: Final[dict[str, Any]] = {
    "getClusterConfig": BROKER_SETTINGS,
    "getBrokerConfig": BROKER_SETTINGS,
    "changeClusterConfig": _CHANGED,
    "changeBrokerConfig": _CHANGED,
    "getCluster": {"cluster_id": "r5yYkI4bTp2mB7s0", "broker": 1},
    "listBrokers": {
        "broker": 1,
        "brokers": [
            Part(
                "Broker",
                {
                    "id": 1,
                    "rack": OrNull("a"),
                    "started_ms": OrNull(AT_MS),
                    "is_leaving": False,
                    "is_draining": False,
                    "owned_before?": 12,
                    "partitions": 12,
                    "figures?": FIGURES,
                    "endpoints": [
                        Part(
                            "Endpoint",
                            {
                                "face": "kafka",
                                "listener": "client",
                                "address": "127.0.0.1:9092",
                                "security": "PLAINTEXT",
                            },
                        )
                    ],
                },
            )
        ],
        "failed?": FAILED_BROKERS,
    },
    "listMoves": {
        "moves": [
            Part(
                "Move",
                {
                    "topic": "orders",
                    "partition": 0,
                    "from": 1,
                    "to": 2,
                    "reason": "drained",
                },
            )
        ],
        "count": 1,
        "next_page_token?": TOKEN,
    },
    "listLackingLedgers": {
        "ledgers": [
            Part(
                "LackingLedger",
                {"topic": "orders", "partition": 0, "ledger": 17, "copies_missing": 1},
            )
        ],
        "count": 1,
        "failed?": FAILED_BROKERS,
    },
    "listConnections": {
        "connections": [
            Part(
                "Connection",
                {
                    "address": "127.0.0.1:51234",
                    "listener": "client",
                    "principal": OrNull("User:alice"),
                    "client_id": OrNull("billing"),
                    "software": OrNull("apache-kafka-java"),
                    "software_version": OrNull("4.3.0"),
                    "quotas": Entries("producer_byte_rate", 1_048_576.0),
                    "throttled_ms": 0,
                },
            )
        ],
        "counts": [
            Part(
                "ConnectionCount",
                {
                    "software": "apache-kafka-java",
                    "software_version": "4.3.0",
                    "principal": OrNull("User:alice"),
                    "connections": 12,
                    "throttled_ms": 0,
                },
            )
        ],
        "next_page_token?": TOKEN,
    },
    "getOverview": {
        "is_well": True,
        "problems": [SHOWN_PROBLEM],
        "cluster_id": "r5yYkI4bTp2mB7s0",
        "broker": 1,
        "brokers": 1,
        "topics": 4,
        "partitions": 12,
        "lag_records": 1_200,
        "lag_is_partial": False,
        "lags": [Part("LagNow", {"group": "billing", "records": 1_200, "is_partial": False})],
        "dead_letters": {"copied": 4, "failed": 0, "given_up": 0},
        "disk": OrNull(
            Part(
                "DiskSpace",
                {
                    "free_bytes": 40_000_000_000,
                    "total_bytes": 100_000_000_000,
                    "reserve_bytes": 1_000_000_000,
                    "is_full": False,
                    "broker": 1,
                },
            )
        ),
        "failed?": FAILED_BROKERS,
        "bookies?": {"known": 3, "registered": 3, "writable": 3},
        "zookeeper?": "connected",
    },
    "getHistory": {
        "interval_ms": 5_000,
        "last_event_id": "19acdeadbeef-12",
        "points": [POINT],
        "failed?": FAILED_BROKERS,
    },
    "followEvents": STREAM,
}
