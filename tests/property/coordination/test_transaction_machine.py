"""Thousands of random histories of transactions, and whether planted bugs are found in them."""

from __future__ import annotations

import os
import random

import pytest
from tests.property.coordination.transaction_world import TransactionHistory, Violation
from tests.unit.coordination.machine_rig import TransactionHarness, producer_of

from headrace.coordination.kit.machine import Decision
from headrace.coordination.transactions import rules, transaction_machine
from headrace.coordination.transactions.commands import MarkersWrittenCommand
from headrace.errors import ConcurrentTransactions

HISTORIES = int(os.environ.get("HEADRACE_TRANSACTION_HISTORIES", "2000"))
STEPS = 60
PLANTED_HISTORIES_MAX = 1_500


def test_every_transaction_is_atomic_and_ends_as_reported_to_its_producer():
    outcomes = {"committed": 0, "aborted": 0, "unknown": 0}
    for seed in range(HISTORIES):
        world = TransactionHistory(seed)
        try:
            world.run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for _, told in world.transactions:
            outcomes[told] += 1
    assert min(outcomes.values()) > HISTORIES // 2, outcomes


@pytest.mark.parametrize("epoch", [0, 32_755])
def test_a_producer_alone_is_never_fenced(epoch):
    """Version 2, markers that take their time, coordinators that move: it waits at most."""
    for seed in range(300):
        rng, rig = random.Random(seed), TransactionHarness(check_purity=False)
        producer = producer_of(rig.init())
        record = rig.machine.transactions["t"]._replace(producer_epoch=epoch)
        rig.machine.apply(record)
        pair = rig.machine.encode(record)
        assert pair is not None
        rig.log.append(pair)
        producer, has_written = (producer[0], epoch), False
        for _ in range(60):
            match rng.randrange(5):
                case 0 | 1:
                    error = rig.add(producer, rng.randrange(3), version=2)
                    has_written = has_written or error is None
                case 2:
                    commit = has_written and rng.random() < 0.5
                    reply = rig.end(producer, commit=commit, version=2)
                    error = reply.error
                    if error is None:
                        producer, has_written = (reply.producer_id, reply.producer_epoch), False
                case 3:
                    error = None
                    if rig.effects:
                        rig.written()
                case _:
                    error = None
                    rig.crash()
            assert error is None or isinstance(error, ConcurrentTransactions), f"{seed}: {error!r}"


def _epoch_is_not_bumped_at_a_fence(monkeypatch):
    real = rules.fence_and_abort

    def planted(record, now_ms):
        return [r._replace(producer_epoch=record.producer_epoch) for r in real(record, now_ms)]

    monkeypatch.setattr(rules, "fence_and_abort", planted)
    monkeypatch.setattr(transaction_machine, "fence_and_abort", planted)


def _epoch_is_not_bumped_at_a_start(monkeypatch):
    real = rules.moved

    def planted(record, state, now_ms, **changes):
        if state == rules.EMPTY and changes.get("producer_epoch"):
            changes["producer_epoch"] = record.producer_epoch
        return real(record, state, now_ms, **changes)

    monkeypatch.setattr(rules, "moved", planted)


def _complete_after_the_first_marker(monkeypatch):
    real = transaction_machine.TransactionMachine.decide

    def planted(self, command, now_ms):
        if isinstance(command, MarkersWrittenCommand):
            awaiting = self.awaiting.get(command.transactional_id)
            if awaiting is not None and awaiting[0] == command.token:
                command.partitions = awaiting[1]
        return real(self, command, now_ms)

    monkeypatch.setattr(transaction_machine.TransactionMachine, "decide", planted)


def _prepared_is_not_finished_after_a_reload(monkeypatch):
    real = transaction_machine.TransactionMachine._decide_loaded

    def planted(self, now_ms):
        decision = real(self, now_ms)
        return Decision(decision.records, decision.reply)

    monkeypatch.setattr(transaction_machine.TransactionMachine, "_decide_loaded", planted)


def _late_acknowledgements_count(monkeypatch):
    real = transaction_machine.TransactionMachine.decide

    def planted(self, command, now_ms):
        if isinstance(command, MarkersWrittenCommand):
            awaiting = self.awaiting.get(command.transactional_id)
            if awaiting is not None:
                command.token = awaiting[0]
        return real(self, command, now_ms)

    monkeypatch.setattr(transaction_machine.TransactionMachine, "decide", planted)


def _late_ends_of_version_2_hit_the_next_transaction(monkeypatch):
    real = rules.decide_end

    def planted(record, command, now_ms):
        if command.client_version >= 2 and record is not None and record.state == rules.ONGOING:
            command.producer_epoch = record.producer_epoch
        return real(record, command, now_ms)

    monkeypatch.setattr(transaction_machine, "decide_end", planted)


def _a_retry_answers_with_the_opposite_result(monkeypatch):
    real = rules._end_again

    def planted(record, command, *, is_repeat):
        command.is_commit = record.state in {rules.PREPARE_COMMIT, rules.COMPLETE_COMMIT}
        return real(record, command, is_repeat=is_repeat)

    monkeypatch.setattr(rules, "_end_again", planted)
    monkeypatch.setattr(rules, "_may_go_on", lambda *_: True)
    real_v2 = rules._end_v2

    def planted_v2(record, command, now_ms):
        if record.state in rules.COMPLETE:
            return planted(record, command, is_repeat=True)
        return real_v2(record, command, now_ms)

    monkeypatch.setattr(rules, "_end_v2", planted_v2)


def _the_last_epoch_is_not_written(monkeypatch):
    real = transaction_machine.encode

    def planted(record):
        if isinstance(record, transaction_machine.TransactionStored):
            record = record._replace(last_producer_epoch=-1)
        return real(record)

    monkeypatch.setattr(transaction_machine, "encode", planted)


@pytest.mark.parametrize(
    "plant",
    [
        _epoch_is_not_bumped_at_a_fence,
        _epoch_is_not_bumped_at_a_start,
        _complete_after_the_first_marker,
        _prepared_is_not_finished_after_a_reload,
        _late_acknowledgements_count,
        _late_ends_of_version_2_hit_the_next_transaction,
        _a_retry_answers_with_the_opposite_result,
        _the_last_epoch_is_not_written,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)
    for seed in range(PLANTED_HISTORIES_MAX):
        try:
            TransactionHistory(seed).run(STEPS)
        except (Violation, AssertionError):
            return
    pytest.fail(f"not found in {PLANTED_HISTORIES_MAX} histories")
