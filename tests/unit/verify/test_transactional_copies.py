"""Checkers of copies in transactions, on the history of a copier, and on each way to spoil it."""

from __future__ import annotations

import pytest

from headrace_verify.checkers import check_events
from headrace_verify.history import FAIL, INVOKE, OK

ORDERS, BILLS, PARCELS, GROUP = "orders", "bills", "parcels", "copies"


class Story:
    """A copier's events, a tick apart: it copies each order into a bill and a parcel."""

    def __init__(self):
        self.events = []
        self._value = 100
        self._op = 0
        self._ends = {}

    def put(self, kind, operation, process="copier", **fields):
        at_ns = len(self.events) + 1
        event = {"t": at_ns, "p": process, "k": kind, "f": operation, "since": at_ns}
        self.events.append(event | fields)

    def orders(self, count):
        for offset in range(count):
            place = {"topic": ORDERS, "part": 0, "value": offset + 1}
            self.put(INVOKE, "send", "writer", **place)
            self.put(OK, "send", "writer", **place, offset=offset)
        records = [[0, offset, offset + 1] for offset in range(count)]
        self.put(OK, "poll", "reader", topic=ORDERS, recs=records)
        return self

    def init(self, instance):
        self.put(OK, "init", id="id", instance=instance)
        return self

    def begin(self, txn, instance="a"):
        self.put(OK, "begin", txn=txn, id="id", instance=instance)
        return self

    def copy(self, txn, *offsets, topics=(BILLS, PARCELS), committed=None):
        """Send copies, and have the group's progress committed with them."""
        self._op += 1
        end = max(offsets) + 1 if committed is None else committed
        offs = [[ORDERS, 0, end]]
        self.put(INVOKE, "commit", op=self._op, group=GROUP, offs=offs, txn=txn)
        for offset in offsets:
            for topic in topics:
                self._value += 1
                at = self._ends[topic] = self._ends.get(topic, -1) + 1
                place = {"topic": topic, "part": 0, "value": self._value}
                self.put(INVOKE, "send", **place, txn=txn, of=[ORDERS, 0, offset])
                self.put(OK, "send", **place, offset=at)
        return self

    def ask(self, txn):
        self.put(INVOKE, "transaction", txn=txn, end="commit")
        return self

    def commit(self, txn):
        self.put(OK, "transaction", txn=txn, end="commit")
        self.put(OK, "commit", op=self._op)
        return self

    def abort(self, txn):
        self.put(FAIL, "transaction", txn=txn, end="abort")
        self.put(FAIL, "commit", op=self._op)
        return self

    def read(self, *transactions, without=()):
        """Read what these transactions have written, but for some offsets of topics."""
        for topic in (BILLS, PARCELS):
            sent = [
                event
                for event in self.events
                if event["f"] == "send" and event["k"] == INVOKE and event["topic"] == topic
            ]
            records = [
                [0, at, event["value"]]
                for at, event in enumerate(sent)
                if event["txn"] in transactions and (topic, at) not in without
            ]
            self.put(OK, "poll", "reader", topic=topic, recs=records)
            upto = {"0": len(sent)}
            self.put(OK, "poll", "reader", topic=topic, recs=[], final=True, upto=upto)
        return self

    def progress(self, offset):
        self.put(OK, "committed", "reader", group=GROUP, offs=[[ORDERS, 0, offset]])
        return self

    def kinds(self):
        return set(check_events(self.events).counts)


def whole():
    """Two transactions that are committed, and one between them that is not."""
    story = Story().orders(4).init("a").begin("1").copy("1", 0, 1).ask("1").commit("1")
    story.begin("2").copy("2", 2).abort("2")
    return story.begin("3").copy("3", 2, 3).ask("3").commit("3")


def test_a_copier_that_aborts_and_goes_on_is_right():
    assert whole().read("1", "3").progress(4).kinds() == set()


def test_a_committed_order_without_its_copies_is_lost():
    story = whole().read("1").progress(4)
    assert "copy lost" in story.kinds()


def test_a_copy_that_only_one_of_two_topics_has_is_lost_and_torn():
    kinds = whole().read("1", "3", without={(PARCELS, 3)}).progress(4).kinds()
    assert {"copy lost", "torn transaction"} <= kinds


def test_an_order_that_is_copied_by_two_transactions_is_copied_twice():
    story = Story().orders(2).init("a").begin("1").copy("1", 0, 1).ask("1").commit("1")
    story.begin("2").copy("2", 1).ask("2").commit("2").read("1", "2").progress(2)
    assert story.kinds() == {"copied twice"}


def test_copies_of_one_partition_keep_its_order():
    story = Story().orders(2).init("a").begin("1").copy("1", 1, 0).ask("1").commit("1")
    assert story.read("1").progress(2).kinds() == {"copied out of order"}


def test_an_aborted_copy_that_is_read_is_an_aborted_read():
    assert "aborted read" in whole().read("1", "2", "3").progress(4).kinds()


def test_records_that_a_killed_client_never_asked_to_commit_must_not_be_read():
    story = Story().orders(1).init("a").begin("1").copy("1", 0)
    assert story.read("1").progress(1).kinds() == {"dirty read"}


@pytest.mark.parametrize("is_read", [True, False])
def test_a_commit_in_doubt_may_go_either_way(is_read):
    story = Story().orders(2).init("a").begin("1").copy("1", 0, 1).ask("1")
    story.read("1") if is_read else story.read()
    assert story.progress(2 if is_read else -1).kinds() == set()


def test_a_commit_in_doubt_must_be_whole():
    story = Story().orders(2).init("a").begin("1").copy("1", 0, 1).ask("1")
    assert "torn transaction" in story.read("1", without={(PARCELS, 1)}).kinds()
    offsets_alone = Story().orders(2).init("a").begin("1").copy("1", 0, 1).ask("1")
    assert offsets_alone.read().progress(2).kinds() == {"copy lost"}


def test_an_acknowledged_part_with_an_unknown_offset_must_be_read_too():
    story = Story().orders(1).init("a").begin("1").copy("1", 0).ask("1")
    for event in story.events:
        if event["f"] == "send" and event.get("topic") == PARCELS and event["k"] == OK:
            event["offset"] = -1
    assert "torn transaction" in story.read("1", without={(PARCELS, 0)}).kinds()


def test_progress_that_goes_back_before_a_committed_transaction_is_found():
    assert whole().read("1", "3").progress(2).kinds() == {"committed regressed"}


def test_a_fenced_instance_must_not_commit():
    def story(*, is_early):
        told = Story().orders(1).init("a").begin("1").copy("1", 0)
        if is_early:
            told.ask("1")
        told.init("b")
        if not is_early:
            told.ask("1")
        return told.commit("1").read("1").progress(1).kinds()

    assert story(is_early=False) == {"zombie committed"}
    assert story(is_early=True) == set(), "the commit may have come first"
