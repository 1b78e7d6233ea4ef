"""Checkers of queues: each fault in a history is found, and what is right passes."""

from __future__ import annotations

import pytest

from headrace_verify.checkers import check_events
from headrace_verify.checkers.facts import gather
from headrace_verify.checkers.share_ends import count_messages
from headrace_verify.history import FAIL, INFO, INVOKE, OK

TOPIC, GROUP = "q", "s"
MS = 1_000_000


class Story:
    """Events by hand; each comes a millisecond after the one before."""

    def __init__(self):
        self.events = []
        self.at_ms = 0
        self.offset = 0
        self.op = 0

    def wait(self, ms):
        self.at_ms += ms
        return self

    def put(self, kind, operation, process="p", **fields):
        self.at_ms += 1
        event = {"t": self.at_ms * MS, "p": process, "k": kind, "f": operation, "topic": TOPIC}
        self.events.append(event | {"since": self.at_ms * MS - MS // 2} | fields)
        return self

    def send(self, value, *, is_stored=True, **more):
        """A message; where it is stored, the log has it from then on."""
        fields = {"part": 0, "value": value}
        self.put(INVOKE, "send", **fields, **more)
        offset = self.offset if "due" not in more else -1
        self.put(OK, "send", **fields, offset=offset)
        if is_stored:
            self.put(OK, "poll", recs=[[0, self.offset, value]], epochs=[
                [0, self.offset, self.offset + 1, 1]])  # fmt: skip
            self.offset += 1
        return self

    def acquire(self, member, *records, lock=0, **fields):
        fields |= {"group": GROUP, "member": member, "recs": [[0, *one] for one in records]}
        if lock:
            fields["lock"] = lock
        return self.put(OK, "acquire", member, **fields)

    def ask(self, member, how, offset, **fields):
        self.op += 1
        fields |= {"op": self.op, "group": GROUP, "member": member, "how": how}
        return self.put(INVOKE, "settle", member, recs=[[0, offset]], **fields)

    def settle(self, member, how, offset, kind=OK, **fields):
        self.ask(member, how, offset, **fields)
        return self.told(member, how, offset, kind, **fields)

    def told(self, member, how, offset, kind=OK, **fields):
        fields |= {"op": self.op, "group": GROUP, "member": member, "how": how}
        fields["since"] = self.events[-1]["t"]
        return self.put(kind, "settle", member, recs=[[0, offset]], **fields)

    def dead(self, offset, value, at=(0, 0), **fields):
        origin = {"part": 0, "offset": offset, "value": value, "at": list(at)}
        return self.put(OK, "dead", group=GROUP, **origin, **fields)

    def note(self, **fields):
        return self.put(OK, "note", **fields)

    def drained(self):
        upto = [[TOPIC, 0, self.offset]]
        return self.put(OK, "drained", group=GROUP, upto=upto, dead=True)

    def kinds(self):
        return set(check_events(self.events).counts)

    def counts(self):
        return {k: n for k, n in count_messages(gather(self.events))[GROUP].items() if n}


def test_messages_that_end_in_every_way_are_counted():
    story = Story().send(1).send(2).send(3, expires=True, until=200 * MS).send(4)
    story.acquire("a", (0, 1, "k", 1)).settle("a", "accept", 0)
    story.acquire("b", (1, 2, "k", 1)).settle("b", "dead", 1).dead(1, 2)
    story.acquire("c", (3, 4, "k", 1)).settle("c", "accept", 3, INFO)
    story.send(5, due=400 * MS, is_stored=False).wait(200).drained()
    assert story.kinds() == set()
    wanted = {"sent": 5, "acknowledged": 1, "dead": 1, "expired": 1, "in doubt": 1, "delayed": 1}
    assert story.counts() == wanted


def test_a_superseded_record_of_a_compacted_topic_may_be_missing_and_its_newest_may_not():
    story = Story().send(1).send(2, is_stored=False, superseded=True)
    story.offset += 1
    story.send(3).acquire("a", (0, 1, "k", 1)).settle("a", "accept", 0)
    story.acquire("a", (2, 3, "k", 1)).settle("a", "accept", 2).drained()
    assert story.kinds() == set()
    assert story.counts() == {"sent": 2, "acknowledged": 2}
    story = Story().send(1, superseded=True)
    story.acquire("a", (0, 1, "k", 1)).settle("a", "dead", 0).drained()
    assert story.kinds() == set(), "it has no copy"
    lost = Story().send(1).send(2, is_stored=False)
    lost.offset += 1
    lost.send(3).acquire("a", (0, 1, "k", 1)).settle("a", "accept", 0).drained()
    assert lost.kinds() >= {"lost write", "never settled"}


def test_cancelled_messages_do_not_count_as_sent():
    story = Story().send(1).send(2, due=90 * MS, is_stored=False)
    story.put(FAIL, "send", part=0, value=2)
    story.acquire("a", (0, 1, "k", 1)).settle("a", "accept", 0).drained()
    assert story.counts() == {"sent": 1, "acknowledged": 1}


def test_a_message_that_is_left_over_is_pending_and_reported():
    story = Story().send(1).acquire("a", (0, 1, "k", 1)).drained()
    assert story.kinds() == {"never settled"}
    assert story.counts() == {"sent": 1, "pending": 1}


def test_a_message_that_is_refused_for_good_has_a_copy():
    def story(kind):
        told = Story().send(1).acquire("a", (0, 1, "k", 1))
        return told.settle("a", "dead", 0, kind).drained().kinds()

    assert story(OK) == {"dead letter lost"}
    assert story(INFO) == set(), "nobody knows whether it was refused"


def test_a_message_has_one_copy_also_after_a_takeover():
    def story(place, *, epoch):
        told = Story().send(1).send(2)
        told.events[-1]["epochs"] = [[0, 1, 2, epoch]]
        for offset in (0, 1):
            told.acquire("a", (offset, offset + 1, "k", 1)).settle("a", "reject", offset)
        told.dead(0, 1, (0, 0)).dead(0, 1, place).dead(1, 2, (1, 0))
        return told.drained().kinds()

    assert story((0, 0), epoch=1) == set(), "it was read twice"
    assert story((0, 1), epoch=2) == {"dead letter twice"}
    assert story((2, 0), epoch=1) == {"dead letter twice"}
    assert story((2, 0), epoch=2) == {"dead letter twice"}


def test_a_copy_holds_what_was_sent():
    story = Story().send(1).acquire("a", (0, 1, "k", 1)).settle("a", "dead", 0).dead(0, 7)
    assert story.drained().kinds() == {"dead letter changed"}


def test_a_message_acknowledged_in_time_must_not_become_a_dead_letter():
    def story(wait):
        told = Story().send(1).acquire("a", (0, 1, "k", 1), lock=100).wait(wait)
        return told.settle("a", "accept", 0).dead(0, 1).drained().kinds()

    assert story(0) == {"dead letter of an acknowledged message"}
    assert story(200) == set(), "its lock may have ended before"


def test_a_lock_lasts_as_long_as_it_was_given_for():
    def story(wait, *, lock=100, between=None):
        told = Story().send(1).send(2).acquire("a", (0, 1, "k", 1), lock=lock)
        if between:
            between(told)
        return told.wait(wait).acquire("b", (0, 1, "k", 2), lock=lock).send(3).kinds()

    assert story(50) == {"lock ended early"}
    assert story(100) == set()
    assert story(50, lock=0) == set(), "of a session: it ends with its connection"
    released = story(50, between=lambda told: told.settle("a", "release", 0))
    assert released == set()
    refused = story(50, between=lambda told: told.settle("a", "release", 0, FAIL))
    assert refused == {"lock ended early"}
    killed = story(50, between=lambda told: told.note(what="fault", fault="kill"))
    assert killed == set(), "locks are not stored"
    cut = story(50, between=lambda told: told.note(what="fault", fault="cut"))
    assert cut == {"lock ended early"}


def test_a_lock_is_only_judged_within_one_leader_epoch():
    def story(epoch):
        told = Story().send(1).acquire("a", (0, 1, "k", 1), lock=100)
        told.acquire("b", (0, 1, "k", 2)).send(2)
        told.events[-1]["epochs"] = [[0, 1, 2, epoch]]
        return told.kinds()

    assert story(1) == {"lock ended early"}
    assert story(2) == set()


def test_a_renewed_lock_lasts_longer():
    def story(kind):
        told = Story().send(1).acquire("a", (0, 1, "k", 1), lock=50).wait(30)
        told.settle("a", "renew", 0, kind, lock=100).wait(40)
        return told.acquire("b", (0, 1, "k", 2)).send(2).kinds()

    assert story(OK) == {"lock ended early"}
    assert story(FAIL) == story(INFO) == set()


def test_a_renewal_does_not_end_a_delivery():
    story = Story().send(1).acquire("a", (0, 1, "k", 1)).settle("a", "renew", 0, lock=50)
    story.acquire("b", (0, 1, "k", 2)).settle("a", "accept", 0)
    assert story.kinds() == {"held twice"}


def test_a_message_may_have_been_finished_by_one_whose_answer_is_not_there_yet():
    story = Story().send(1).acquire("a", (0, 1, "k", 1)).acquire("b", (0, 1, "k", 2))
    story.ask("b", "accept", 0)
    asked = story.op
    story.settle("a", "accept", 0)  # of what is over, any settlement is accepted
    story.op = asked
    assert story.told("b", "accept", 0).kinds() == set()


def test_a_settlement_whose_client_was_killed_is_in_doubt():
    story = Story().send(1).acquire("a", (0, 1, "k", 1)).ask("a", "accept", 0).drained()
    assert story.kinds() == set()
    assert story.counts() == {"sent": 1, "in doubt": 1}


@pytest.mark.parametrize("is_loose", [True, False])
def test_a_library_may_have_got_a_message_long_before_it_gives_it(is_loose):
    story = Story().send(1).acquire("a", (0, 1, "k", 1)).settle("a", "accept", 0)
    story.acquire("b", (0, 1, "k", 2), **({"loose": True} if is_loose else {}))
    assert story.kinds() == (set() if is_loose else {"delivered after its end"})


def test_a_delayed_message_is_not_delivered_before_its_time():
    def story(due, **note):
        told = Story().send(1, due=due, is_stored=False).wait(50)
        told.put(OK, "poll", recs=[])
        if note:
            told.note(**note)
        told.acquire("a", (0, 1, "k", 1)).settle("a", "accept", 0).wait(100)
        return told.put(OK, "poll", recs=[[0, 0, 1]]).kinds()

    assert story(100 * MS) == {"delivered early"}
    assert story(20 * MS) == set()
    assert story(100 * MS, what="fault", fault="clock") == set(), "nobody knows what time it was"


def test_an_expired_message_is_not_delivered():
    def story(until):
        told = Story().send(1, expires=True, until=until).wait(50)
        return told.acquire("a", (0, 1, "k", 1)).settle("a", "accept", 0).kinds()

    assert story(20 * MS) == {"delivered when expired"}
    assert story(100 * MS) == set()


def test_the_end_of_a_message_that_was_given_up_by_itself_is_unknown():
    def story(*, is_dead):
        told = Story().send(1).send(2).acquire("a", (0, 1, "k", 1), ordered=True)
        told.acquire("b", (1, 2, "k", 1), ordered=True).settle("b", "accept", 1)
        told.settle("a", "accept", 0)  # of what is over, any settlement is accepted
        return (told.dead(0, 1) if is_dead else told).kinds()

    assert story(is_dead=False) == {"key twice in flight", "key out of order"}
    assert story(is_dead=True) == set()


def test_a_message_in_key_order_is_not_given_while_another_of_its_key_is_held():
    story = Story().send(1).send(2).acquire("a", (0, 1, "k", 1), ordered=True)
    story.acquire("b", (1, 2, "k", 1), ordered=True).settle("a", "accept", 0)
    assert story.kinds() == {"key twice in flight", "key out of order"}


def test_messages_of_a_key_may_come_together_and_then_no_other_one_of_it():
    def story(*, is_late):
        told = Story()
        for value in (1, 2, 3):
            told.send(value)
        fields = {"ordered": True, "together": True}
        told.acquire("a", [0, 1, "k", 1], [1, 2, "k", 1], **fields)
        told.settle("a", "release", 0)
        if not is_late:
            told.settle("a", "accept", 1)
        told.acquire("b", [0, 1, "k", 2], [2, 3, "k", 1], **fields)
        if is_late:
            told.settle("a", "accept", 1)
        return told.settle("b", "accept", 0).settle("b", "accept", 2).kinds()

    assert story(is_late=False) == set()
    assert "key twice in flight" in story(is_late=True)
