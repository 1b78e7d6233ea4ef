"""The driver of transactional clients, over producers in memory: what it writes down is judged."""

from __future__ import annotations

import threading

from headrace_verify.blackbox.context import Context, Spec
from headrace_verify.blackbox.copying import _FIRST, Driver
from headrace_verify.blackbox.transactional import Failed
from headrace_verify.checkers import check_events
from headrace_verify.history import History, read_history

PATIENCE_S = 30
ENOUGH = 12
"""Transactions that have ended: more than those whose ends are set."""


class Broker:
    """What instances of one transactional id have in common."""

    def __init__(self, *, fences=True):
        self.fences = fences
        self.epoch = 0
        self.end = 0


class MemoryInstance:
    """A transactional producer whose records go nowhere."""

    timeout_s = 0.01

    def __init__(self, broker, fails):
        self._broker = broker
        self._fails = fails
        self._epoch = -1

    def init(self):
        self._broker.epoch += 1
        self._epoch = self._broker.epoch

    def begin(self):
        pass

    def send(self, _topic, _part, _data, ended):
        ended(self._broker.end)
        self._broker.end += 1

    def flush(self):
        pass

    def commit(self):
        self._check()
        if self._fails.pop("commit", False):
            raise Failed("in doubt", may_abort=True)

    def abort(self):
        self._check()

    def close(self):
        pass

    def _check(self):
        if self._broker.fences and self._epoch != self._broker.epoch:
            raise Failed("fenced", may_abort=False)


def events_of(folder, broker, fails=None):
    """What a writer puts down in some transactions."""
    spec = Spec("writer", "librdkafka-writer", 1, 1, "", {"orders": 2}, 2000)
    path = folder / "history.jsonl"
    context = Context(spec, History(path, spec.name))
    driver = Driver(context, lambda _id: MemoryInstance(broker, fails or {}))
    thread = threading.Thread(target=driver.run)
    thread.start()
    try:
        for _ in range(PATIENCE_S * 100):
            ends = [
                event
                for event in read_history(path)
                if event["f"] == "transaction" and event["k"] != "invoke"
            ]
            if len(ends) >= ENOUGH:
                break
            thread.join(0.01)
    finally:
        context.over.set()
        thread.join(PATIENCE_S)
    assert len(ends) >= ENOUGH
    return list(read_history(path))


def outcomes(events):
    """Transaction -> the ends that were noted of it."""
    found = {event["txn"]: [] for event in events if event["f"] == "begin"}
    for event in events:
        if event["f"] == "transaction":
            found[event["txn"]].append((event["k"], event["end"]))
    return list(found.values())


def test_the_first_transactions_commit_abort_and_are_fenced(tmp_path):
    events = events_of(tmp_path, Broker())
    asked, committed, aborted = ("invoke", "commit"), ("ok", "commit"), ("fail", "abort")
    first = outcomes(events)[: len(_FIRST)]
    assert first[0] == [asked, committed]
    assert first[1] == [aborted]
    assert [asked] in first[2:], "a fenced instance has asked in vain"
    assert sum(event["f"] == "init" for event in events) >= 3
    assert check_events(events).is_clean


def test_a_broker_that_does_not_fence_is_found(tmp_path):
    events = events_of(tmp_path, Broker(fences=False))
    assert "zombie committed" in check_events(events).counts


def test_a_commit_that_failed_stays_in_doubt_though_an_abort_succeeds(tmp_path):
    events = events_of(tmp_path, Broker(), {"commit": True})
    assert outcomes(events)[0] == [("invoke", "commit")]
