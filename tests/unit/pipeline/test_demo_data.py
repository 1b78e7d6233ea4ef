"""The flights are what the package ships, and the chart is a picture."""

import json
from itertools import islice

from headrace.pipeline.demo.chart import draw_chart
from headrace.pipeline.demo.delays import Delay
from headrace.pipeline.demo.flights import FLIGHT_COUNT, airlines, flights


def test_all_flights_come_in_event_time_order_as_json():
    count, last_ms = 0, 0
    for flight in flights():
        assert flight.event_time_ms >= last_ms
        last_ms = flight.event_time_ms
        count += 1
    assert count == FLIGHT_COUNT


def test_a_flight_reads_back():
    first = next(islice(flights(), 1))
    assert first.key == b"UA1545"
    assert json.loads(first.value) == {
        "flight": "UA1545", "carrier": "UA", "tail": "N14228", "from": "EWR", "to": "IAH",
        "scheduled_ms": 1_357_035_300_000, "dep_delay": 2, "arr_delay": 11, "miles": 1400,
    }  # fmt: skip


def test_the_chart_is_drawn_with_the_airlines_names(tmp_path):
    assert airlines()["B6"] == "JetBlue Airways"
    delays = [Delay("B6", hour, 100, 90, 90.0 * hour) for hour in range(5, 24)]
    path = draw_chart([*delays, Delay("AS", 7, 3, 0, 0.0)], airlines(), tmp_path / "c.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
