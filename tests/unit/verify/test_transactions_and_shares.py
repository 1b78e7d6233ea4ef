"""Checkers for what the broker is still to get: transactions and share groups, on known faults."""

from __future__ import annotations

from headrace_verify.checkers import judge_history
from headrace_verify.history import INVOKE, OK

TOPIC = "t"


class Story:
    """Events by hand, a tick apart."""

    def __init__(self):
        self.events = []

    def put(self, kind, operation, process="p", **fields):
        at_ns = len(self.events) + 1
        event = {"t": at_ns, "p": process, "k": kind, "f": operation, "topic": TOPIC}
        self.events.append(event | {"since": at_ns} | fields)
        return self

    def send(self, value, offset, txn=None, part=0):
        fields = {"part": part, "value": value, "txn": txn}
        self.put(INVOKE, "send", **fields)
        return self.put(OK, "send", **fields, offset=offset)

    def end(self, txn, how="commit"):
        return self.put(OK, "transaction", txn=txn, end=how)

    def poll(self, *records, process="c", **fields):
        return self.put(OK, "poll", process, recs=[list(record) for record in records], **fields)

    def acquire(self, member, *records, until=1000, ordered=True):
        fields = {"group": "s", "member": member, "until": until, "ordered": ordered}
        return self.put(OK, "acquire", member, recs=[list(r) for r in records], **fields)

    def settle(self, member, how, *records):
        fields = {"group": "s", "member": member, "how": how}
        return self.put(OK, "settle", member, recs=[list(r) for r in records], **fields)

    def kinds(self):
        return set(judge_history(self.events).counts)


def test_committed_and_aborted_transactions_that_are_right_pass():
    story = Story().send(1, 0, "a").send(2, 0, "a", part=1).end("a")
    story.send(3, 2, "b").end("b", "abort").send(4, 4, "c").end("c")  # 1, 3: markers
    story.poll((0, 0, 1), (0, 4, 4), (1, 0, 2)).put(OK, "drained", group="none")
    assert story.kinds() == set()


def test_a_transaction_read_in_part_is_torn():
    story = Story().send(1, 0, "a").send(2, 1, "a", part=1).end("a").send(3, 2, part=1)
    assert story.poll((0, 0, 1), (1, 2, 3)).kinds() == {"torn transaction", "lost write"}


def test_an_aborted_transaction_that_is_read_is_an_aborted_read():
    assert Story().send(1, 0, "a").end("a", "abort").poll((0, 0, 1)).kinds() == {"aborted read"}


def test_a_transaction_that_polls_its_own_value_reads_too_early():
    story = Story().send(1, 0, "a").poll((0, 0, 1), process="p", txn="a").end("a")
    assert story.kinds() == {"precommitted read"}


def test_writes_that_interleave_both_ways_are_g0():
    story = Story().send(1, 0, "a").send(2, 1, "b")
    story.send(3, 0, "b", part=1).send(4, 1, "a", part=1).end("a").end("b")
    assert story.poll((0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4)).kinds() == {"G0"}


def test_two_transactions_that_read_each_other_are_g1c():
    story = Story().send(1, 0, "a").send(2, 0, "b", part=1)
    story.poll((1, 0, 2), process="p", txn="a").poll((0, 0, 1), process="q", txn="b")
    assert story.end("a").end("b").kinds() == {"G1c"}


def test_two_transactions_that_miss_each_others_writes_are_g2():
    story = Story().send(1, 0).send(2, 0, part=1)
    story.poll((0, 0, 1), process="p", txn="a").poll((1, 0, 2), process="q", txn="b")
    story.send(3, 1, "b").send(4, 1, "a", part=1).end("a").end("b")
    story.poll((0, 0, 1), (0, 1, 3), (1, 0, 2), (1, 1, 4), process="r")
    assert story.kinds() == {"G2"}


def test_share_deliveries_that_are_right_pass():
    story = Story().acquire("m1", (0, 0, 1, "k"), (0, 1, 2, "l"))
    story.settle("m1", "release", (0, 0)).acquire("m2", (0, 0, 1, "k"))
    story.settle("m2", "accept", (0, 0)).acquire("m2", (0, 2, 3, "k"), until=8)
    story.settle("m1", "dead", (0, 1)).put(OK, "note").put(OK, "note")
    story.acquire("m1", (0, 2, 3, "k"))  # the lock ran out
    story.settle("m1", "accept", (0, 2)).put(OK, "drained", group="s")
    assert story.kinds() == set()


def test_a_key_is_never_twice_in_flight_in_ordered_mode():
    def story(*, ordered):
        first = Story().acquire("m1", (0, 0, 1, "k"), ordered=ordered)
        return first.acquire("m2", (0, 1, 2, "k"), ordered=ordered)

    assert story(ordered=True).kinds() == {"key twice in flight"}
    assert story(ordered=False).kinds() == set()


def test_a_message_is_held_by_one_and_ends_once():
    twice = Story().acquire("m1", (0, 0, 1, None)).acquire("m2", (0, 0, 1, None))
    assert twice.kinds() == {"held twice"}
    again = Story().acquire("m1", (0, 0, 1, "k")).settle("m1", "accept", (0, 0))
    assert again.acquire("m1", (0, 0, 1, "k")).kinds() == {"delivered after its end"}


def test_a_message_that_nobody_settles_is_reported_once_the_group_is_done():
    story = Story().acquire("m1", (0, 0, 1, "k"))
    assert story.kinds() == set()
    assert story.put(OK, "drained", group="s").kinds() == {"never settled"}
