"""The sink's protocol against a model: every row once, over any cut, kill and replay."""

from collections import Counter
from itertools import chain
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.pipeline.topics_in_memory import Client, Killed, Scheduler, Topics

from headrace.pipeline.delivery import TaskDelivery, TopicTraits, commit_batch
from headrace.pipeline.errors import OptionInvalid, RowInvalid, RowsChanged
from headrace.pipeline.written import RowToWrite, WriteIdentity

NAMES = ("one", "two")
ATTEMPTS_MAX = 4

rows = st.lists(
    st.builds(
        RowToWrite,
        topic=st.sampled_from(NAMES),
        partition=st.sampled_from([-1, -1, 0, 1]),
        key=st.sampled_from([None, b"", b"k"]),
        value=st.sampled_from([None, b"", b"a", b"b", b"c"]),
        headers=st.sampled_from([(), (("h", None),), (("h", b""),)]),
        timestamp_ms=st.sampled_from([0, 0, 5]),
    ),
    max_size=12,
)


# A run makes hundreds of choices: one seed for all of them is ten times faster than to draw each.
seeds = st.builds(Random, st.integers(0, 2**32))


def cut(rng, batch):
    """The batch in tasks: any sizes, some empty, and perhaps in another order."""
    order = rng.sample(batch, len(batch)) if rng.random() < 0.5 else batch
    edges = sorted(rng.randint(0, len(batch)) for _ in range(rng.randint(0, 3)))
    return [order[low:high] for low, high in zip([0, *edges], [*edges, len(batch)], strict=True)]


class Cluster:
    """A driver with its workers, killed and restarted; `kills` bounds what may go wrong."""

    def __init__(self, rng, topics, kills, *, at_least_once=False):
        self.rng = rng
        self.topics = topics
        self.kills = kills
        self.runs = 0
        self.at_least_once = at_least_once

    def choose(self, alive):
        index = self.rng.choice(alive)
        dies = self.kills > 0 and self.rng.random() < 0.08
        self.kills -= dies
        if self.rng.random() < 0.05:
            self.topics.add_partition(self.rng.choice(NAMES))
        return index, dies

    def run(self, number, batch):
        """One execution of a micro-batch; whether it was completed. Raises what the sink raises."""
        self.runs += 1
        reports = self._tasks(number, f"run{self.runs}", cut(self.rng, batch))
        if reports is None:
            return False
        return (
            self._once(
                lambda client: commit_batch(client, reports, at_least_once=self.at_least_once)
            )
            is not None
        )

    def _tasks(self, number, run, pieces):
        reports = {}
        for attempt in range(ATTEMPTS_MAX):
            left = [task for task in range(len(pieces)) if task not in reports]
            clients = {task: [] for task in left}

            def process(task, attempt=attempt, clients=clients):
                def body(step):
                    client = Client(self.topics, step)
                    clients[task].append(client)
                    identity = WriteIdentity("q", number, run, task, attempt)
                    delivery = TaskDelivery(client, identity, at_least_once=self.at_least_once)
                    for at in range(0, len(pieces[task]), 3):
                        delivery.send(pieces[task][at : at + 3])
                    return delivery.finish()

                return body

            found = Scheduler(self.choose).run([process(task) for task in left])
            for task, result in zip(left, found, strict=True):
                if isinstance(result, Killed):
                    self._in_flight(clients[task])
                elif isinstance(result, BaseException):
                    raise result
                else:
                    reports[task] = result
            if len(reports) == len(pieces):
                return list(reports.values())
            if self.rng.random() < 0.5:  # the driver dies as well
                return None
        return None

    def _once(self, action):
        clients = []

        def body(step):
            clients.append(Client(self.topics, step))
            return action(clients[0])

        (result,) = Scheduler(self.choose).run([body])
        if isinstance(result, Killed):
            self._in_flight(clients)
            return None
        if isinstance(result, BaseException):
            raise result
        return result

    def _in_flight(self, clients):
        for client in clients:
            client.store(self.rng.randint(0, client.queued_count))


def content(batch):
    """What the topics must hold: topic, then the fields that a record has of its row."""
    return Counter((row.topic, row.key, row.value, tuple(row.headers)) for row in batch)


def stored(topics):
    return Counter(
        (name, each.key, each.value, tuple(each.headers[:-1]))
        for name, logs in topics.logs.items()
        for log in logs
        for each in log
    )


@settings(max_examples=300, deadline=None)
@given(seeds, st.lists(rows, min_size=1, max_size=3))
def test_every_row_is_written_once_however_batches_are_cut_and_killed(rng, batches):
    topics = Topics(dict.fromkeys(NAMES, 2))
    cluster = Cluster(rng, topics, kills=rng.randint(0, 5))
    for number, batch in enumerate(batches):
        while not cluster.run(number, batch):
            pass
        # The driver may die before Spark commits the batch: it replays a done batch.
        for _ in range(rng.randint(0, 2)):
            cluster.run(number, batch)
        assert stored(topics) == content(chain.from_iterable(batches[: number + 1]))
    everything = chain.from_iterable(batches)
    explicit = Counter((row.topic, row.partition, row.key) for row in everything)
    explicit = Counter({each: count for each, count in explicit.items() if each[1] >= 0})
    found = Counter(
        (name, each.partition, each.key)
        for name, logs in topics.logs.items()
        for log in logs
        for each in log
    )
    assert explicit <= found


@settings(max_examples=300, deadline=None)
@given(seeds, rows, rows)
def test_a_batch_that_is_committed_has_exactly_its_rows_or_fails(rng, before, after):
    topics = Topics(dict.fromkeys(NAMES, 2))
    cluster = Cluster(rng, topics, kills=2)
    was_done = cluster.run(0, before)
    written = stored(topics)
    try:
        while not cluster.run(0, after):
            pass
    except RowsChanged:
        assert written
        assert Counter(map(repr, before)) != Counter(map(repr, after))
        return
    if was_done and before:
        assert stored(topics) == written
    assert stored(topics) == content(after)


@settings(max_examples=150, deadline=None)
@given(seeds, rows, rows)
def test_at_least_once_goes_on_and_loses_nothing(rng, before, after):
    topics = Topics(dict.fromkeys(NAMES, 2))
    Cluster(rng, topics, kills=2).run(0, before)
    cluster = Cluster(rng, topics, kills=0, at_least_once=True)
    cluster.runs = 50
    assert cluster.run(0, after)
    assert content(after) <= stored(topics)
    exact = Cluster(rng, topics, kills=2)
    exact.runs = 100
    lengths = sum(map(len, (log for logs in topics.logs.values() for log in logs)))
    while not exact.run(1, after):
        pass
    assert sum(stored(topics).values()) == lengths + len(after)


def test_a_batch_with_other_rows_is_named_and_not_committed():
    topics = Topics({"one": 1})
    client = Client(topics)

    def run(name, values):
        delivery = TaskDelivery(client, WriteIdentity("q", 4, name, 0))
        for value in values:
            delivery.send([RowToWrite("one", -1, None, value, (), 0)])
        commit_batch(client, [delivery.finish()])

    run("a", [b"1", b"2"])
    with pytest.raises(RowsChanged, match=r"batch 4 of query q.*delivery=atLeastOnce"):
        run("b", [b"1", b"3"])
    run("c", [b"2", b"1"])
    assert [value for _, value in topics.rows("one")] == [b"1", b"2"]


def test_a_compacted_topic_is_refused_before_anything_is_written():
    topics = Topics({"one": 1})
    topics.traits["one"] = TopicTraits(is_compacted=True)
    client = Client(topics)
    delivery = TaskDelivery(client, WriteIdentity("q", 0, "a", 0))
    with pytest.raises(OptionInvalid, match=r"old value of a key.*delivery=atLeastOnce"):
        delivery.send([RowToWrite("one", -1, b"k", b"v", (), 0)])
    assert client.queued_count == 0
    assert not topics.committed["headrace-sink.q"]


def test_at_least_once_ends_with_the_last_value_of_each_key_however_attempts_fail():
    """A compacted topic: `1` was written and has been dropped since, when the task is repeated."""
    topics = Topics({"one": 1})
    topics.traits["one"] = TopicTraits(is_compacted=True)
    for attempt in range(2):
        client = Client(topics)
        delivery = TaskDelivery(client, WriteIdentity("q", 0, "a", 0, attempt), at_least_once=True)
        for value in (b"1", b"2"):
            delivery.send([RowToWrite("one", -1, b"k", value, (), 0)])
        report = delivery.finish()
        if attempt == 0:
            del topics.logs["one"][0][0]
    commit_batch(client, [report], at_least_once=True)
    assert topics.rows("one")[-1] == (b"k", b"2")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("headrace-delay", b"60000"),
        ("headrace-deliver-at", b"5"),
        ("headrace-half", b"shop"),
        ("headrace-producer", b"relay"),
    ],
)
def test_a_row_that_the_broker_would_not_append_as_it_is_is_refused(header, value):
    topics = Topics({"reads": 1, "plain": 1})
    topics.traits["reads"] = TopicTraits(reads_attributes=True)
    harmless = [("headrace-tag", b"vip"), (header, None), ("h", value)]

    def send(topic, headers, **options):
        client = Client(topics)
        delivery = TaskDelivery(client, WriteIdentity("q", 0, topic, 0), **options)
        delivery.send([RowToWrite(topic, -1, b"k", b"v", headers, 0)])
        return client.queued_count

    assert send("reads", harmless) == send("plain", [(header, value)]) == 1
    assert send("reads", [(header, value)], at_least_once=True) == 1
    with pytest.raises(RowInvalid, match=rf"header {header}, which this topic reads.*atLeastOnce"):
        send("reads", [*harmless, (header, value)])
