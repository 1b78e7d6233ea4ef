"""Checkers of transactions, queues and share groups, on known faults."""

from __future__ import annotations

from headrace_verify.checkers import check_events
from headrace_verify.history import FAIL, INVOKE, OK

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

    def acquire(self, member, *records, ordered=True, **fields):
        fields |= {"group": "s", "member": member, "ordered": ordered}
        return self.put(OK, "acquire", member, recs=[list(r) for r in records], **fields)

    def settle(self, member, how, *records, kind=OK, **fields):
        fields |= {"group": "s", "member": member, "how": how}
        return self.put(kind, "settle", member, recs=[list(r) for r in records], **fields)

    def kinds(self):
        return set(check_events(self.events).counts)


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


def test_writes_may_interleave_both_ways():
    story = Story().send(1, 0, "a").send(2, 1, "b")
    story.send(3, 0, "b", part=1).send(4, 1, "a", part=1).end("a").end("b")
    assert story.poll((0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4)).kinds() == set()


def test_a_value_read_before_its_transaction_was_asked_to_commit_is_a_dirty_read():
    def story(*, is_early):
        told = Story().send(1, 0, "a")
        ask = {"txn": "a", "end": "commit"}
        told.poll((0, 0, 1)) if is_early else told.put(INVOKE, "transaction", **ask)
        told.put(INVOKE, "transaction", **ask) if is_early else told.poll((0, 0, 1))
        return told.end("a").kinds()

    assert story(is_early=True) == {"dirty read"}
    assert story(is_early=False) == set()


def copies(*offsets, committed=2):
    """Two records, copies of some of them, and how far the copier has committed."""
    story = Story().send(1, 0).send(2, 1).poll((0, 0, 1), (0, 1, 2))
    offs = {"group": "g", "offs": [[TOPIC, 0, committed]]}
    story.put(INVOKE, "commit", op=1, txn="a", **offs)
    for at, offset in enumerate(offsets):
        fields = {"part": 1, "value": 10 + at, "txn": "a", "of": [TOPIC, 0, offset]}
        story.put(INVOKE, "send", **fields).put(OK, "send", **fields, offset=at)
    story.end("a").put(OK, "commit", op=1)
    story.poll(*((1, at, 10 + at) for at in range(len(offsets))))
    return story.put(OK, "committed", "c", **offs).kinds()


def test_each_record_that_was_committed_as_copied_has_one_copy():
    assert copies(0, 1) == set()
    assert copies(0, committed=1) == set()
    assert copies(0) == {"copy lost"}
    assert copies(0, 1, 1) == {"copied twice"}


def test_two_transactions_that_read_each_other_are_g1c():
    story = Story().send(1, 0, "a").send(2, 0, "b", part=1)
    story.poll((1, 0, 2), process="p", txn="a").poll((0, 0, 1), process="q", txn="b")
    assert story.end("a").end("b").kinds() == {"G1c"}


def test_share_deliveries_that_are_right_pass():
    story = Story().acquire("m1", (0, 0, 1, "k"), (0, 1, 2, "l"))
    story.settle("m1", "release", (0, 0)).acquire("m2", (0, 0, 1, "k"))
    story.settle("m2", "accept", (0, 0)).acquire("m2", (0, 2, 3, "k"))
    story.settle("m1", "dead", (0, 1))
    story.acquire("m1", (0, 2, 3, "k"))  # the lock ran out
    story.settle("m2", "accept", (0, 2), kind=FAIL).settle("m1", "accept", (0, 2))
    story.poll((0, 0, 1), (0, 1, 2), (0, 2, 3))
    story.put(OK, "drained", group="s", upto=[[TOPIC, 0, 3]])
    assert story.kinds() == {"stranger"}, "nobody has sent them"


def test_a_key_is_never_twice_in_flight_in_ordered_mode():
    def story(*, ordered):
        first = Story().acquire("m1", (0, 0, 1, "k"), ordered=ordered)
        second = first.acquire("m2", (0, 1, 2, "k"), ordered=ordered)
        return second.settle("m1", "release", (0, 0)).kinds()

    assert story(ordered=True) == {"key twice in flight"}
    assert story(ordered=False) == set()
    one = Story().acquire("m1", (0, 0, 1, "k"), (0, 1, 2, "k"))
    assert one.kinds() == {"key twice in flight"}


def test_a_key_goes_on_when_the_one_before_is_finished():
    story = Story().acquire("m1", (0, 0, 1, "k")).settle("m1", "release", (0, 0))
    story.acquire("m2", (0, 1, 2, "k")).settle("m2", "accept", (0, 1))
    story.acquire("m1", (0, 0, 1, "k")).settle("m1", "accept", (0, 0))
    assert story.kinds() == {"key out of order"}


def test_a_message_is_held_by_one_and_ends_once():
    twice = Story().acquire("m1", (0, 0, 1, None)).acquire("m2", (0, 0, 1, None))
    assert twice.kinds() == set(), "the first lock may have ended"
    assert twice.settle("m1", "accept", (0, 0)).kinds() == {"held twice"}
    again = Story().acquire("m1", (0, 0, 1, "k")).settle("m1", "accept", (0, 0))
    assert again.acquire("m1", (0, 0, 1, "k")).kinds() == {"delivered after its end"}


def test_a_message_that_was_released_does_not_come_before_its_time():
    story = Story().acquire("m1", (0, 0, 1, None))
    story.settle("m1", "release", (0, 0), delay=10).acquire("m2", (0, 0, 1, None))
    assert story.kinds() == {"redelivered early"}


def test_an_unsettled_message_is_reported_once_the_group_is_done():
    story = Story().send(1, 0).acquire("m1", (0, 0, 1, "k")).poll((0, 0, 1))
    assert story.kinds() == set()
    drained = story.put(OK, "drained", group="s", upto=[[TOPIC, 0, 1]])
    assert drained.kinds() == {"never settled"}


def test_a_delayed_value_does_not_come_before_its_time():
    def story(due):
        fields = {"part": 0, "value": 1, "due": due}
        sent = Story().put(INVOKE, "send", **fields).put(OK, "send", **fields, offset=-1)
        return sent.poll((0, 0, 1)).kinds()

    assert story(due=2_000_000) == {"delivered early"}
    assert story(due=3) == set()
