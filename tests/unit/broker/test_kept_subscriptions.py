"""What brokers remember of clients' subscriptions to lite topics, for the next owner."""

from __future__ import annotations

import pytest

from headrace.broker.services import kept_subscriptions
from headrace.broker.services.kept_subscriptions import KeptSubscriptions, Subscriber, restored
from headrace.coordination.shares.lite_commands import ADD, LEAVE, REMOVE, SET

HERE = 1
SESSION_MS = 120_000


class Kept:
    """One broker's, asked about partition 0."""

    def __init__(self) -> None:
        self.kept = KeptSubscriptions()

    def change(self, action, *names, origin=HERE, client="c", stay="s", at_ms=0, topic_id="id"):
        who = Subscriber(origin, "t", "g", client)
        times_ms = at_ms, SESSION_MS
        return self.kept.change(who, topic_id, action, {0: names}, stay, times_ms)

    def told(self, at_ms=0, topic_id="id"):
        return self.kept.of_partition(HERE, "t", topic_id, 0, at_ms)

    def names(self, at_ms=0):
        return {(one.client, *one.names) for one in restored_of(self, at_ms=at_ms)}


def restored_of(*brokers, at_ms=0):
    return restored(one for broker in brokers for one in broker.told(at_ms))


def test_changes_are_those_of_the_client_and_say_what_is_new():
    kept = Kept()
    assert kept.change(ADD, "a", "b") == {0: ["a", "b"]}
    assert kept.change(ADD, "b", "c") == {0: ["c"]}
    assert kept.change(REMOVE, "a") == {}
    assert kept.names() == {("c", "b", "c")}
    assert kept.change(SET, "c", "d") == {0: ["d"]}
    assert kept.names() == {("c", "c", "d")}
    kept.kept.displaced([("t", "g", "c", "d"), ("t", "g", "other", "c"), ("u", "g", "c", "c")])
    assert kept.names() == {("c", "c")}
    assert kept.told(topic_id="of a topic that was recreated") == []


def test_it_is_forgotten_unless_it_is_repeated():
    kept = Kept()
    kept.change(ADD, "a")
    kept.change(ADD, "a", client="d", at_ms=1)
    kept.change(ADD, "b", at_ms=30_000)
    (command,) = restored_of(kept, at_ms=SESSION_MS + 1)
    assert (command.client, command.session_ms) == ("c", 29_999)
    assert kept.names(at_ms=SESSION_MS + 30_000) == set()


def test_a_client_that_leaves_is_forgotten_unless_it_has_returned():
    kept = Kept()
    kept.change(ADD, "a", stay="first")
    kept.change(ADD, "b", stay="second")
    kept.change(LEAVE, stay="first")
    assert kept.names() == {("c", "b")}
    kept.change(LEAVE, stay="second")
    assert kept.told() == []


def test_the_last_stay_of_a_client_counts_and_a_copy_only_without_its_original():
    first, second, third = Kept(), Kept(), Kept()
    first.change(ADD, "a", "b", stay="former")
    second.change(ADD, "c", "d", stay="now", at_ms=1)
    third.change(ADD, "c", "d", stay="now", origin=2, at_ms=2)
    second.change(REMOVE, "c", stay="now", at_ms=3)  # the copy of it was lost
    assert [one.names for one in restored_of(first, second, third, at_ms=3)] == [["d"]]
    assert [one.names for one in restored_of(first, third, at_ms=3)] == [["c", "d"]]
    third.change(LEAVE, stay="", at_ms=4)
    assert restored_of(first, second, third, at_ms=4) == [], "it has left of its own accord"


def test_the_client_that_was_heard_of_last_comes_last():
    kept = Kept()
    for at_ms, client in enumerate(["x", "y", "x"]):
        kept.change(ADD, "a", client=client, at_ms=at_ms)
    assert [one.client for one in restored_of(kept)] == ["y", "x"]


def test_names_are_bounded(monkeypatch):
    monkeypatch.setattr(kept_subscriptions, "NAMES_MAX", 5)
    kept = Kept()
    kept.change(ADD, "a", "b")
    kept.change(ADD, "a", "b", client="d")
    assert kept.names() == {("c", "a", "b")}, "the others wait until they repeat it"
    kept.change(SET, "a")
    kept.change(SET, "a", "b", client="d")
    assert kept.names() == {("c", "a"), ("d", "a", "b")}


def test_clients_without_names_are_bounded_too(monkeypatch):
    monkeypatch.setattr(kept_subscriptions, "NAMES_MAX", 5)
    kept = Kept()
    for number in range(10):
        kept.change(LEAVE, client=f"c{number}", stay="")
    assert len(kept.told()) == 5


@pytest.mark.parametrize("action", [SET, ADD])
def test_what_a_refused_request_added_is_taken_back(action):
    kept = Kept()
    kept.change(ADD, "a")
    new = kept.change(action, "a", "b")
    kept.change(REMOVE, *new[0])
    assert kept.names() == {("c", "a")}
