"""The rules of transactions by example: both versions, fencing, retries, timeouts, overflow."""

from __future__ import annotations

import pytest
from tests.unit.coordination.machine_rig import TransactionHarness, producer_of

from headrace.coordination.transactions.commands import (
    ListTransactionsCommand,
    RemoveIdleCommand,
)
from headrace.coordination.transactions.config import TransactionConfig
from headrace.errors import (
    ConcurrentTransactions,
    ProducerIdMappingInvalid,
    RequestInvalid,
    TransactionalIdUnknown,
    TransactionalProducerFenced,
    TransactionStateInvalid,
    TransactionTimeoutInvalid,
)


@pytest.fixture
def rig() -> TransactionHarness:
    return TransactionHarness()


def test_a_transaction_of_version_1_keeps_its_epoch(rig):
    producer = producer_of(rig.init())
    assert rig.add(producer, 0, 1) is None
    assert rig.state() == "Ongoing"
    assert producer_of(rig.end(producer)) == producer
    assert rig.state() == "PrepareCommit"
    (effect,) = rig.effects
    assert (effect.producer_id, effect.producer_epoch, effect.is_commit) == (*producer, True)
    assert effect.partitions == {("topic", 0), ("topic", 1)}
    rig.written()
    assert rig.state() == "CompleteCommit"


def test_a_transaction_of_version_2_bumps_the_epoch_and_its_markers_carry_the_new_one(rig):
    producer = producer_of(rig.init())
    assert rig.add(producer, 0, version=2) is None
    following = producer_of(rig.end(producer, version=2))
    assert following == (producer[0], producer[1] + 1)
    assert rig.effects[0].producer_epoch == following[1]
    assert rig.effects[0].transaction_version == 2


def test_a_transaction_is_complete_only_when_every_partition_has_its_marker(rig):
    producer = producer_of(rig.init())
    rig.add(producer, 0, 1, 2)
    rig.end(producer, commit=False)
    effect = rig.effects.pop()
    rig.written(effect, 0, 2)
    assert rig.state() == "PrepareAbort"
    assert rig.describe().partitions == [("topic", 1)]
    rig.written(effect, 1)
    assert rig.state() == "CompleteAbort"


def test_a_coordinator_that_stopped_after_prepare_finishes_when_it_is_loaded(rig):
    producer = producer_of(rig.init())
    rig.add(producer, 0, 1)
    rig.end(producer)
    rig.written(rig.effects[0], 0)
    rig.crash()
    (effect,) = rig.effects
    assert effect.partitions == {("topic", 0), ("topic", 1)}, "the lost acknowledgement is repeated"
    rig.written()
    assert rig.state() == "CompleteCommit"


def test_a_late_acknowledgement_of_an_earlier_transaction_completes_nothing(rig):
    producer = producer_of(rig.init())
    rig.add(producer, 0)
    rig.end(producer)
    first = rig.effects.pop()
    rig.written(first)
    rig.add(producer, 0)
    rig.end(producer)
    rig.written(first)
    assert rig.state() == "PrepareCommit"


class TestInitProducerId:
    def test_each_start_of_a_producer_fences_the_one_before(self, rig):
        first = producer_of(rig.init())
        second = producer_of(rig.init())
        assert second == (first[0], first[1] + 1)
        assert isinstance(rig.add(first, 0), TransactionalProducerFenced)
        assert isinstance(rig.end(first).error, TransactionalProducerFenced)

    def test_an_ongoing_transaction_is_aborted_first(self, rig):
        first = producer_of(rig.init())
        rig.add(first, 0)
        assert isinstance(rig.init().error, ConcurrentTransactions)
        assert rig.effects[0].producer_epoch == first[1] + 1
        assert not rig.effects[0].is_commit
        assert isinstance(rig.init().error, ConcurrentTransactions)
        rig.written()
        assert producer_of(rig.init()) == (first[0], first[1] + 2)

    def test_the_fenced_producer_cannot_commit(self, rig):
        first = producer_of(rig.init())
        rig.add(first, 0)
        rig.init()
        for version in (1, 2):
            error = rig.end(first, version=version).error
            assert isinstance(error, TransactionalProducerFenced)

    def test_a_producer_that_names_its_epoch_goes_on_and_a_retry_of_that_is_answered_again(
        self, rig
    ):
        first = producer_of(rig.init())
        second = producer_of(rig.init("t", *first))
        assert second == (first[0], first[1] + 1)
        assert producer_of(rig.init("t", *first)) == second
        rig.crash()
        assert producer_of(rig.init("t", *first)) == second, "the retry outlives the coordinator"

    def test_a_producer_that_was_replaced_cannot_go_on(self, rig):
        first = producer_of(rig.init())
        producer_of(rig.init())
        assert isinstance(rig.init("t", *first).error, TransactionalProducerFenced)
        stranger = rig.init("t", first[0] + 5, 0)
        assert isinstance(stranger.error, TransactionalProducerFenced)

    def test_the_last_epoch_is_followed_by_a_new_producer_id(self, rig):
        first = exhausted(rig)
        following = producer_of(rig.init())
        assert following[0] != first[0]
        assert following[1] == 0

    def test_the_retry_of_a_change_of_id_is_answered_again(self, rig):
        last = exhausted(rig)
        following = producer_of(rig.init("t", *last))
        for _ in range(3):
            assert producer_of(rig.init("t", *last)) == following

    def test_timeouts_have_bounds(self, rig):
        for timeout_ms in (0, -1, 900_001):
            reply = rig.init(timeout_ms=timeout_ms)
            assert isinstance(reply.error, TransactionTimeoutInvalid)

    def test_an_empty_id_is_refused(self, rig):
        assert isinstance(rig.init("").error, RequestInvalid)


def exhausted(rig: TransactionHarness) -> tuple[int, int]:
    """A producer whose epoch is the last one."""
    producer_id, _ = producer_of(rig.init())
    record = rig.machine.transactions["t"]._replace(producer_epoch=32766)
    rig.machine.apply(record)
    pair = rig.machine.encode(record)
    assert pair is not None
    rig.log.append(pair)
    return producer_id, 32766


class TestEndTxn:
    @pytest.mark.parametrize("commit", [True, False])
    @pytest.mark.parametrize("version", [1, 2])
    def test_a_retry_waits_for_the_end_and_gets_the_same_answer(self, rig, commit, version):
        producer = producer_of(rig.init())
        rig.add(producer, 0, version=version)
        told = producer_of(rig.end(producer, commit=commit, version=version))
        again = rig.end(producer, commit=commit, version=version)
        assert isinstance(again.error, ConcurrentTransactions)
        rig.crash()
        rig.written()
        assert producer_of(rig.end(producer, commit=commit, version=version)) == told
        opposite = rig.end(producer, commit=not commit, version=version)
        assert isinstance(opposite.error, TransactionStateInvalid)

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_commit_without_a_transaction_is_refused(self, rig, version):
        producer = producer_of(rig.init())
        error = rig.end(producer, version=version).error
        assert isinstance(error, TransactionStateInvalid)

    def test_an_abort_without_a_transaction_bumps_the_epoch_in_version_2_alone(self, rig):
        producer = producer_of(rig.init())
        assert isinstance(rig.end(producer, commit=False).error, TransactionStateInvalid)
        following = producer_of(rig.end(producer, commit=False, version=2))
        assert following == (producer[0], producer[1] + 1)
        assert rig.state() == "CompleteAbort"
        assert not rig.effects
        assert producer_of(rig.end(producer, commit=False, version=2)) == following, "a retry"
        third = producer_of(rig.end(following, commit=False, version=2))
        assert third[1] == following[1] + 1

    @pytest.mark.parametrize("is_last", [True, False])
    def test_requests_before_the_markers_are_written_get_concurrent_transactions(
        self, rig, is_last
    ):
        producer = exhausted(rig) if is_last else producer_of(rig.init())
        rig.add(producer, 0, version=2)
        following = producer_of(rig.end(producer, version=2))
        assert (following[0] != producer[0]) == is_last
        for error in (
            rig.end(following, commit=False, version=2).error,
            rig.add(following, 0, version=2),
            rig.init("t", *following).error,
        ):
            assert isinstance(error, ConcurrentTransactions)
        rig.written()
        assert rig.end(following, commit=False, version=2).error is None

    def test_a_late_end_of_version_2_does_not_hit_the_next_transaction(self, rig):
        producer = producer_of(rig.init())
        rig.add(producer, 0, version=2)
        following = producer_of(rig.end(producer, version=2))
        rig.written()
        rig.add(following, 0, version=2)
        for commit in (True, False):
            error = rig.end(producer, commit=commit, version=2).error
            assert isinstance(error, TransactionalProducerFenced)
        assert rig.state() == "Ongoing"

    @pytest.mark.parametrize("commit", [True, False])
    def test_version_2_moves_to_a_new_producer_id_after_the_last_epoch(self, rig, commit):
        last = exhausted(rig)
        rig.add(last, 0, version=2)
        following = producer_of(rig.end(last, commit=commit, version=2))
        assert following[0] != last[0]
        assert following[1] == 0
        assert (rig.effects[0].producer_id, rig.effects[0].producer_epoch) == (last[0], 32767)
        again = rig.end(last, commit=commit, version=2)
        assert isinstance(again.error, ConcurrentTransactions)
        rig.crash()
        rig.written()
        assert producer_of(rig.end(last, commit=commit, version=2)) == following
        assert rig.add(following, 0, version=2) is None

    def test_an_abort_without_a_transaction_at_the_last_epoch_moves_to_a_new_id(self, rig):
        last = exhausted(rig)
        following = producer_of(rig.end(last, commit=False, version=2))
        assert following[0] != last[0]
        assert following[1] == 0

    def test_versions_may_alternate_on_one_id(self, rig):
        producer = producer_of(rig.init())
        for version in (1, 2, 2, 1, 2):
            assert rig.add(producer, 0, version=version) is None
            producer = producer_of(rig.end(producer, version=version))
            rig.written()

    def test_an_unknown_id_or_producer_is_refused(self, rig):
        assert isinstance(rig.end((5, 0)).error, ProducerIdMappingInvalid)
        producer = producer_of(rig.init())
        assert isinstance(rig.end((producer[0] + 1, 0)).error, ProducerIdMappingInvalid)
        assert isinstance(rig.add((producer[0] + 1, 0), 0), ProducerIdMappingInvalid)


class TestTimeouts:
    @pytest.mark.parametrize("version", [1, 2])
    def test_a_transaction_that_never_ends_is_aborted_and_its_producer_fenced(self, rig, version):
        producer = producer_of(rig.init(timeout_ms=1_000))
        rig.add(producer, 0, version=version)
        rig.advance(999)
        assert rig.state() == "Ongoing"
        rig.add(producer, 1, version=version)
        rig.advance(1)
        assert rig.state() == "PrepareAbort"
        assert rig.effects[0].producer_epoch == producer[1] + 1
        rig.written()
        error = rig.end(producer, version=version).error
        assert isinstance(error, TransactionalProducerFenced)

    def test_an_abort_of_version_2_after_the_timeout_goes_on_with_the_new_epoch(self, rig):
        producer = producer_of(rig.init(timeout_ms=1_000))
        rig.add(producer, 0, version=2)
        rig.advance(1_000)
        rig.written()
        following = producer_of(rig.end(producer, commit=False, version=2))
        assert following == (producer[0], producer[1] + 1)
        assert rig.add(following, 0, version=2) is None

    def test_a_timeout_at_the_last_epoch_leaves_nothing_to_go_on_with(self, rig):
        last = exhausted(rig)
        rig.add(last, 0, version=2)
        rig.advance(60_000)
        assert rig.effects[0].producer_epoch == 32767
        rig.written()
        error = rig.end(last, commit=False, version=2).error
        assert isinstance(error, TransactionalProducerFenced)
        assert producer_of(rig.init())[1] == 0

    def test_the_timeout_counts_from_the_start_over_a_reload(self, rig):
        producer = producer_of(rig.init(timeout_ms=1_000))
        rig.add(producer, 0)
        rig.advance(600)
        rig.crash()
        rig.advance(399)
        assert rig.state() == "Ongoing"
        rig.advance(1)
        assert rig.state() == "PrepareAbort"


class TestVerification:
    def test_it_finds_what_was_added_and_adds_nothing(self, rig):
        producer = producer_of(rig.init())
        assert rig.verify(producer, 0).absent == {("topic", 0)}
        rig.add(producer, 0)
        assert rig.verify(producer, 0, 1).absent == {("topic", 1)}
        rig.end(producer)
        assert isinstance(rig.verify(producer, 0).error, ConcurrentTransactions)
        rig.written()
        assert rig.verify(producer, 0).absent == {("topic", 0)}

    def test_a_fenced_producer_is_not_verified(self, rig):
        producer = producer_of(rig.init())
        rig.add(producer, 0)
        rig.init()
        assert isinstance(rig.verify(producer, 0).error, TransactionalProducerFenced)


class TestExpiration:
    CONFIG = TransactionConfig(id_expiration_ms=10_000, expiration_check_interval_ms=1_000)

    def test_an_idle_id_expires_and_an_add_to_it_is_refused(self):
        rig = TransactionHarness(self.CONFIG)
        producer = producer_of(rig.init())
        rig.advance(11_000)
        assert rig.state() == "Dead"
        assert rig.log[-1][1] is None
        assert isinstance(rig.add(producer, 0), ProducerIdMappingInvalid)
        rig.crash()
        assert isinstance(rig.describe().error, TransactionalIdUnknown)

    def test_an_id_with_a_transaction_does_not_expire(self):
        rig = TransactionHarness(self.CONFIG)
        producer = producer_of(rig.init())
        rig.add(producer, 0)
        rig.end(producer)
        rig.advance(50_000)
        assert rig.state() == "PrepareCommit"

    def test_only_idle_ids_give_way_and_survive_no_reload(self):
        rig = TransactionHarness(self.CONFIG)
        used = ("open", "prepared", "idle", "other")
        producers = {name: producer_of(rig.init(name)) for name in used}
        for name in ("open", "prepared"):
            rig.add(producers[name], 0, name=name)
        rig.end(producers["prepared"], name="prepared")
        begun_ms = rig.now_ms
        rig.advance(5)
        rig.init("late")
        rig.send(RemoveIdleCommand(["open", "prepared", "idle", "late", "unknown"], begun_ms))
        assert sorted(rig.machine.transactions) == ["late", "open", "other", "prepared"]
        assert isinstance(rig.add(producers["idle"], 0, name="idle"), ProducerIdMappingInvalid)
        rig.crash()
        assert sorted(rig.machine.transactions) == ["late", "open", "other", "prepared"]

    def test_a_large_expiry_goes_in_steps(self):
        config = TransactionConfig(
            id_expiration_ms=10_000, expiration_check_interval_ms=10_000, expired_per_tick_max=10
        )
        rig = TransactionHarness(config, check_purity=False)
        for number in range(25):
            rig.init(f"t{number}")
        rig.advance(10_000)
        assert len(rig.machine.transactions) == 15
        rig.advance(2_000)
        assert not rig.machine.transactions


def test_lists_are_filtered_by_state_producer_and_duration(rig):
    producers = {name: producer_of(rig.init(name)) for name in "abc"}
    rig.add(producers["a"], 0, name="a")
    rig.advance(5_000)
    rig.add(producers["b"], 0, name="b")

    def listed(**filters: object) -> list[str]:
        reply = rig.send(ListTransactionsCommand(**filters))
        return [item.transactional_id for item in reply.transactions]

    assert listed() == ["a", "b", "c"]
    assert listed(states=frozenset({"Ongoing"})) == ["a", "b"]
    assert listed(producer_ids=frozenset({producers["c"][0]})) == ["c"]
    assert listed(running_longer_ms=1_000) == ["a"]


def test_a_snapshot_alone_restores_the_state(rig):
    producer = producer_of(rig.init())
    rig.add(producer, 0)
    rig.end(producer)
    rig.init("other")
    rig.snapshot()
    rig.crash()
    rig.written()
    assert rig.state() == "CompleteCommit"


def test_a_record_that_cannot_be_read_is_counted_and_skipped(rig):
    assert rig.machine.decode(b"\0\0\0\x01t", b"\0\x01\0") is None
    assert rig.machine.decode(None, b"") is None
    assert rig.machine.decode(b"\0\x63", None) is None
    assert rig.machine.skipped_count == 3
