"""One broker: what it knows and owns, and its housekeeping.

Invariants: faces call this, it calls the log and the coordinators. Opening it reads the
metadata; a partition's log is read when somebody first asks for it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.coordinator_shards import CoordinatorRegistry
from headrace.broker.coordinators.group_config import group_value
from headrace.broker.coordinators.group_coordinator import GroupCoordinator
from headrace.broker.coordinators.group_surroundings import surroundings
from headrace.broker.coordinators.groups_configured import ConfiguredGroups
from headrace.broker.coordinators.internal_topics import InternalPartition
from headrace.broker.coordinators.marker_sender import MarkerSender
from headrace.broker.coordinators.marker_writer import MarkerWriter
from headrace.broker.coordinators.producer_ids import ProducerIds
from headrace.broker.coordinators.transaction_checks import TransactionChecks
from headrace.broker.coordinators.transaction_coordinator import TransactionCoordinator
from headrace.broker.coordinators.transaction_verification import Verifications
from headrace.broker.housekeeping.compactor import Compactor
from headrace.broker.housekeeping.ledger_evidence import LedgerEvidence
from headrace.broker.housekeeping.ledger_garbage import LedgerGarbageCollector
from headrace.broker.housekeeping.orphans import collect_orphans
from headrace.broker.housekeeping.replication import Replication
from headrace.broker.housekeeping.retention import Retention
from headrace.broker.housekeeping.tiering import Tiering
from headrace.broker.ownership.balance import Balance
from headrace.broker.ownership.cluster_view import adopt_partitions
from headrace.broker.ownership.hand_over import Events
from headrace.broker.ownership.metadata_cache import MetadataCache
from headrace.broker.ownership.shared_ownership import SharedOwnership
from headrace.broker.services.appends import Appends
from headrace.broker.services.broker_settings import BrokerSettings
from headrace.broker.services.client_quotas import ClientQuotas
from headrace.broker.services.configurations import Configurations
from headrace.broker.services.copy_appends import CopyAppends
from headrace.broker.services.deleted_topics import DeletedTopics
from headrace.broker.services.group_administration import GroupAdministration
from headrace.broker.services.queue_administration import QueueAdministration
from headrace.broker.services.queue_owners import QueueOwners
from headrace.broker.services.share_group_administration import ShareGroupAdministration
from headrace.broker.services.topic_administration import TopicAdministration
from headrace.broker.shares.dead_letters import DeadLetters
from headrace.broker.shares.group_terms import GroupTerms
from headrace.broker.shares.share_groups import ShareGroups
from headrace.broker.shares.share_partitions import SharePartitions
from headrace.broker.timers.timer_partitions import TimerPartitions
from headrace.broker.topics.ownership import Ownership, SoleOwnership
from headrace.broker.topics.topics import Topics
from headrace.errors import CoordinatorUnavailable, HeadraceError, NotCoordinator
from headrace.log.environment import Environment
from headrace.log.loaded_indexes import LoadedIndexes
from headrace.metadata.config_facts import BROKER_CONFIGS
from headrace.metadata.endpoints import HTTP, Endpoint, address_of, listeners_text
from headrace.metadata.facts import GROUPS, TOPICS, BrokerFact, copy_cluster_id, ensure_cluster_id
from headrace.metadata.quota_facts import QUOTAS
from headrace.records.identifiers import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.runtime.tasks import Tasks
from headrace.storage.ledger import LedgerStore, ReplicatesLedgers, ReportsSpace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.coordinators.coordinator_shards import CoordinatorShards
    from headrace.broker.coordinators.peer_calls import PeerCalls, SharePeerCalls
    from headrace.broker.housekeeping.ledger_evidence import SharedLedgers
    from headrace.broker.topics.topic import Topic
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.store import Entry, MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.storage.tiering.tier import Tier

log = logging.getLogger(__name__)


class Node:
    """A running broker without its faces."""

    def __init__(
        self,
        config: BrokerConfig,
        store: LedgerStore,
        metadata: MetadataStore,
        clock: Clock,
        randomness: Randomness,
        *,
        shared_ledgers: SharedLedgers | None = None,
        slots: Sequence[int] = (),
        tier: Tier | None = None,
        given: Mapping[str, str] | None = None,
    ) -> None:
        """Alone, unless told otherwise. `shared_ledgers`: those of `store` that all brokers see.
        `slots`: the ids of all brokers which share the metadata, each with ledgers of its own.
        `given`: settings beside `config` that it was started with, to be shown."""
        # A copy: what is changed while it runs is changed there.
        self.config = config = replace(config, topic_defaults=dict(config.topic_defaults))
        self.settings = BrokerSettings(config, metadata, given or {})
        self.quotas = ClientQuotas(metadata, clock)
        self.store = store
        self.metadata = metadata
        self.clock = clock
        self.tasks = Tasks()
        self.space: ReportsSpace | None = None
        """The disk of the ledgers, where they lie on this machine."""
        self.cluster_id = ""
        self.kafka_address = ("", 0)
        """The first Kafka listener's, as clients are told it."""
        self.endpoints: list[Endpoint] = []
        """Of all listeners, as clients are told them."""
        self._fact: BrokerFact | None = None
        is_storage_shared = shared_ledgers is not None
        is_standalone = self._is_standalone = not is_storage_shared and not slots
        self._slots = slots
        self.evidence = (
            None if shared_ledgers is None else LedgerEvidence(shared_ledgers, metadata, clock)
        )
        """None where this broker alone sees its ledgers."""
        parts = store, metadata, clock, self.tasks, is_storage_shared, tier
        environment = Environment(*parts, LoadedIndexes(), self.evidence, {})
        self.topics = Topics(environment, config, randomness, is_standalone=is_standalone)
        self.ownership = self._make_ownership(randomness.uuid().hex)
        self.topics.ownership = self.ownership
        self.tiering: Tiering | None = None
        """None without object storage."""
        if tier is not None:
            self.tiering = Tiering(
                self.topics, store, tier, metadata, clock, config, self.partition_ready
            )
        self.sweep: LedgerGarbageCollector | None = None  # alone, a broker deletes at once
        if shared_ledgers is not None:
            self.sweep = LedgerGarbageCollector(
                config, shared_ledgers, metadata, self.topics, self.ownership, clock
            )
        self.balance: Balance | None = None  # None where partitions do not move
        if shared_ledgers is not None and isinstance(self.ownership, SharedOwnership):
            self.balance = Balance(config, metadata, self.topics, self.ownership, clock)
        self.replication: Replication | None = None
        """None where ledgers are not kept in copies."""
        if isinstance(shared_ledgers, ReplicatesLedgers):
            self.replication = Replication(
                shared_ledgers, self.topics, self.ownership, metadata.session, clock
            )
        self.producer_ids = ProducerIds(metadata, clock)
        self._prepare_coordinators()
        self.appends = Appends(clock, self.verifications)
        self._prepare_shares(environment)
        self.topic_administration = TopicAdministration(
            self.topics, self.ownership, config.broker_id
        )
        self.configurations = Configurations(self.topics, self.group_configs, config)
        self.settings.attach(self.topics.defaults_changed, lambda: listeners_text(self.endpoints))
        self._prepare_housekeeping(environment)

    def _prepare_housekeeping(self, environment: Environment) -> None:
        self.deleted_topics = DeletedTopics(
            self.topics,
            self.shares,
            self.timers,
            self.group_configs,
            lambda: self.groups,
            self.tasks,
        )
        self.topics.forget_progress = self.deleted_topics.forget
        self.compactor = Compactor(self.topics, environment, self.config, self.partition_ready)
        self.retention = Retention(
            self.topics, self.ownership, self.config, self.clock, self.partition_ready
        )

    def _prepare_shares(self, environment: Environment) -> None:
        self.timers = TimerPartitions(
            environment, self.topics, self.producer_ids, is_standalone=self._is_standalone
        )
        self.appends.delays = self.timers
        self.group_configs = ConfiguredGroups(self.metadata)
        self.copies = CopyAppends(self.appends, self.ownership)
        self.dead_letters = DeadLetters(environment, self.topics, self.copies.append)
        self.shares = SharePartitions(
            environment,
            self.ownership,
            self._terms,
            self.dead_letters,
            self.group_configs.begin,
            is_standalone=self._is_standalone,
        )
        self.share_groups = ShareGroups(
            self.topics,
            self.shares,
            self.group_configs,
            self._check_coordinator,
            self.clock,
            self.tasks,
        )
        self.share_group_administration = ShareGroupAdministration(
            self.topics,
            self.ownership,
            self.share_groups,
            self.shares,
            self.group_configs,
            self.brokers,
        )
        self.queue_owners = QueueOwners(
            self.ownership, self.shares, self.group_configs, self.brokers, self.tasks
        )
        self.copies.peer = self.queue_owners.peer
        self.queue_administration = QueueAdministration(self.queue_owners, self.shares)

    def _make_ownership(self, incarnation: str) -> Ownership:
        if self._is_standalone:
            return SoleOwnership(self.config.broker_id, self.metadata)
        return SharedOwnership(
            self.config,
            self.metadata,
            self.topics,
            Events(
                lambda topic, n: self.coordinators.preload(topic.name, n),
                lambda topic, n, wait_s: self.coordinators.shrink(topic.name, n, wait_s),
                self._resigned,
            ),
            incarnation,
            self.clock,
            self.tasks,
            self._slots,
        )

    async def open(self) -> None:
        """Read the metadata, and collect what a crash left behind."""
        self.cluster_id = await ensure_cluster_id(self.metadata, self.randomness)
        if self.evidence is not None:
            await self.evidence.check_ids()
        self._open_coordinators()
        for prefix, apply in (
            (BROKER_CONFIGS, self.settings.apply),
            (GROUPS, self.group_configs.apply),
            (QUOTAS, self.quotas.apply),
        ):
            await MetadataCache(self.metadata, prefix, apply, lambda: None, self.tasks).start()
        if self._is_standalone:
            await self.topics.load()
            await self._collect_orphans()
            self._topics_changed()
        else:
            await MetadataCache(
                self.metadata, TOPICS, self._topic_changed, self._topics_changed, self.tasks
            ).start()
            if self._slots:
                if self.config.broker_id == self._slots[0]:
                    await adopt_partitions(self.metadata, self.topics, self._slots[0])
                await self._collect_orphans()
        await self._copy_cluster_id()
        self.tasks.spawn(self.topics.finish_deletions(), "deletions that were cut short")
        self.tasks.spawn(self.retention.run(), "housekeeping")
        self.tasks.spawn(self.timers.run(), "delayed delivery")
        self.tasks.spawn(self.transactions.run(), "transactions")
        if self.evidence is not None:
            self.tasks.spawn(self.evidence.look_at_start(), "ledgers and facts")
        self.tasks.spawn(self.compactor.run(), "compaction")
        if self.sweep is not None:
            self.tasks.spawn(self.sweep.run(), "sweep")
        if self.replication is not None:
            self.tasks.spawn(self.replication.run(), "replication")
        if self.balance is not None and self.config.balance_interval_ms:
            self.tasks.spawn(self.balance.run(), "balance")
        if self.tiering is not None:
            self.tasks.spawn(self.tiering.run(), "tiering")

    def _prepare_coordinators(self) -> None:
        """What handlers and logs may ask for before the metadata is read."""
        self.coordinators = CoordinatorRegistry()
        self.groups: GroupCoordinator
        self.group_administration: GroupAdministration
        self.transactions: TransactionCoordinator
        self.markers = MarkerWriter(self.topics, lambda: self.groups)
        self.marker_sender = MarkerSender(
            self.config.broker_id, self.topics, self.ownership, self.markers, self.tasks
        )
        self.transaction_checks = TransactionChecks(
            self.config.broker_id,
            lambda: self.transactions,
            lambda key: self.coordinator_of(self.transactions.shards, key),
        )
        self.verifications = Verifications(self.tasks)
        self.verifications.verifier = self.transaction_checks

    def _open_coordinators(self) -> None:
        config = self.config
        self.groups = GroupCoordinator(
            lambda partition: self._shard_log(OFFSETS_TOPIC, partition),
            config.offsets_partition_count,
            self.clock,
            self.randomness,
            self.tasks,
            config=config.group_config(),
            topics=self.topics,
            consumers=surroundings(
                config,
                self.topics,
                self.group_configs,
                self._rack_of,
                self.share_groups.exists,
                self.tasks,
            ),
        )
        self.transactions = TransactionCoordinator(
            lambda partition: self._shard_log(TRANSACTIONS_TOPIC, partition),
            config.transactions_partition_count,
            self.producer_ids,
            self.marker_sender,
            self.clock,
            self.tasks,
            config.transaction_config(),
        )
        self.group_administration = GroupAdministration(
            self.topics, self.groups, self.share_group_administration
        )
        self.coordinators.add(self.groups.shards)
        self.coordinators.add(self.transactions.shards)

    def call_peers_with(self, peers: PeerCalls, share_peers: SharePeerCalls | None = None) -> None:
        """Use these clients for what must be asked of other brokers."""
        self.marker_sender.peers = self.transaction_checks.peers = peers
        self.share_group_administration.peers = share_peers

    @property
    def randomness(self) -> Randomness:
        """Where ids come from."""
        return self.topics.randomness

    async def register(
        self, kafka: tuple[str, int] | None = None, http: tuple[str, int] | None = None
    ) -> None:
        """Join the cluster with the endpoints that the faces have added, or with these."""
        kafka = self.kafka_address = kafka or self.kafka_address
        self._fact = BrokerFact(
            self.config.broker_id,
            *kafka,
            *(http or address_of(self.endpoints, HTTP)),
            self.clock.now_ms(),
            self.config.rack,
            endpoints=list(self.endpoints),
        )
        await self.ownership.join(self._fact)

    async def leave(self) -> None:
        """Hand over to other brokers what this one owns: the first step of a clean stop."""
        await self.ownership.leave()

    async def close(self) -> None:
        """Stop the coordinators and all background work. Storage is closed by its owner."""
        self.coordinators.close()
        self.shares.close()
        self.timers.close()
        self.appends.close()
        await self.tasks.close()

    def brokers(self) -> Sequence[BrokerFact]:
        """The live brokers; this one, where it has not told anybody of itself yet."""
        return self.ownership.brokers() or [
            self._fact
            or BrokerFact(
                self.config.broker_id, *self.kafka_address, "", 0, 0, endpoints=self.endpoints
            )
        ]

    def coordinator_of(self, shards: CoordinatorShards[Any, Any, Any], key: str) -> BrokerFact:
        """The broker that coordinates `key`. Raises CoordinatorUnavailable while none does."""
        topic = self.topics.by_name.get(shards.topic)
        if topic is not None:
            leader = self.ownership.leader(topic, shards.partition_for(key))
            for broker in self.brokers():
                if broker.id == leader.broker:
                    return broker
        raise CoordinatorUnavailable("no broker coordinates this at the moment: try again")

    def _topic_changed(self, key: str, entry: Entry | None) -> None:
        """Another broker may have made, changed or deleted a topic."""
        gone = self.topics.apply(key, entry)
        if gone is not None:
            is_certain = entry is not None or self.evidence is None
            self.deleted_topics.gone(gone, is_certain=is_certain)

    def _topics_changed(self) -> None:
        for shards in self.coordinators:
            topic = self.topics.by_name.get(shards.topic)
            if topic is not None:
                # The hash of a key depends on it: what is stored wins over what is configured.
                shards.use_partition_count(topic.fact.partition_count)
        self.ownership.topics_changed()

    async def _copy_cluster_id(self) -> None:
        try:
            await copy_cluster_id(self.metadata, self.cluster_id)
        except HeadraceError as error:  # the id itself is there
            log.warning("no copy of the cluster's id is kept: %s", error)

    def _resigned(self, topic: Topic, partition: int) -> None:
        """This broker is about to serve a partition no longer."""
        self.shares.resign(topic, partition)
        self.timers.resign(topic, partition)
        self.coordinators.resign(topic.name, partition)

    def _terms(self, group_id: str) -> GroupTerms:
        """How a share group takes records."""
        overrides = self.group_configs.overrides(group_id)
        return GroupTerms(
            self.group_configs.share_config(group_id),
            group_value(overrides, "share.auto.offset.reset"),
            group_value(overrides, "share.isolation.level") == "read_committed",
            group_value(overrides, "errors.deadletterqueue.topic.name"),
        )

    def _rack_of(self, topic: Topic, partition: int) -> str | None:
        """The rack of the broker that serves a partition."""
        owner = self.ownership.leader(topic, partition).broker
        return next((fact.rack for fact in self.brokers() if fact.id == owner), None)

    def _check_coordinator(self, group_id: str) -> None:
        """Raises NotCoordinator where another broker coordinates the group."""
        self._coordinated(OFFSETS_TOPIC, self.groups.partition_for(group_id))

    def _coordinated(self, name: str, number: int) -> PartitionLog:
        topic = self.topics.by_name.get(name)
        if topic is None:
            raise NotCoordinator(f"nothing was ever coordinated here: there is no topic {name} yet")
        if number >= len(topic.partitions) or not self.ownership.is_mine(topic, number):
            raise NotCoordinator("another broker coordinates this: ask for the coordinator")
        return topic.require_log(number)

    def _shard_log(self, name: str, number: int) -> InternalPartition:
        log_ = self._coordinated(name, number)
        return InternalPartition(log_, self.clock)

    async def partition_ready(self, partition: PartitionLog) -> None:
        """Wait until the partition's log has been read. Raises why it cannot be."""
        await partition.wait_loaded()

    # --- housekeeping ------------------------------------------------------------------------

    async def _collect_orphans(self) -> None:
        """Delete what a crash left without a topic."""
        parts = self.store, self.metadata, self.topics, self.config.broker_id
        await collect_orphans(*parts, has_neighbours=bool(self._slots))
