"""A history outlives its writers: whole lines, in the order of time, whatever was killed."""

from __future__ import annotations

import json
import threading

from headrace_verify.history import FORMAT, INVOKE, OK, History, read_history, write_merged


def test_half_a_line_of_a_killed_process_is_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    history = History(path, "a")
    op = history.invoke("commit", offs=[])
    history.write(OK, "commit", op=op)
    history.close()
    with path.open("ab") as file:
        file.write(b'{"t":12,"p":"a","k":"ok"')
    assert [event["k"] for event in read_history(path)] == [INVOKE, OK]


def test_files_are_merged_by_time_after_a_line_that_names_the_format(tmp_path):
    first, second = (History(tmp_path / f"{name}.jsonl", name) for name in "ab")
    for number in range(50):
        (first, second)[number % 3 == 0].write(OK, "note", number=number)
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    target = tmp_path / "all.jsonl"
    assert write_merged(paths, target) == 50
    head, *lines = target.read_text().splitlines()
    assert json.loads(head)["f"] == FORMAT
    assert [json.loads(line)["number"] for line in lines] == list(range(50))


def test_threads_write_whole_lines_in_the_order_of_their_times(tmp_path):
    path = tmp_path / "a.jsonl"
    history = History(path, "a")
    threads = [
        threading.Thread(target=lambda: [history.write(OK, "note") for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = [event["t"] for event in read_history(path)]
    assert len(times) == 2000
    assert times == sorted(times)
