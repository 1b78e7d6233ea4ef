"""All systems that can be compared with Headrace, in the order of the tables."""

from __future__ import annotations

from headrace_bench.systems import (
    kafka_protocol,
    nats,
    rabbitmq,
    redis,
    rocketmq,
    rocketmq_protocol,
)

SYSTEMS = (
    kafka_protocol.HEADRACE,
    kafka_protocol.KAFKA,
    redis.SYSTEM,
    nats.SYSTEM,
    rabbitmq.SYSTEM,
    rabbitmq.CLASSIC,
    rocketmq.SYSTEM,
)
BY_NAME = {system.name: system for system in SYSTEMS}
ROCKETMQ_SYSTEMS = {
    one.name: one for one in (rocketmq_protocol.HEADRACE, rocketmq_protocol.ROCKETMQ)
}
"""Those that speak RocketMQ's protocol; not with Kafka's tools, or their own, as above."""
