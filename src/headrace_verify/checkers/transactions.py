"""Checkers of transactions: atomicity, and no cycles among them.

Invariants: pure; linear in events and edges.

How it works: transactions are ordered by who has read what another wrote; a cycle of these is G1c
(Adya). The order of writes is not checked: transactions of Kafka's protocol may interleave in one
partition one way and in another the other way (G0), and do not exclude each other (G2).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Facts, Init, Send
from headrace_verify.history import OK

if TYPE_CHECKING:
    from collections.abc import Iterator

NEVER_NS = 1 << 63


def torn_transactions(facts: Facts) -> Iterator[Anomaly]:
    """A transaction with a part that was read, and another, below the highest read offset, that was
    not."""
    for transaction in facts.transactions.values():
        read = [send for _, _, send in transaction.sends if send.is_read]
        if not read or transaction.outcome == "abort":
            continue  # an aborted one that was read is an aborted read
        for topic, number, send in transaction.sends:
            partition = facts.partitions[topic, number]
            # Acknowledged records lie before the end of a later full read.
            is_below = 0 <= send.offset < partition.read_end or (
                send.outcome == OK
                and send.ended_ns < partition.final_ns
                and send.offset < partition.final_end
            )
            if not send.is_read and is_below:
                what = f"transaction {transaction.name}: value {read[0].value} was read, value"
                what += f" {send.value} at offset {send.offset} was not"
                yield Anomaly("torn transaction", what, send.ended_ns, topic, number)


def dirty_reads(facts: Facts) -> Iterator[Anomaly]:
    """A value that a poll returned before a commit of its transaction was requested, if ever."""
    if not any(one.asked_ns or one.begun_ns for one in facts.transactions.values()):
        return
    for poll in facts.polls:
        for number, offset, value in poll.records:
            send = facts.partitions[poll.topic, number].sends.get(value)
            if send is None or send.transaction is None:
                continue
            transaction = facts.transactions[send.transaction]
            asked_ns = transaction.asked_ns or (NEVER_NS if transaction.begun_ns else 0)
            if asked_ns and poll.at_ns < asked_ns:
                what = f"{poll.process} read value {value} at offset {offset} before its"
                what += f" transaction {send.transaction} was requested to commit"
                yield Anomaly("dirty read", what, poll.at_ns, poll.topic, number)


def zombie_commits(facts: Facts) -> Iterator[Anomaly]:
    """An accepted commit that was requested after another instance had fenced the transaction's
    own."""
    by_id: dict[str, list[Init]] = {}
    for init in facts.inits.values():
        by_id.setdefault(init.id, []).append(init)
    for transaction in facts.transactions.values():
        own = facts.inits.get(transaction.instance)
        if own is None or transaction.outcome != "commit":
            continue
        others = by_id[own.id]
        for other in others[bisect_right(others, own.at_ns, key=_began) :]:
            if other.at_ns < transaction.asked_ns and other.instance != own.instance:
                what = f"transaction {transaction.name} of {own.instance} was committed after"
                what += f" {other.instance} had begun"
                yield Anomaly("zombie committed", what, other.at_ns)
            break


def _began(init: Init) -> int:
    return init.since_ns


_Source = tuple[str, int, int]
"""Topic, partition and offset of a copied record."""


def copies(facts: Facts) -> Iterator[Anomaly]:
    """Records copied in transactions that commit their offsets: each once, none missing.

    A copy's send names the record that it copies. All records below a copier group's committed
    offset must be copied to each topic that the group writes; a copy that was read is the only one
    of its record in its topic.
    """
    found: dict[tuple[_Source, str], int] = {}
    for (topic, number), partition in facts.partitions.items():
        for send in partition.sends.values():
            if send.source is None or not send.is_read:
                continue
            before = found.setdefault((send.source, topic), send.value)
            if before != send.value:
                source = f"{send.source[0]}-{send.source[1]} at {send.source[2]}"
                what = f"values {before} and {send.value} are both copies of {source}"
                yield Anomaly("copied twice", what, send.ended_ns, topic, number)
    targets = _targets(facts)
    ends: dict[tuple[str, str, int], tuple[int, int]] = {}
    for read in facts.committed:
        if read.group in facts.copiers:
            for topic, number, offset in read.offsets:
                place = read.group, topic, number
                ends[place] = max(ends.get(place, (0, 0)), (offset, read.at_ns))
    for (group, topic, number), (end, at_ns) in ends.items():
        for offset in facts.partition(topic, number).values:
            for target in targets.get(group, ("",)) if offset < end else ():
                if ((topic, number, offset), target) not in found:
                    what = f"group {group} has committed {end}, but offset {offset} has no copy"
                    what += f" in {target}" if target else ""
                    yield Anomaly("copy lost", what, at_ns, topic, number)


def _targets(facts: Facts) -> dict[str, dict[str, None]]:
    """Group of copiers -> the topics that it copies to."""
    targets: dict[str, dict[str, None]] = {}
    for commit in facts.commits:
        if commit.transaction is None or commit.transaction not in facts.transactions:
            continue
        for topic, _, send in facts.transactions[commit.transaction].sends:
            if send.source is not None:
                targets.setdefault(commit.group, {})[topic] = None
    return targets


def copies_in_order(facts: Facts) -> Iterator[Anomaly]:
    """Copies of one partition's records must be in the same order in each partition they went
    to."""
    for (topic, number), partition in facts.partitions.items():
        last: dict[tuple[str, int], int] = {}
        copied = [
            (partition.places[send.value], send)
            for send in partition.sends.values()
            if send.source is not None and send.is_read
        ]
        for offset, send in sorted(copied, key=_offset_of):
            assert send.source is not None
            place, of = send.source[:2], send.source[2]
            if of < last.get(place, -1):
                what = f"the copy of {place[0]}-{place[1]} at {of} is at {offset}, after that of"
                what += f" {last[place]}"
                yield Anomaly("copied out of order", what, send.ended_ns, topic, number)
            last[place] = of


def _offset_of(copy: tuple[int, Send]) -> int:
    return copy[0]


def dirty_cycles(facts: Facts) -> Iterator[Anomaly]:
    """Transactions that have read from each other in a cycle."""
    if not facts.transactions:
        return
    for cycle in _cycles(_edges(facts)):
        what = f"transactions {', '.join(sorted(cycle))} have read from each other"
        yield Anomaly("G1c", what, 0)


def _edges(facts: Facts) -> dict[str, dict[str, None]]:
    """Transaction -> those that have read its writes."""
    edges: dict[str, dict[str, None]] = {name: {} for name in facts.transactions}
    for transaction in facts.transactions.values():
        for poll in transaction.polls:
            for number, _, value in poll.records:
                send = facts.partitions[poll.topic, number].sends.get(value)
                writer = None if send is None else send.transaction
                if writer is not None and writer != transaction.name:
                    edges[writer][transaction.name] = None
    return edges


def _cycles(edges: dict[str, dict[str, None]]) -> Iterator[list[str]]:
    """Strongly connected components of more than one (Tarjan, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root, readers in edges.items():
        if root in number:
            continue
        work = [(root, iter(readers))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in number:
                    number[target] = low[target] = len(number)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], number[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    found = _component(stack, on_stack, node)
                    if len(found) > 1:
                        yield found


def _component(stack: list[str], on_stack: set[str], root: str) -> list[str]:
    found = []
    while True:
        node = stack.pop()
        on_stack.discard(node)
        found.append(node)
        if node == root:
            return found
