"""Values that anyone may have written into a message do not stop a page of the console."""

from __future__ import annotations

import json

DASH = "\u2013"


def test_values_that_are_no_number_or_no_time_are_shown_as_a_dash(run_script):
    script = """
      const { count, time } = await import("./format.js");
      console.log(JSON.stringify([given0.map(count), given0.map(time)]));
    """
    hostile = [None, {"toString": 1}, [1]]
    counted, times = run_script(script, [*hostile, "boom", -1, 9 * 10**18, 7])
    assert counted[:3] == [DASH] * 3
    assert counted[-1] == "7"
    assert times[:-1] == [DASH] * 6
    assert times[-1].startswith("01/01/1970")


RESULT = {"job": "proof", "of": "orders", "summary": "ok", "result": {"lag": 1}}


def test_a_result_has_the_types_that_are_drawn_and_the_place_of_its_record(run_script):
    script = """
      const { written } = await import("./pages/results.js");
      const record = { partition: 1, offset: 2, timestamp_ms: 3 };
      console.log(JSON.stringify(given0.map((value) => written({ ...record, value }))));
    """
    forged = {"timestamp_ms": "boom", "offset": 9, "partition": "x", "value": "y"}
    wrong = [{"job": 1}, {"of": None}, {"summary": {"toString": 1}}, {"result": "x"}]
    values = [RESULT | forged, *(RESULT | one for one in wrong), [], None, 5]
    found = run_script(script, [*map(json.dumps, values), "no JSON", None])
    assert found[0] == {**RESULT, "partition": 1, "offset": 2, "timestamp_ms": 3}
    assert found[1:] == [None] * 9


LATEST = """
  const asked = [];
  globalThis.fetch = async (url) => {
    const query = new URL(url, "http://broker").searchParams;
    const offset = Number(query.get("offset"));
    asked.push(offset);
    const next = Math.min(offset + given0, given1);
    const records = [];
    for (let at = offset; at < next; at += 1) records.push({ offset: at, value: "v" });
    const answer = { records, next_offset: next, start_offset: 0, end_offset: 60 };
    const text = JSON.stringify(answer);
    return { ok: true, status: 200, headers: new Headers(), text: async () => text };
  };
  const { latest } = await import("./pages/messages.js");
  const topic = { name: "t", partitions: [{ partition: 0, start_offset: 0, end_offset: 60 }] };
  const { records } = await latest(topic, 0, undefined, undefined);
  console.log(JSON.stringify([asked, records.map((one) => one.offset)]));
"""


def test_the_newest_messages_are_read_even_if_one_read_does_not_reach_them(run_script):
    assert run_script(LATEST, 100, 60) == [[10], [*range(10, 60)]]
    assert run_script(LATEST, 20, 60) == [[10, 30, 50], [*range(10, 60)]]
    asked, shown = run_script(LATEST, 5, 60)
    assert asked == [10, 15, 20, 55], "after a few reads those between are skipped"
    assert shown == [*range(10, 25), *range(55, 60)]
    assert run_script(LATEST, 100, 40) == [[10, 40], [*range(10, 40)]], "an open transaction"
