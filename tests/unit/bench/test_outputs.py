"""What each tool printed once is read as what it meant."""

from __future__ import annotations

import pytest

from headrace_bench import java_tools
from headrace_bench.processes import SystemFailed
from headrace_bench.systems import go_load, rabbitmq, redis, rocketmq

REDIS = (
    '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms",'
    '"p99_latency_ms","max_latency_ms"\n'
    '"XADD s * v xxxx","53191.49","13.193","1.568","8.271","31.695","169.087","173.183"\n'
)


def test_redis_benchmark_reports_requests_a_second():
    assert redis.rate_of(REDIS) == 53_191.49
    assert redis.rate_of("XADD: rps=0.0\r" + REDIS) == 53_191.49


@pytest.mark.parametrize("output", ["", "Could not connect to Redis", '"test","rps"\n'])
def test_redis_benchmark_that_says_something_else_is_a_failure(output):
    with pytest.raises(SystemFailed, match="unexpected output"):
        redis.rate_of(output)


def test_redis_benchmark_reports_its_current_rate_while_it_runs():
    line = "XADD s * v xxxx: rps=240000.0 (overall: 255045.7) avg_msec=3.193 (overall: 3.193)"
    assert redis.current_rate_of(line) == 240_000
    assert redis.current_rate_of("XADD: rps=0.0 (overall: -nan) avg_msec=-nan") == 0
    assert redis.current_rate_of("====== XADD ======") is None


def test_a_load_in_go_reports_messages_and_seconds():
    assert go_load.rate_of('{"messages":30000,"seconds":1.5}') == 20_000
    assert go_load.rate_of("nats: no responders available for request") is None
    assert go_load.rate_of("17") is None


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


def test_perf_test_reports_each_second_what_was_confirmed_and_received():
    lines = CONFIRMED.splitlines()
    assert [rabbitmq.confirmed_of(line) for line in lines] == [50, 800, 900, None]
    lines = PERF_TEST.splitlines()[:6]
    assert [rabbitmq.received_of(line) for line in lines] == [90, 1806, 1079, 960, None, None]


def test_perf_test_reports_the_latency_of_each_second_but_the_first():
    assert rabbitmq.latency_of(PERF_TEST) == {"p50": 1.424, "p99": 42.901}


def test_perf_test_that_says_something_else_is_a_failure():
    with pytest.raises(SystemFailed, match="PerfTest"):
        rabbitmq.latency_of("Main thread caught exception\njava.net.ConnectException: refused\n")


SENDING = (
    "Current Time: 2026-01-02 03:04:05,678 | TPS: {tps} | Max RT(ms): 9 | "
    "Average RT(ms):   1.000 | Send Failed: {failed} | Response Failed: 0"
)


def test_rocketmq_reports_the_rate_of_its_last_ten_seconds():
    assert rocketmq.sent_of(SENDING.format(tps=600, failed=64)) == 600
    assert rocketmq.sent_of("topic: t, threadCount: 64, messageSize: 100") is None


def test_rocketmq_that_failed_to_send_is_a_failure():
    with pytest.raises(SystemFailed, match="RocketMQ's Producer"):
        rocketmq.sent_of(SENDING.format(tps=9, failed=3_000))


def test_rate_of_the_kafka_producer_tool_is_read_from_each_report():
    line = "330632 records sent, 659944.1 records/sec (62.94 MB/sec), 489.7 ms avg latency, 552.0 "
    assert java_tools.produced_rate_of(line) == 659_944.1
    assert java_tools.produced_rate_of("SLF4J: Defaulting to no-operation") is None
    with pytest.raises(SystemFailed, match="reported errors"):
        java_tools.produced_rate_of("org.apache.kafka.common.errors.TimeoutException: Expiring")


def test_rate_of_the_kafka_consumer_tool_is_read_from_each_report():
    line = "2026-11-21 21:01:48:694, 0, 89.3135, 357.25, 91457, 365824.0, 0, 250, 357.25, 365824.0"
    assert java_tools.consumed_rate_of(line) == 365_824
    assert java_tools.consumed_rate_of("SLF4J: a, b, c, d, e, f, g, h, i, j, k") is None


SHARED = (
    "SLF4J: no providers\n"
    "2026-11-23 09:54:20:000, 2026-11-23 09:54:22:000, 9.5367, 4.7684, {rate}, {count}, 2000, 1\n"
)


def test_kafkas_share_consumer_reports_its_rate(monkeypatch):
    monkeypatch.setattr(java_tools, "_run", lambda *_: SHARED.format(rate="50000.0", count=100_000))
    assert java_tools.share_consumer_performance("b", "t", "g", 100_000) == 50_000


@pytest.mark.parametrize("output", ["", "no rate\n", SHARED.format(rate="5.0", count=99_999)])
def test_kafkas_share_consumer_that_did_not_receive_everything_is_a_failure(monkeypatch, output):
    monkeypatch.setattr(java_tools, "_run", lambda *_: output)
    with pytest.raises(SystemFailed):
        java_tools.share_consumer_performance("b", "t", "g", 100_000)
