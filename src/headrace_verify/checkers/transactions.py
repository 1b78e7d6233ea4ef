"""Checkers of transactions: all or nothing, and no cycles among them.

Invariants: pure; linear in events and edges.
How it works: transactions are ordered by who has read what another wrote; a cycle of these is G1c
(Adya). The order of writes is not judged: transactions of Kafka's protocol may interleave in one
partition one way and in another the other way (G0), and do not exclude each other (G2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Facts

if TYPE_CHECKING:
    from collections.abc import Iterator


def torn_transactions(facts: Facts) -> Iterator[Anomaly]:
    """A transaction of which a part was read, and a part, at or below what was read, by nobody."""
    for transaction in facts.transactions.values():
        read = [send for _, _, send in transaction.sends if send.is_read]
        if not read or transaction.outcome == "abort":
            continue  # an aborted one that was read is an aborted read
        for topic, number, send in transaction.sends:
            end = facts.partitions[topic, number].read_end
            if not send.is_read and 0 <= send.offset < end:
                what = f"transaction {transaction.name}: value {read[0].value} was read, value"
                what += f" {send.value} at offset {send.offset} was not"
                yield Anomaly("torn transaction", what, send.ended_ns, topic, number)


def dirty_reads(facts: Facts) -> Iterator[Anomaly]:
    """A value that a poll has brought before its transaction was asked to commit."""
    if not any(transaction.asked_ns for transaction in facts.transactions.values()):
        return
    for poll in facts.polls:
        for number, offset, value in poll.records:
            send = facts.partitions[poll.topic, number].sends.get(value)
            if send is None or send.transaction is None:
                continue
            asked_ns = facts.transactions[send.transaction].asked_ns
            if asked_ns and poll.at_ns < asked_ns:
                what = f"{poll.process} read value {value} at offset {offset} before its"
                what += f" transaction {send.transaction} was asked to commit"
                yield Anomaly("dirty read", what, poll.at_ns, poll.topic, number)


def copies(facts: Facts) -> Iterator[Anomaly]:
    """Records copied in transactions that commit their offsets: each once, and none left out.

    A copy's send names the record it is of. What a group of copiers was found to have committed
    has been copied; a copy that was read is the only one of its record.
    """
    found: dict[tuple[str, int, int], int] = {}
    for (topic, number), partition in facts.partitions.items():
        for send in partition.sends.values():
            if send.source is None or not send.is_read:
                continue
            before = found.setdefault(send.source, send.value)
            if before != send.value:
                source = f"{send.source[0]}-{send.source[1]} at {send.source[2]}"
                what = f"values {before} and {send.value} are both copies of {source}"
                yield Anomaly("copied twice", what, send.ended_ns, topic, number)
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    for read in facts.committed:
        if read.group in facts.copiers:
            for topic, number, offset in read.offsets:
                ends[topic, number] = max(ends.get((topic, number), (0, 0)), (offset, read.at_ns))
    for (topic, number), (end, at_ns) in ends.items():
        for offset in facts.partition(topic, number).values:
            if offset < end and (topic, number, offset) not in found:
                what = f"offset {offset} was committed as copied up to {end}, and has no copy"
                yield Anomaly("copy lost", what, at_ns, topic, number)


def dirty_cycles(facts: Facts) -> Iterator[Anomaly]:
    """Transactions that have read from each other, all the way round."""
    if not facts.transactions:
        return
    for cycle in _cycles(_edges(facts)):
        what = f"transactions {', '.join(sorted(cycle))} have read from each other"
        yield Anomaly("G1c", what, 0)


def _edges(facts: Facts) -> dict[str, dict[str, None]]:
    """Transaction -> those that have read what it wrote."""
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
