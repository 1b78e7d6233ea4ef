"""Topics in memory for the sink's protocol: every call is a step at which a scheduler decides.

A writer that is killed leaves behind a part of what it had queued: requests that were in flight.
"""

import threading
from collections import defaultdict
from zlib import crc32

from headrace.pipeline.delivery import Bounds, TopicTraits
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.written import WRITTEN_HEADER, Stored


class Killed(BaseException):
    """The process ends here."""


class Topics:
    """What the broker holds."""

    def __init__(self, partitions):
        self.logs = {name: [[] for _ in range(count)] for name, count in partitions.items()}
        self.starts = defaultdict(int)
        self.committed = defaultdict(dict)
        self.traits = defaultdict(TopicTraits)

    def add_partition(self, topic):
        self.logs[topic].append([])

    def rows(self, topic):
        """(key, value) of all records."""
        return [(each.key, each.value) for log in self.logs[topic] for each in log]


class Client:
    """One process's TargetTopics. `step` is called before each call; it may raise Killed."""

    def __init__(self, topics, step=lambda: None):
        self._topics = topics
        self._step = step
        self._queued = []

    def bounds(self, topic):
        self._step()
        if topic not in self._topics.logs:
            raise OptionInvalid(f"There is no topic {topic!r}.")
        return {
            number: Bounds(self._topics.starts[topic, number], len(log))
            for number, log in enumerate(self._topics.logs[topic])
        }

    def traits(self, topic):
        self._step()
        return self._topics.traits[topic]

    def wait_settled(self, topic):
        return self.bounds(topic)

    def marks(self, group):
        self._step()
        return dict(self._topics.committed[group])

    def commit_marks(self, group, marks):
        self._step()
        self._topics.committed[group].update(marks)

    def produce(self, rows, written):
        for each in zip(rows, written, strict=True):
            self._step()
            self._queued.append(each)

    def flush(self):
        while self._queued:
            self._step()
            self.store(1)

    def store(self, count):
        """`count` of what is queued reaches the log."""
        for row, written in self._queued[:count]:
            logs = self._topics.logs[row.topic]
            number = row.partition if row.partition >= 0 else crc32(row.value or b"") % len(logs)
            headers = (*row.headers, (WRITTEN_HEADER, written))
            logs[number].append(
                Stored(number, row.key, row.value, headers, row.timestamp_ms or 1_700_000_000_000)
            )
        del self._queued[:count]

    @property
    def queued_count(self):
        return len(self._queued)

    def records(self, topic, partition, start, end):
        self._step()
        return iter(self._topics.logs[topic][partition][start:end])


class Scheduler:
    """Runs processes one step at a time; `choose(alive)` says which, and whether it dies there."""

    def __init__(self, choose):
        self._choose = choose

    def run(self, processes):
        """`processes` are called with a `step`; returns what each returned or raised."""
        results = [None] * len(processes)
        turns = [threading.Semaphore(0) for _ in processes]
        running = threading.Semaphore(0)
        done = [False] * len(processes)
        doomed = set()

        def step(index):
            running.release()
            turns[index].acquire()
            if index in doomed:
                raise Killed

        def body(index):
            turns[index].acquire()
            try:
                if index in doomed:
                    raise Killed
                results[index] = processes[index](lambda: step(index))
            except BaseException as error:
                results[index] = error
            done[index] = True
            running.release()

        threads = [threading.Thread(target=body, args=(index,)) for index in range(len(processes))]
        for thread in threads:
            thread.start()
        while not all(done):
            alive = [index for index, is_done in enumerate(done) if not is_done]
            index, dies = self._choose(alive)
            if dies:
                doomed.add(index)
            turns[index].release()
            running.acquire()
        for thread in threads:
            thread.join()
        return results
