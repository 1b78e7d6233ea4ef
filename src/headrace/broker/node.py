"""One broker's state, services and background work, without a protocol.

Invariants: protocol faces call this module; it calls the log and the coordinators. `open` reads the
metadata only; a partition's log is read on first use.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from headrace.broker.coordinators.coordinated_logs import CoordinatedLogs
from headrace.broker.coordinators.coordinator_shards import CoordinatorRegistry
from headrace.broker.coordinators.group_coordinator import GroupCoordinator
from headrace.broker.coordinators.group_dependencies import group_dependencies
from headrace.broker.coordinators.groups_configured import ConfiguredGroups
from headrace.broker.coordinators.internal_topics import InternalPartition
from headrace.broker.coordinators.kept_groups import KeptGroups
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
from headrace.broker.housekeeping.retention import PRODUCERS_INTERVAL_MS, Retention
from headrace.broker.housekeeping.tenant_storage import TenantStorage
from headrace.broker.housekeeping.tiering import Tiering
from headrace.broker.machine import LONE
from headrace.broker.node_figures import figures_of
from headrace.broker.ownership.balance import Balance
from headrace.broker.ownership.cluster_view import adopt_partitions
from headrace.broker.ownership.hand_over import Events
from headrace.broker.ownership.metadata_cache import MetadataCache
from headrace.broker.ownership.shared_ownership import SharedOwnership
from headrace.broker.security.authentication import without_listeners
from headrace.broker.security.connection_limits import ConnectionLimits
from headrace.broker.security.tenants import refuse_tenants
from headrace.broker.services.access_control import access_of
from headrace.broker.services.appends import Appends
from headrace.broker.services.audit import Audit
from headrace.broker.services.audit_lines import AuditLines
from headrace.broker.services.audit_topic import AuditTopic
from headrace.broker.services.authorizer import AllowAll
from headrace.broker.services.background_tasks import BackgroundTasks
from headrace.broker.services.broker_settings import ADVERTISED, BrokerSettings
from headrace.broker.services.client_quotas import ClientQuotas
from headrace.broker.services.client_telemetry import ClientTelemetry
from headrace.broker.services.cluster import Cluster
from headrace.broker.services.configurations import Configurations
from headrace.broker.services.deleted_topics import DeletedTopics
from headrace.broker.services.fair_shares import FairShares
from headrace.broker.services.group_administration import GroupAdministration
from headrace.broker.services.group_lags import GroupLags
from headrace.broker.services.group_service import GroupService
from headrace.broker.services.health import Health
from headrace.broker.services.helper_access import helper_access
from headrace.broker.services.hot_keys import HotKeys
from headrace.broker.services.journal_reads import JournalReads
from headrace.broker.services.ledger_map import LedgerMap
from headrace.broker.services.letter_desk import LetterDesk
from headrace.broker.services.lite_subscriptions import LiteSubscriptions
from headrace.broker.services.message_search import MessageSearch
from headrace.broker.services.message_timers import MessageTimers
from headrace.broker.services.owner_calls import OwnerCalls
from headrace.broker.services.past_group_offsets import PastGroupOffsets
from headrace.broker.services.queue_owners import QueueOwners
from headrace.broker.services.queue_service import QueueService
from headrace.broker.services.reads import Reads
from headrace.broker.services.reassignments import Reassignments
from headrace.broker.services.record_sends import RecordSends
from headrace.broker.services.search import Search
from headrace.broker.services.services import Services
from headrace.broker.services.settings_of_brokers import SettingsOfBrokers
from headrace.broker.services.share_group_administration import ShareGroupAdministration
from headrace.broker.services.stored_reads import StoredReads
from headrace.broker.services.table_marks import TableMarks
from headrace.broker.services.tenant_audit import TenantAudit
from headrace.broker.services.tenant_rates import TenantRates
from headrace.broker.services.topic_figures import TopicFigures
from headrace.broker.services.topic_service import TopicService
from headrace.broker.services.trace import Tracer
from headrace.broker.services.user_administration import UserAdministration
from headrace.broker.shares.dead_letters import DeadLetters
from headrace.broker.shares.share_group_settings import share_terms
from headrace.broker.shares.share_groups import ShareGroups
from headrace.broker.shares.share_partitions import SharePartitions
from headrace.broker.timers.timer_partitions import TimerPartitions
from headrace.broker.topics.ownership import Ownership, SoleOwnership
from headrace.broker.topics.topic_loading import load_topics
from headrace.broker.topics.topics import Topics
from headrace.coordination.quotas.tenant_limits import CONNECTIONS, STORED
from headrace.coordination.quotas.tenant_limits import GROUPS as GROUP_COUNT
from headrace.errors import HeadraceError
from headrace.log.environment import CompanionedLogs, Environment
from headrace.log.loaded_indexes import LoadedIndexes
from headrace.log.partition_log import PartitionLog
from headrace.log.sealed_view import show_sealed
from headrace.metadata.config_facts import BROKER_CONFIGS
from headrace.metadata.endpoints import HTTP_ADVERTISED, http_text, listeners_text
from headrace.metadata.facts import TOPICS, copy_cluster_id, ensure_cluster_id
from headrace.records.identifiers import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.records.tenant_names import tenant_of
from headrace.runtime.disk import open_files_limit
from headrace.runtime.loop_turns import LoopTurns
from headrace.runtime.rounds import Rounds
from headrace.runtime.tasks import Tasks
from headrace.storage.ledger import LedgerStore, ReplicatesLedgers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.housekeeping.ledger_evidence import SharedLedgers
    from headrace.broker.machine import Machine
    from headrace.broker.security.tenants import Tenants
    from headrace.broker.services.authorizer import Authorizer
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.facts import PartitionFact
    from headrace.metadata.store import MetadataEntry, MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.storage.tiering.tier import Tier

log = logging.getLogger(__name__)


class Node:
    """A running broker without its protocol faces."""

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
        machine: Machine = LONE,
    ) -> None:
        """A stand-alone broker, unless the arguments say otherwise.

        `shared_ledgers`: the part of `store` that all brokers see. `slots`: the ids of all brokers
        that share the metadata while each keeps ledgers of its own. `given`: start-up settings
        outside `config`, kept for display.
        """
        # A copy, because dynamic settings change it.
        self.config = config = replace(config, topic_defaults=dict(config.topic_defaults))
        self.settings = BrokerSettings(config, metadata, given or {}, machine.read_certificates)
        self.access = access_of(config, metadata)
        self.tenant_rates = TenantRates(self.access, clock, config.broker_id)
        self.quotas = ClientQuotas(metadata, clock, self.tenant_rates)
        self.authorizer: Authorizer = self.access or AllowAll()
        lines = AuditLines() if config.audit_topic else None
        self.tenant_audit = None if self.access is None else TenantAudit(self.access)
        self.audit = Audit(clock, lines, self.authorizer, self.tenant_audit)
        tenants = None if self.access is None else self.access.tenants
        self.authentication, self.issuers = without_listeners(
            metadata, clock, randomness, config, tenants
        )
        self.peers = machine.peers(self.authentication)
        self.store, self.metadata, self.clock = store, metadata, clock
        self.tasks = Tasks()
        self.cluster_id = ""
        is_storage_shared = shared_ledgers is not None
        is_standalone = self._is_standalone = not is_storage_shared and not slots
        self._slots = slots
        self.evidence = (
            None if shared_ledgers is None else LedgerEvidence(shared_ledgers, metadata, clock)
        )
        """None if only this broker sees its ledgers."""
        parts = store, metadata, clock, self.tasks, is_storage_shared, tier, LoadedIndexes()
        environment = self._environment = Environment(*parts, self.evidence, CompanionedLogs())
        self.coordinators = CoordinatorRegistry()
        own = partial(self._make_ownership, incarnation=randomness.uuid().hex)
        limits_of = None if tenants is None else tenants.limits_of_new
        self.topics = Topics(
            environment, config, randomness, own, limits_of, is_standalone=is_standalone
        )
        self.ownership = self.topics.ownership
        if self.access is not None:
            self.topics.readable.follow(self.access.sharing)
            self.access.is_shared = self.topics.readable.is_shared
        self._coordinated = CoordinatedLogs(self.topics, self.ownership, clock)
        self.cluster = Cluster(config, self.topics, self.ownership, clock)
        self._check_group = None if self.access is None else self.tenant_rates.counts.check_group
        self.group_configs = ConfiguredGroups(metadata, self.topics, self._check_group)
        self.group_configs.bound(lambda: config.groups_max, clock.now_ns)
        self._prepare_storage(shared_ledgers, tier, machine)
        self.producer_ids = ProducerIds(metadata, clock)
        self._prepare_shares()
        self._prepare_coordinators()
        self.verifications = Verifications(self.tasks, self.transaction_checks)
        refused = self.tenant_rates.counts.refused
        lite = self.shares.lite
        self.appends = Appends(clock, self.verifications, self.timers.delayed, refused, lite)
        self.tenant_storage = TenantStorage(self.topics, self.ownership)
        self._prepare_housekeeping()
        self.services = _services_of(self, machine)
        self.figures = figures_of(self, self.services)
        if tenants is not None:
            _count_of_tenants(self, tenants)
        self.settings.attach(self.topics.defaults_changed, self._advertised)

    def _prepare_storage(
        self, shared_ledgers: SharedLedgers | None, tier: Tier | None, machine: Machine
    ) -> None:
        config, metadata, clock = self.config, self.metadata, self.clock
        self.tiering: Tiering | None = None
        """None without object storage."""
        if tier is not None:
            self.tiering = Tiering(
                self.topics, self.store, tier, metadata, clock, config, PartitionLog.wait_loaded
            )
        self.ledger_garbage: LedgerGarbageCollector | None = None  # for shared ledgers only
        if shared_ledgers is not None:
            self.ledger_garbage = LedgerGarbageCollector(
                config, shared_ledgers, metadata, self.topics, self.ownership, clock
            )
        lost = {} if self.ledger_garbage is None else self.ledger_garbage.problems
        self.health = Health(
            self.topics, self.ownership, metadata, self.group_configs.lost_facts, lost
        )
        self.balance: Balance | None = None  # None if partitions do not move
        if shared_ledgers is not None and isinstance(self.ownership, SharedOwnership):
            self.balance = Balance(
                config, metadata, self.topics, self.ownership, clock, machine.cpu_ns
            )
        self.replication: Replication | None = None
        """None if ledgers are not replicated."""
        if isinstance(shared_ledgers, ReplicatesLedgers):
            self.replication = Replication(
                shared_ledgers, self.topics, self.ownership, metadata.session, clock
            )

    def _advertised(self) -> dict[str, str]:
        endpoints = self.cluster.endpoints
        return {ADVERTISED: listeners_text(endpoints), HTTP_ADVERTISED: http_text(endpoints)}

    def _prepare_housekeeping(self) -> None:
        self.deleted_topics = DeletedTopics(
            self.topics,
            self.shares,
            self.timers,
            self.group_configs,
            self.groups,
            self.tasks,
        )
        self.compactor = Compactor(
            self.topics, self._environment, self.config, PartitionLog.wait_loaded
        )
        ready = PartitionLog.wait_loaded
        self.retention = Retention(self.topics, self.ownership, self.clock, ready, self.config)

    async def _append_copies(self, topic: Topic, number: int, batch: bytes) -> None:
        """Dead letters are sent by a service, which needs what is assembled after them."""
        await self.services.sends.append_copies(topic, number, batch)

    def _prepare_shares(self) -> None:
        environment = self._environment
        self.timers = TimerPartitions(
            environment,
            self.topics,
            self.producer_ids,
            lambda: self.config.delayed_bytes_max,
            is_standalone=self._is_standalone,
        )
        self.dead_letters = DeadLetters(environment, self.topics, self._append_copies)
        self.shares = SharePartitions(
            environment,
            self.topics,
            partial(share_terms, self.group_configs),
            self.dead_letters,
            self.group_configs.begin,
            is_standalone=self._is_standalone,
        )
        self._kept_groups = KeptGroups(self.config, self.clock)
        self.share_groups = ShareGroups(
            self.topics,
            self.shares,
            self.group_configs,
            self._check_coordinator,
            self.clock,
            self.tasks,
            self._kept_groups,
        )
        self.share_group_administration = ShareGroupAdministration(
            self.topics,
            self.ownership,
            self.share_groups,
            self.shares,
            self.group_configs,
            self.cluster.brokers,
            self.peers.shares,
        )
        self.queue_owners = QueueOwners(
            self.ownership,
            self.config.broker_id,
            self.shares,
            self.group_configs,
            self.cluster.brokers,
            self.tasks,
            self.peers.queues,
        )

    def _make_ownership(self, topics: Topics, incarnation: str) -> Ownership:
        if self._is_standalone:
            return SoleOwnership(self.config.broker_id, self.metadata)
        return SharedOwnership(
            self.config,
            self.metadata,
            topics,
            Events(
                self.coordinators.preload,
                self.coordinators.shrink,
                self.coordinators.hold,
                self._read_ahead,
                self.coordinators.withdraw,
                self._suspended,
                self._resigned,
            ),
            incarnation,
            self.clock,
            self.tasks,
            self._slots,
            self.peers.open_line,
        )

    async def open(self) -> None:
        """Read the metadata and collect what a crash left behind."""
        self.cluster_id = self.cluster.id = await ensure_cluster_id(self.metadata, self.randomness)
        if self.evidence is not None:
            await self.evidence.check_ids()
        if self.access is None:
            await refuse_tenants(self.metadata)
        followed = self.tasks, self.topics.damaged_facts
        changed_here = (
            self.quotas.facts,
            self.services.telemetry.subscriptions.facts,
            *(() if self.access is None else self.access.followed),
            self.services.authentication.users.facts,
            self.group_configs.facts,
        )
        for prefix, apply, turns in (
            (BROKER_CONFIGS, self.settings.apply, None),
            *((facts.prefix, facts.apply, facts.turns) for facts in changed_here),
            *((kind.prefix, kind.apply, None) for kind in self.services.issuers.kinds),
        ):
            await MetadataCache(
                self.metadata, prefix, apply, lambda: None, *followed, turns
            ).start()
        for facts in changed_here:
            self.tasks.spawn(facts.delete_empty(self.cluster.may_delete_facts), "empty facts")
        if self._is_standalone:
            await load_topics(self.topics, self.metadata)
            await self._collect_orphans()
            self._topics_changed()
            self.transactions.load()
        else:
            await MetadataCache(
                self.metadata, TOPICS, self._topic_changed, self._topics_changed, *followed
            ).start()
            if self._slots:
                if self.config.broker_id == self._slots[0]:
                    await adopt_partitions(self.metadata, self.topics, self._slots[0])
                await self._collect_orphans()
        await self._copy_cluster_id()
        self.tasks.spawn(self.topics.deletions.finish_all(self.ownership), "unfinished deletions")
        self.tasks.spawn(self.services.issuers.run(), "ended credentials")
        self.tasks.spawn(self.services.topic_figures.rates.run(), "rates of topics")
        self.tasks.spawn(self.services.lags.run(), "lag of groups")
        rates = self.tenant_rates
        self.tasks.spawn(rates.run(self.services.calls, self.cluster.brokers), "rates of tenants")
        self.tasks.spawn(rates.counts.drop_for_ever(self.tenant_storage.drop), "full tenants")
        _begin_audit(self)
        self.tasks.spawn(self.health.publish(self.config.broker_id), "publish problems")
        self.tasks.spawn(self.timers.host.run(), "delayed delivery")
        if self.evidence is not None:
            self.tasks.spawn(self.evidence.audit_at_start(), "audit ledgers at start")
        if self.replication is not None:
            self.tasks.spawn(self.replication.run(), "replication")
        _begin_rounds(self)

    def _prepare_coordinators(self) -> None:
        config = self.config
        self.groups = GroupCoordinator(
            partial(self._coordinated.shard_log, OFFSETS_TOPIC),
            config.offsets_partition_count,
            self.clock,
            self.randomness,
            self.tasks,
            config=config.group_config(),
            topics=self.topics.readable,
            consumers=group_dependencies(
                config,
                self.topics,
                self.group_configs,
                self._rack_of,
                self.share_groups.exists,
                self.tasks,
            ),
            check_new=self._check_group,
            kept=self._kept_groups,
        )
        self.markers = MarkerWriter(self.topics, self.groups)
        self.marker_sender = MarkerSender(
            config.broker_id,
            self.topics,
            self.ownership,
            self.markers,
            self.tasks,
            self.peers.coordinators,
        )
        self.transactions = TransactionCoordinator(
            partial(self._coordinated.shard_log, TRANSACTIONS_TOPIC),
            config.transactions_partition_count,
            self.producer_ids,
            self.marker_sender,
            self.clock,
            self.tasks,
            config.transaction_config(),
            lambda: config.transactional_ids_max,
        )
        self.transaction_checks = TransactionChecks(
            config.broker_id,
            self.transactions,
            partial(self.cluster.coordinator_of, self.transactions.shards),
            self.peers.coordinators,
        )
        self.coordinators.add(self.groups.shards)
        self.coordinators.add(self.transactions.shards)

    @property
    def randomness(self) -> Randomness:
        """The source of random ids."""
        return self.topics.randomness

    async def register(
        self, kafka: tuple[str, int] | None = None, http: tuple[str, int] | None = None
    ) -> None:
        """Join the cluster with the endpoints that the faces have added, or with the given ones."""
        await self.cluster.register(kafka, http)

    async def leave(self) -> None:
        """Hand this broker's partitions over to other brokers: the first step of a clean
        shutdown."""
        await self.ownership.leave()

    async def close(self) -> None:
        """Stop the coordinators and all background work. The caller closes the storage."""
        await self.peers.close()
        self.coordinators.close()
        self.shares.close()
        self.timers.host.hosted.close()
        self.appends.close()
        self.services.authentication.close()
        await self.tasks.close()

    def _topic_changed(self, key: str, entry: MetadataEntry | None) -> None:
        """Another broker may have created, changed or deleted a topic."""
        removed = self.topics.apply(key, entry)
        if removed is not None:
            is_certain = entry is not None or self.evidence is None
            self.deleted_topics.topic_deleted(removed, is_certain=is_certain)

    def _topics_changed(self) -> None:
        for shards in self.coordinators:
            topic = self.topics.by_name.get(shards.topic)
            if topic is not None:
                # The hash of a key depends on the partition count: the stored value wins over the
                # configured one.
                shards.use_partition_count(topic.fact.partition_count)
        self.ownership.topics_changed()

    async def _copy_cluster_id(self) -> None:
        try:
            await copy_cluster_id(self.metadata, self.cluster_id)
        except HeadraceError as error:  # the id itself is stored
            log.warning("cannot store a copy of the cluster id: %s", error)

    async def _read_ahead(
        self, topic: Topic, partition: int, leader_epoch: int, chain: PartitionFact
    ) -> None:
        """This broker is about to coordinate what is in a partition."""
        view = self.topics.logs.make(topic.fact, partition, leader_epoch)
        show_sealed(view, chain, self._environment)
        records = InternalPartition(view, self.clock).replay_from(view.log_start_offset)
        end = view.high_watermark
        await self.coordinators.read_ahead(topic, partition, records, end, leader_epoch)

    def _suspended(self, topic: Topic, partition: int) -> None:
        """It is uncertain whether this broker owns a partition."""
        self.shares.resign(topic, partition)
        self.timers.host.hosted.resign(topic, partition)
        self.coordinators.suspend(topic, partition)

    def _resigned(self, topic: Topic, partition: int) -> None:
        """This broker is about to stop serving a partition."""
        self.shares.resign(topic, partition)
        self.timers.host.hosted.resign(topic, partition)
        self.coordinators.resign(topic, partition)

    def _rack_of(self, topic: Topic, partition: int) -> str | None:
        """The rack of the broker that serves a partition."""
        owner = self.ownership.leader(topic, partition).broker
        return next((fact.rack for fact in self.cluster.brokers() if fact.id == owner), None)

    def _check_coordinator(self, group_id: str) -> None:
        """Raise NotCoordinator if another broker coordinates the group."""
        self._coordinated.require(OFFSETS_TOPIC, self.groups.partition_for(group_id))

    # --- housekeeping ------------------------------------------------------------------------

    async def _collect_orphans(self) -> None:
        """Delete ledgers and facts that a crash left without a topic."""
        parts = self.store, self.metadata, self.topics, self.config.broker_id
        await collect_orphans(*parts, has_neighbours=bool(self._slots))


def _services_of(node: Node, machine: Machine) -> Services:
    """Put together what faces may use."""
    owners, topics, configs = node.queue_owners, node.topics, node.group_configs
    broker_id, cluster = node.config.broker_id, node.cluster
    calls = OwnerCalls(owners, cluster.brokers, broker_id)
    shared = node.metadata, node.clock, node.randomness
    reads, sends = Reads(calls, topics.readable.check), RecordSends(topics, owners, node.appends)
    share_groups = node.share_group_administration
    groups = GroupAdministration(topics, node.groups, share_groups, cluster)
    all_groups = GroupService(calls, topics, groups, share_groups, reads, cluster)
    ledgers = LedgerMap(calls, topics, node.replication, node.tiering)
    return Services(
        topics=TopicService(topics, broker_id, node.deleted_topics.forget, machine.disk),
        ledgers=ledgers,
        topic_figures=TopicFigures(calls, topics, node.groups, node.shares, node.clock),
        lags=GroupLags(calls, topics, node.groups, node.shares, configs, node.clock),
        cluster=cluster,
        appends=node.appends,
        sends=sends,
        reads=reads,
        stored_reads=StoredReads(node.tasks, node.clock),
        queues=QueueService(owners, calls, node.shares, configs, groups, *shared[1:], node.tasks),
        lite_subscriptions=LiteSubscriptions(calls, node.shares.lite, node.clock, broker_id),
        timers=MessageTimers(calls, node.timers, cluster.brokers, broker_id, node.tasks),
        **_searches_of(node, calls, ledgers, groups),
        groups=groups,
        share_groups=share_groups,
        all_groups=all_groups,
        shares=node.shares,
        share_members=node.share_groups,
        producer_ids=node.producer_ids,
        transactions=node.transactions,
        transaction_checks=node.transaction_checks,
        markers=node.markers,
        settings=node.settings,
        settings_of_brokers=SettingsOfBrokers(node.settings, cluster, calls),
        configurations=Configurations(topics, configs, node.config, calls),
        quotas=node.quotas,
        fair_shares=FairShares(node.access, node.config),
        turns=LoopTurns(),
        reassignments=Reassignments(topics, node.metadata, broker_id),
        telemetry=ClientTelemetry(*shared),
        health=node.health,
        replication=node.replication,
        tiering=node.tiering,
        dead_letters=node.dead_letters,
        desk=LetterDesk(calls, reads, sends, all_groups, node.shares, node.clock, node.randomness),
        authorizer=node.authorizer,
        access=node.access,
        audit=node.audit,
        authentication=node.authentication,
        users=_users_of(node),
        connections=_connection_limits(node),
        issuers=node.issuers,
        helper_access=partial(helper_access, machine.helper_listener, node.authentication),
        tasks=BackgroundTasks(node.tasks, node.clock, node.randomness),
        calls=calls,
        clock=node.clock,
        randomness=node.randomness,
        decoded_values=machine.decoded_values,
    )


def _users_of(node: Node) -> UserAdministration:
    logins = node.authentication.logins
    return UserAdministration(logins, node.access, node.audit, node.randomness)


def _connection_limits(node: Node) -> ConnectionLimits:
    counts = node.tenant_rates.counts
    return ConnectionLimits(node.config, node.clock.now_ns, counts, open_files_limit())


class _Searches(TypedDict):
    """What reads many records for one answer, of which few run at a time."""

    search: MessageSearch
    journals: JournalReads
    hot_keys: HotKeys
    past_offsets: PastGroupOffsets


def _searches_of(
    node: Node, calls: OwnerCalls, ledgers: LedgerMap, groups: GroupAdministration
) -> _Searches:
    configs, name = node.group_configs, "errors.deadletterqueue.topic.name"
    search = Search(node.topics, node.shares, node.timers, partial(configs.values, name))
    tracer = Tracer(node.topics, search, node.shares, node.timers, ledgers)
    open_ms_max = node.config.transaction_timeout_ms_max
    return _Searches(
        search=MessageSearch(calls, search, tracer, TableMarks(calls, node.groups)),
        journals=JournalReads(calls, node.shares, search.running),
        hot_keys=HotKeys(calls, search.running),
        past_offsets=PastGroupOffsets(calls, node.topics, groups, search.running, open_ms_max),
    )


def _begin_rounds(node: Node) -> None:
    """Begin the work that is repeated at intervals of the settings."""
    config, rounds = node.config, Rounds()
    node.settings.on_change(lambda _name, _value: rounds.intervals_changed())

    def repeat(
        name: str, interval_ms: Callable[[], int], work: Callable[[], Awaitable[object]]
    ) -> None:
        node.tasks.spawn(rounds.run(name, interval_ms, work), name)

    repeat("retention", lambda: config.retention_check_interval_ms, node.retention.round)
    repeat("producers", lambda: PRODUCERS_INTERVAL_MS, node.retention.bound_producers)
    repeat("compaction", lambda: config.compaction_interval_ms, node.compactor.round)
    if node.ledger_garbage is not None:
        collect = node.ledger_garbage.round
        repeat("collection of ledgers", lambda: config.sweep_interval_ms, collect)
    if node.balance is not None and config.balance_interval_ms:
        repeat("balancing", lambda: config.balance_interval_ms, node.balance.round)
    if node.tiering is not None:
        repeat("tiering", node.tiering.interval_ms, node.tiering.round)


def _begin_audit(node: Node) -> None:
    """Have the lines of the audit log written to topics."""

    def topic(name: str, lines: AuditLines) -> AuditTopic:
        return AuditTopic(name, lines, node.services.topics, node.services.sends, node.clock)

    if (lines := node.audit.lines) is not None:
        node.tasks.spawn(topic(node.config.audit_topic, lines).run(), "audit topic")
    if node.tenant_audit is not None:
        has_user = node.authentication.users.has_user
        node.tenant_audit.begin(
            node.tasks.spawn, lambda name, own: topic(name, own).write_all(), has_user
        )


def _count_of_tenants(node: Node, tenants: Tenants) -> None:
    """Have what tenants use counted where it is used."""
    tenants.on_change(node.quotas.tenants_changed)
    counts, connections = node.tenant_rates.counts, node.services.connections

    def count_connections(counted: Collection[str]) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for (principal, place), count in connections.of_clients.items():
            found[tenants.at(principal, place)] += count
        return {one: found[one] for one in counted}

    def count_groups(counted: Collection[str]) -> Mapping[str, int]:
        node.groups.load()
        found = Counter(map(tenant_of, node.groups.group_ids()))
        # Share groups are known to every broker: each is counted by one.
        if node.config.broker_id == min(one.id for one in node.cluster.brokers()):
            found += Counter(map(tenant_of, node.group_configs.share_groups()))
        return {one: found[one] for one in counted}

    counts.add(CONNECTIONS, count_connections)
    counts.add(GROUP_COUNT, count_groups)
    counts.add(STORED, node.tenant_storage.measure)
