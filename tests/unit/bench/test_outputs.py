"""What each tool printed once is read as what it meant."""

from __future__ import annotations

import pytest

from headrace.bench.processes import SystemFailed
from headrace.bench.systems import nats, rabbitmq, redis, rocketmq

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


PERF_TEST = """\
id: test-1, time 1.011 s, sent: 951 msg/s, received: 90 msg/s, \
min/median/75th/95th/99th consumer latency: 117466/256459/264994/265298/265408 µs
id: test-1, time 2.043 s, sent: 979 msg/s, received: 1806 msg/s, \
min/median/75th/95th/99th consumer latency: 451/2000/447367/563802/9000 µs
id: test-1, time 3.003 s, sent: 1077 msg/s, received: 1079 msg/s, \
min/median/75th/95th/99th consumer latency: 308/1000/13824/81366/8000 µs
id: test-1, time 4.000 s, sent: 1001 msg/s, received: 960 msg/s, \
min/median/75th/95th/99th consumer latency: 345/1424/11362/34059/42901 µs
test stopped (Reached time limit)
id: test-1, sending rate avg: 1187 msg/s
id: test-1, receiving rate avg: 1167 msg/s
id: test-1, consumer latency min/median/75th/95th/99th 345/31636/331356/563244/565759 µs
"""


CONFIRMED = """\
id: test-2, time 1.000 s, sent: 90 msg/s, confirmed: 50 msg/s, nacked: 0 msg/s, min/median
id: test-2, time 2.000 s, sent: 900 msg/s, confirmed: 800 msg/s, nacked: 0 msg/s, min/median
id: test-2, time 3.000 s, sent: 950 msg/s, confirmed: 900 msg/s, nacked: 0 msg/s, min/median
id: test-2, sending rate avg: 600 msg/s
"""


def test_perf_test_tells_what_was_confirmed_in_the_seconds_after_the_first():
    assert rabbitmq.sending_rate_of(CONFIRMED) == 900
    assert rabbitmq.sending_rate_of(CONFIRMED.splitlines()[-1]) == 600


def test_perf_test_tells_rates_and_the_latency_of_each_second_but_the_first():
    assert rabbitmq.sending_rate_of(PERF_TEST) == 1187
    assert rabbitmq.receiving_rate_of(PERF_TEST) == 1167
    assert rabbitmq.latency_of(PERF_TEST) == {"p50": 1.424, "p99": 42.901}


@pytest.mark.parametrize(
    "read", [rabbitmq.sending_rate_of, rabbitmq.receiving_rate_of, rabbitmq.latency_of]
)
def test_perf_test_that_says_something_else_is_a_failure(read):
    with pytest.raises(SystemFailed, match="PerfTest"):
        read("Main thread caught exception\njava.net.ConnectException: Connection refused\n")


COMPLETE = (
    "[Complete] Send Total: 20000 | Send TPS: {tps} | Max RT(ms): 9 | Average RT(ms):   1.000 | "
    "Send Failed: {failed} | Response Failed: 0\n"
)
SHORT = "[Complete] Send Total: 20000 Send Failed: 0 Response Failed: 0\n"


def test_rocketmq_tells_the_rate_of_its_seconds_or_a_total():
    assert rocketmq.sent_of(COMPLETE.format(tps=600, failed=64), seconds=4) == 600
    assert rocketmq.sent_of(COMPLETE.format(tps=0, failed=0), seconds=4) == 5_000
    assert rocketmq.sent_of(SHORT, seconds=4) == 5_000


@pytest.mark.parametrize("said", ["", COMPLETE.format(tps=9, failed=3_000)])
def test_rocketmq_that_failed_to_send_is_a_failure(said):
    with pytest.raises(SystemFailed, match="RocketMQ's Producer"):
        rocketmq.sent_of(said, seconds=1)
