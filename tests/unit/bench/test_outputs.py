"""What each tool printed once is read as what it meant."""

from __future__ import annotations

import pytest

from headrace.bench.processes import SystemFailed
from headrace.bench.systems import nats, redis

REDIS = (
    '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms",'
    '"p99_latency_ms","max_latency_ms"\n'
    '"XADD s * v xxxx","53191.49","13.193","1.568","8.271","31.695","169.087","173.183"\n'
)


def test_redis_benchmark_tells_requests_a_second():
    assert redis.rate_of(REDIS) == 53_191.49
    assert redis.rate_of("XADD: rps=0.0\r" + REDIS) == 53_191.49


@pytest.mark.parametrize("said", ["", "Could not connect to Redis", '"test","rps"\n'])
def test_redis_benchmark_that_says_something_else_is_a_failure(said):
    with pytest.raises(SystemFailed, match="said something else"):
        redis.rate_of(said)


def test_nats_load_tells_messages_and_seconds():
    assert nats.rate_of('{"messages":30000,"seconds":1.5}\n') == 20_000
    with pytest.raises(SystemFailed, match="said something else"):
        nats.rate_of("nats: no responders available for request\n")
