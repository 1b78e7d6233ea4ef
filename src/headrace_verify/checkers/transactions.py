"""Checkers of transactions: all or nothing, and no cycles among them.

Invariants: pure; linear in events and edges. Ready for a broker with transactions; today's
histories of the black box have none, the known-fault histories have.
How it works: transactions are ordered by offsets (ww: the writers of neighbouring offsets), by
reads (wr: who wrote what was read) and by last reads (rw: who wrote the offset behind what a poll
of the transaction saw last). A cycle of ww is G0, with wr G1c, with rw G2 (Adya).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Facts, Transaction
from headrace_verify.checkers.values import known_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

WW, WR, RW = 1, 2, 4
_NAMES = {WW: "G0", WR: "G1c", RW: "G2"}


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


def dirty_cycles(facts: Facts) -> Iterator[Anomaly]:
    """Transactions each of which comes before the next, and the last before the first."""
    if not facts.transactions:
        return
    edges = _edges(facts)
    for kinds in ((WW,), (WW, WR), (WW, WR, RW)):
        allowed = sum(kinds)
        for cycle in _cycles(edges, allowed):
            used = _kinds_within(edges, cycle, allowed)
            if used & kinds[-1]:
                what = f"transactions {', '.join(sorted(cycle))} come before each other"
                yield Anomaly(_NAMES[kinds[-1]], what, 0)


def _edges(facts: Facts) -> dict[str, dict[str, int]]:
    edges: dict[str, dict[str, int]] = {name: {} for name in facts.transactions}

    def add(first: str | None, second: str | None, kind: int) -> None:
        if first is not None and second is not None and first != second:
            edges[first][second] = edges[first].get(second, 0) | kind

    writers = _writers(facts)
    following: dict[tuple[str, int, int], str | None] = {}
    for (topic, number), partition in facts.partitions.items():
        last_offset, last = -1, None
        for offset in known_offsets(facts, partition):
            writer = writers.get((topic, number, offset))
            add(last, writer, WW)
            following[topic, number, last_offset] = writer
            last_offset, last = offset, writer
    for transaction in facts.transactions.values():
        for topic, number, first, end in _reads(transaction):
            for offset in range(first, end):
                add(writers.get((topic, number, offset)), transaction.name, WR)
            add(transaction.name, following.get((topic, number, end - 1)), RW)
    return edges


def _writers(facts: Facts) -> dict[tuple[str, int, int], str]:
    writers = {}
    for transaction in facts.transactions.values():
        for topic, number, send in transaction.sends:
            offset = facts.partitions[topic, number].places.get(send.value, send.offset)
            if offset >= 0:
                writers[topic, number, offset] = transaction.name
    return writers


def _reads(transaction: Transaction) -> Iterator[tuple[str, int, int, int]]:
    """(topic, partition, first offset, end offset) of each partition it has polled."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for poll in transaction.polls:
        for number, offset, _ in poll.records:
            first, end = spans.get((poll.topic, number), (offset, offset + 1))
            spans[poll.topic, number] = min(first, offset), max(end, offset + 1)
    for (topic, number), (first, end) in spans.items():
        yield topic, number, first, end


def _kinds_within(edges: dict[str, dict[str, int]], cycle: list[str], allowed: int) -> int:
    inside = set(cycle)
    used = 0
    for first in cycle:
        for second, kind in edges[first].items():
            if second in inside:
                used |= kind & allowed
    return used


def _cycles(edges: dict[str, dict[str, int]], allowed: int) -> Iterator[list[str]]:
    """Strongly connected components of more than one (Tarjan, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in edges:
        if root in number:
            continue
        work = [(root, _targets(edges, root, allowed))]
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
                    work.append((target, _targets(edges, target, allowed)))
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


def _targets(edges: dict[str, dict[str, int]], node: str, allowed: int) -> Iterator[str]:
    return (target for target, kind in edges[node].items() if kind & allowed)
