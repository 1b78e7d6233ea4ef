"""Histories that are right, made by a model log, and every way to spoil one.

A model of one broker is driven at random by producers, plain readers and a group; whatever it says
is right by construction. A mutation changes a few events, and names the kinds that must be found.
"""

from __future__ import annotations

from headrace_verify.history import FAIL, INFO, INVOKE, OK

TOPIC, GROUP = "t", "g"
MEMBERS = ("m1", "m2", "m3")
READERS = ("r1", "r2")
PRODUCERS = ("p1", "p2")


class Model:
    """A log of two partitions, a group, and the history of all that was done."""

    def __init__(self, rng, partitions=2):
        self.rng = rng
        self.now = 0
        self.events = []
        self.logs = [[] for _ in range(partitions)]
        self.epochs = [[] for _ in range(partitions)]  # of each record
        self.epoch = [0] * partitions
        self.next_value = 0
        self.next_op = 0
        self.reader_at = {(name, part): 0 for name in READERS for part in range(partitions)}
        self.generation = 0
        self.owned = {}
        self.position = {}
        self.committed = [-1] * partitions

    def put(self, process, kind, operation, **fields):
        self.now += self.rng.randint(1, 1000)
        event = {"t": self.now, "p": process, "k": kind, "f": operation, **fields}
        self.events.append(event)
        return self.now

    def run(self, steps):
        self.rebalance()
        for _ in range(steps):
            self.rng.choice(
                (
                    *(self.send,) * 6,
                    *(self.read,) * 3,
                    *(self.group_poll,) * 3,
                    self.group_commit,
                    self.list_offsets,
                    self.look_up_committed,
                    *((self.rebalance,) if self.rng.random() < 0.3 else ()),
                )
            )()
        for process in PRODUCERS:  # so that every producer and partition has something
            for part in range(len(self.logs)):
                self.send(process, part, OK)
                self.send(process, part, OK)
        self.finish()
        return self.events

    def send(self, process=None, part=None, outcome=None):
        process = process or self.rng.choice(PRODUCERS)
        part = self.rng.randrange(len(self.logs)) if part is None else part
        self.next_value += 1
        value = self.next_value
        where = {"topic": TOPIC, "part": part, "value": value}
        self.put(process, INVOKE, "send", **where)
        outcome = outcome or self.rng.choice((OK, OK, OK, OK, INFO, FAIL))
        if self.rng.random() < 0.05:
            self.epoch[part] += 1  # another broker leads from now on
        if outcome == FAIL:
            self.put(process, FAIL, "send", **where)
        elif outcome == INFO:
            if self.rng.random() < 0.5:
                self.append(part, value)
            self.put(process, INFO, "send", **where)
        else:
            self.append(part, value)
            by = f"node-{self.epoch[part] % 3}"
            self.put(process, OK, "send", **where, offset=len(self.logs[part]) - 1, by=by)

    def append(self, part, value):
        self.logs[part].append(value)
        self.epochs[part].append(self.epoch[part])

    def slice(self, part, start):
        values = self.logs[part][start : start + self.rng.randint(1, 6)]
        return [[part, start + at, value] for at, value in enumerate(values)]

    def poll(self, process, records, **fields):
        since = self.now
        self.put(process, OK, "poll", topic=TOPIC, since=since, recs=records, **fields)

    def read(self):
        name = self.rng.choice(READERS)
        records = []
        for part in range(len(self.logs)):
            records += self.slice(part, self.reader_at[name, part])
        if records:
            ends = {str(part): len(log) for part, log in enumerate(self.logs)}
            self.poll(name, records, hw=ends)
        for part, offset, _ in records:
            self.reader_at[name, part] = offset + 1

    def rebalance(self):
        for part, member in list(self.owned.items()):
            self.put(member, OK, "revoke", group=GROUP, member=member, parts=[[TOPIC, part]])
        self.generation += 1
        members = self.rng.sample(MEMBERS, self.rng.randint(1, 3))
        self.owned = {part: members[part % len(members)] for part in range(len(self.logs))}
        for member in members:
            parts = [[TOPIC, part] for part, owner in self.owned.items() if owner == member]
            fields = {"group": GROUP, "member": member, "gen": self.generation, "parts": parts}
            self.put(member, OK, "assign", **fields)
        self.position = {part: max(0, self.committed[part]) for part in self.owned}

    def group_poll(self):
        part, member = self.rng.choice(list(self.owned.items()))
        records = self.slice(part, self.position[part])
        if records:
            self.poll(member, records, group=GROUP)
            self.position[part] = records[-1][1] + 1

    def group_commit(self, part=None):
        part = self.rng.choice(list(self.owned)) if part is None else part
        member, offset = self.owned[part], self.position[part]
        self.next_op += 1
        fields = {"op": self.next_op, "group": GROUP, "member": member, "gen": self.generation}
        self.put(member, INVOKE, "commit", **fields, offs=[[TOPIC, part, offset]])
        kind = self.rng.choice((OK, OK, OK, INFO))
        if kind == OK or self.rng.random() < 0.5:
            self.committed[part] = offset
        self.put(member, kind, "commit", **fields)

    def look_up_committed(self):
        offsets = [[TOPIC, part, offset] for part, offset in enumerate(self.committed)]
        self.put("observer", OK, "committed", since=self.now, group=GROUP, offs=offsets)

    def list_offsets(self):
        for part, log in enumerate(self.logs):
            fields = {"topic": TOPIC, "part": part, "start": 0, "end": len(log)}
            self.put("observer", OK, "offsets", since=self.now, **fields)

    def finish(self):
        for part, member in self.owned.items():
            start = self.position[part]
            records = [[part, at, self.logs[part][at]] for at in range(start, len(self.logs[part]))]
            if records:
                self.poll(member, records, group=GROUP)
            self.position[part] = len(self.logs[part])
        self.list_offsets()
        self.put("observer", OK, "drained", group=GROUP)
        self.put("final", OK, "assign", parts=[[TOPIC, part] for part in range(len(self.logs))])
        records = [
            [part, offset, value]
            for part, log in enumerate(self.logs)
            for offset, value in enumerate(log)
        ]
        ends = {str(part): len(log) for part, log in enumerate(self.logs)}
        epochs = [
            [part, offset, offset + 1, epoch]
            for part, log in enumerate(self.epochs)
            for offset, epoch in enumerate(log)
        ]
        self.poll("final", records, final=True, upto=ends, epochs=epochs)


def find(events, rng, wanted):
    """One of the events that `wanted` likes."""
    return rng.choice([event for event in events if wanted(event)])


def polled(events, rng, at_least=1, process=None):
    return find(
        events,
        rng,
        lambda e: e["f"] == "poll" and len(e["recs"]) >= at_least
        and (process is None or e["p"] == process),
    )  # fmt: skip


def everywhere(events, part, offset):
    """Each polled record at a place."""
    return [r for e in events if e["f"] == "poll" for r in e["recs"] if r[:2] == [part, offset]]


def acknowledged(events, rng):
    return find(events, rng, lambda e: e["f"] == "send" and e["k"] == OK)


def later(event):
    return event["t"] + 1


def last_time(events):
    return events[-1]["t"] + 1


# --- ways to spoil a history ---------------------------------------------------------------------


def two_values_at_one_offset(events, rng):
    """A reader sees another value of the same partition."""
    ok = acknowledged(events, rng)
    other = {"t": last_time(events), "p": "late", "k": OK, "f": "poll", "topic": TOPIC}
    sent = {"t": 0, "p": "pX", "k": INVOKE, "f": "send", "topic": TOPIC, "part": ok["part"]}
    events.insert(0, sent | {"value": 10**6})
    events.append(other | {"since": last_time(events), "recs": [[ok["part"], ok["offset"], 10**6]]})
    return {"inconsistent offset"}


def value_at_two_offsets(events, rng):
    """Appended twice: the copy is at the end of the partition."""
    ok = acknowledged(events, rng)
    final = events[-1]
    end = final["upto"][str(ok["part"])]
    final["recs"].append([ok["part"], end, ok["value"]])
    final["recs"].sort(key=lambda record: record[0])
    final["upto"][str(ok["part"])] = end + 1
    return {"duplicate"}


def lost(events, rng):
    """It was never read, and what follows it was: a hole."""
    part = rng.randrange(2)
    oks = [e for e in events if e["f"] == "send" and e["k"] == OK and e["part"] == part]
    ok = rng.choice(oks[:-1])
    for event in events:
        if event["f"] == "poll":
            event["recs"] = [r for r in event["recs"] if r[2] != ok["value"]]
    return {"lost write"}


def lost_without_an_offset(events, rng):
    """A retry was acknowledged as a duplicate, without an offset, and the value is nowhere."""
    base = events[-1]["t"] - 1
    where = {"p": "p1", "f": "send", "topic": TOPIC, "part": rng.randrange(2), "value": 10**6}
    events.append({"t": base, "k": INVOKE, **where})
    events.append({"t": base, "k": OK, "offset": -1, **where})
    return {"lost write"}


def lost_at_the_end(events, rng):
    """The log has ended before it, for all readers."""
    part = rng.randrange(2)
    oks = [e for e in events if e["f"] == "send" and e["k"] == OK and e["part"] == part]
    cut = oks[-1]["offset"]
    for event in events:
        if event["f"] == "poll":
            event["recs"] = [r for r in event["recs"] if r[0] != part or r[1] < cut]
            if "upto" in event:
                event["upto"][str(part)] = cut
    return {"unseen"}


def read_and_gone(events, rng):
    """A record beyond the final end of the log was read, though it was never acknowledged."""
    part = rng.randrange(2)
    final = events[-1]
    end = final["upto"][str(part)]
    value = 10**6
    sent = {"t": 0, "p": "pX", "k": INVOKE, "f": "send", "topic": TOPIC, "part": part}
    events.insert(0, sent | {"value": value})
    at = events[-2]["t"]
    early = {"t": at, "p": "early", "k": OK, "f": "poll", "topic": TOPIC, "since": at}
    events.insert(-1, early | {"recs": [[part, end, value]]})
    return {"vanished"}


def never_sent(events, rng):
    part = rng.randrange(2)
    end = events[-1]["upto"][str(part)]
    events[-1]["recs"].append([part, end, 10**6])
    events[-1]["upto"][str(part)] = end + 1
    events[-1]["recs"].sort(key=lambda record: record[0])
    return {"stranger"}


def damaged(events, rng):
    part, offset, _ = rng.choice(events[-1]["recs"])
    record = rng.choice(everywhere(events, part, offset))
    record[2] = 0
    return {"changed bytes"}


def read_of_a_failed_write(events, rng):
    ok = find(
        events,
        rng,
        lambda e: e["f"] == "send" and e["k"] == OK and everywhere(events, e["part"], e["offset"]),
    )
    ok["k"] = FAIL
    del ok["offset"]
    return {"aborted read"}


def sent_backwards(events, rng):
    """Two values of one producer change places, in the answers and in the log."""
    process, part = rng.choice(PRODUCERS), rng.randrange(2)
    oks = [
        e
        for e in events
        if e["f"] == "send" and e["k"] == OK and (e["p"], e["part"]) == (process, part)
    ]
    first, second = oks[-2:]
    first["offset"], second["offset"] = second["offset"], first["offset"]
    values = {first["value"]: second["value"], second["value"]: first["value"]}
    for event in events:
        if event["f"] == "poll" and event["t"] > second["t"]:
            for record in event["recs"]:
                record[2] = values.get(record[2], record[2])
    return {"non-monotonic send"}


def acknowledged_elsewhere(events, rng):
    """The answer names an offset that was never written."""
    ok = find(events, rng, lambda e: e["f"] == "send" and e["k"] == OK)
    ok["offset"] = events[-1]["upto"][str(ok["part"])] + 5
    for event in events:  # what else would notice it
        if event["f"] == "offsets":
            event["end"] += 100
    later_sends = [
        e
        for e in events
        if e["f"] == "send" and e["p"] == ok["p"] and e["part"] == ok["part"] and e["t"] > ok["t"]
    ]
    return {
        "misplaced",
        *({"non-monotonic send"} if any(e["k"] == OK for e in later_sends) else ()),
    }


def served_too_early(events, rng):
    poll = find(events, rng, lambda e: e["f"] == "poll" and "hw" in e and e["recs"])
    part, offset, _ = poll["recs"][-1]
    poll["hw"][str(part)] = offset
    return {"above high watermark"}


def skipped_within(events, rng):
    final = events[-1]
    inner = [
        at
        for at in range(1, len(final["recs"]) - 1)
        if final["recs"][at - 1][0] == final["recs"][at + 1][0]
    ]
    rng.shuffle(inner)
    for at in inner:  # one that somebody else has read, or it is a lost write as well
        part, offset, _ = final["recs"][at]
        if len(everywhere(events, part, offset)) > 1:
            del final["recs"][at]
            return {"internal poll skip"}
    return None


def skipped_between(events, rng):
    """A reader's second poll of a partition begins one too late."""
    for name in READERS:
        polls = [e for e in events if e["f"] == "poll" and e["p"] == name]
        for event in polls[1:]:
            for part in (0, 1):
                mine = [r for r in event["recs"] if r[0] == part]
                before = [r for e in polls for r in e["recs"] if e["t"] < event["t"]]
                if len(mine) > 1 and any(r[0] == part for r in before):
                    event["recs"].remove(mine[0])
                    return {"external poll skip"}
    return None


def went_back_within(events, rng):
    final = events[-1]
    pairs = [
        at
        for at in range(len(final["recs"]) - 1)
        if final["recs"][at][0] == final["recs"][at + 1][0]
    ]
    at = rng.choice(pairs)
    final["recs"].insert(at + 1, list(final["recs"][at]))
    return {"internal non-monotonic poll"}


def went_back_between(events, rng):
    event = polled(events, rng)
    again = event | {"t": event["t"], "recs": [list(event["recs"][-1])]}
    events.insert(events.index(event) + 1, again)
    return {"external non-monotonic poll"}


def end_went_back(events, rng):
    listed = find(events, rng, lambda e: e["f"] == "offsets" and e["end"] > 0)
    listed["end"] -= 1
    known = [
        e
        for e in events
        if e["t"] < listed["since"]
        and (
            (e["f"] == "send" and e.get("offset") == listed["end"] and e["part"] == listed["part"])
            or (e["f"] == "poll" and [listed["part"], listed["end"]] in [r[:2] for r in e["recs"]])
        )
    ]
    return {"high watermark regressed"} if known else None


def start_went_back(events, rng):
    listed = [e for e in events if e["f"] == "offsets" and e["part"] == 0]
    if len(listed) < 2:
        return None
    listed[-2]["start"] = 1
    listed[-1]["start"] = 0
    return {"log start regressed"}


def progress_went_back(events, rng):
    """After two commits one after the other, the first is found again."""
    base = last_time(events)
    common = {"p": "m1", "f": "commit", "group": "other", "member": "m1", "gen": 1}
    at = base
    for op, offset in ((901, 5), (902, 9)):
        offs = [["t2", 0, offset]]
        events.append({"t": at, "k": INVOKE, "op": op, "offs": offs, **common})
        events.append({"t": at + 5, "k": OK, "op": op, **common})
        at += 10
    found = {"t": at + 9, "p": "observer", "k": OK, "f": "committed", "since": at}
    events.append(found | {"group": "other", "offs": [["t2", 0, rng.choice((5, -1, 7))]]})
    return {"committed regressed"}


def owned_twice(events, rng):
    taken = find(events, rng, lambda e: e["f"] == "assign" and e.get("group") and e["parts"])
    other = taken | {"p": "m9", "member": "m9"}
    events.insert(events.index(taken), other)  # before, so that nobody lost it to this one
    return {"two owners"}


def old_member_commits(events, rng):
    """A member of the generation before has its commit accepted."""
    assigns = [e for e in events if e["f"] == "assign" and e.get("group") and e["parts"]]
    if assigns[-1]["gen"] == assigns[0]["gen"]:
        return None
    base = last_time(events)
    offs = [[TOPIC, 1_000, 5]]  # a partition that nobody else commits
    common = {"p": "m8", "f": "commit", "group": GROUP, "member": "m8", "gen": assigns[0]["gen"]}
    events.append({"t": base, "k": INVOKE, "op": 903, "offs": offs, **common})
    events.append({"t": base + 5, "k": OK, "op": 903, **common})
    return {"old generation's commit"}


def former_owner_commits(events, rng):
    """It was frozen, another got its partition, and its commit was accepted all the same."""
    base = last_time(events)
    parts = [["t3", 0]]
    for step, member in enumerate(("m1", "m2")):
        fields = {"group": "third", "member": member, "gen": -1, "parts": parts}
        events.append({"t": base + step, "p": member, "k": OK, "f": "assign", **fields})
    common = {"p": "m1", "f": "commit", "group": "third", "member": "m1", "gen": -1}
    events.append({"t": base + 5, "k": INVOKE, "op": 904, "offs": [["t3", 0, 5]], **common})
    events.append({"t": base + 6, "k": OK, "op": 904, **common})
    return {"former owner's commit"}


def group_passed_over(events, rng):
    """A group says that it has read everything, and has not polled one acknowledged value."""
    base = last_time(events)
    ok = acknowledged(events, rng)
    records = [r for r in events[-1]["recs"] if r[0] == ok["part"] and r[1] < ok["offset"]]
    poll = {"t": base, "p": "m7", "k": OK, "f": "poll", "topic": TOPIC, "since": base}
    events.append(poll | {"group": "late", "recs": [*records]})
    polled_topics = {"t": base + 1, "p": "observer", "k": OK, "f": "drained", "group": "late"}
    events.append(polled_topics)
    return {"unseen by group"} if records else None


def epoch_went_back(events, rng):
    """A batch is of an older epoch than one in front of it."""
    batches = [batch for batch in events[-1]["epochs"] if batch[1] > 0]
    rng.choice(batches)[3] = -1000
    return {"epoch regressed"}


def two_leaders_in_one_epoch(events, rng):
    """Two nodes have acknowledged what is of one epoch."""
    epoch_of = {(part, first): epoch for part, first, _, epoch in events[-1]["epochs"]}
    by_epoch = {}
    for event in events:
        if event["f"] == "send" and event["k"] == OK:
            place = event["part"], epoch_of[event["part"], event["offset"]]
            by_epoch.setdefault(place, []).append(event)
    rng.choice([found for found in by_epoch.values() if len(found) > 1])[0]["by"] = "node-x"
    return {"two owners in one epoch"}


MUTATIONS = (
    two_values_at_one_offset,
    value_at_two_offsets,
    lost,
    lost_at_the_end,
    lost_without_an_offset,
    read_and_gone,
    never_sent,
    damaged,
    read_of_a_failed_write,
    sent_backwards,
    acknowledged_elsewhere,
    served_too_early,
    skipped_within,
    skipped_between,
    went_back_within,
    went_back_between,
    end_went_back,
    start_went_back,
    progress_went_back,
    owned_twice,
    old_member_commits,
    former_owner_commits,
    group_passed_over,
    epoch_went_back,
    two_leaders_in_one_epoch,
)
SIDE_EFFECTS = {
    "read_of_a_failed_write": {"unseen by group"},
    # A loss also shows as an end that goes back, a group's hole, or a step over known offsets.
    "lost": {"internal poll skip", "external poll skip", "unseen by group"},
    "lost_at_the_end": {"high watermark regressed", "unseen by group"},
    "acknowledged_elsewhere": {
        "high watermark regressed",
        "unseen by group",
        "inconsistent offset",
        "non-monotonic send",
    },
    "sent_backwards": {
        "inconsistent offset",
        "high watermark regressed",
        "stranger",
        "misplaced",
        "duplicate",
        "two owners in one epoch",
    },
    "went_back_between": {"unseen by group"},
}
"""What may be found besides: the same fault, seen by another checker."""
