"""What a protocol's face may use of a broker: a small, named set of services.

Invariants: knows no protocol, and does nothing itself. A face reaches nothing of a node beyond
these (`tests/test_tidy.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.coordinators.marker_writer import MarkerWriter
    from headrace.broker.coordinators.producer_ids import ProducerIds
    from headrace.broker.coordinators.transaction_checks import TransactionChecks
    from headrace.broker.coordinators.transaction_coordinator import TransactionCoordinator
    from headrace.broker.housekeeping.replication import Replication
    from headrace.broker.housekeeping.tiering import Tiering
    from headrace.broker.security.authentication import Authentication
    from headrace.broker.security.connection_limits import ConnectionLimits
    from headrace.broker.security.issuers import Issuers
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.access_control import AccessControl
    from headrace.broker.services.appends import Appends
    from headrace.broker.services.audit import Audit
    from headrace.broker.services.authorizer import Authorizer
    from headrace.broker.services.background_tasks import BackgroundTasks
    from headrace.broker.services.broker_settings import BrokerSettings
    from headrace.broker.services.client_quotas import ClientQuotas
    from headrace.broker.services.client_telemetry import ClientTelemetry
    from headrace.broker.services.cluster import Cluster
    from headrace.broker.services.configurations import Configurations
    from headrace.broker.services.decoded_values import DecodedValues
    from headrace.broker.services.fair_shares import FairShares
    from headrace.broker.services.group_administration import GroupAdministration
    from headrace.broker.services.group_lags import GroupLags
    from headrace.broker.services.group_service import GroupService
    from headrace.broker.services.health import Health
    from headrace.broker.services.helper_access import HelperAccess
    from headrace.broker.services.hot_keys import HotKeys
    from headrace.broker.services.journal_reads import JournalReads
    from headrace.broker.services.ledger_map import LedgerMap
    from headrace.broker.services.letter_desk import LetterDesk
    from headrace.broker.services.lite_subscriptions import LiteSubscriptions
    from headrace.broker.services.message_search import MessageSearch
    from headrace.broker.services.message_timers import MessageTimers
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.services.past_group_offsets import PastGroupOffsets
    from headrace.broker.services.queue_service import QueueService
    from headrace.broker.services.reads import Reads
    from headrace.broker.services.reassignments import Reassignments
    from headrace.broker.services.record_sends import RecordSends
    from headrace.broker.services.settings_of_brokers import SettingsOfBrokers
    from headrace.broker.services.share_group_administration import ShareGroupAdministration
    from headrace.broker.services.stored_reads import StoredReads
    from headrace.broker.services.topic_figures import TopicFigures
    from headrace.broker.services.topic_service import TopicService
    from headrace.broker.services.user_administration import UserAdministration
    from headrace.broker.shares.dead_letters import DeadLetters
    from headrace.broker.shares.share_groups import ShareGroups
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.runtime.clock import Clock
    from headrace.runtime.loop_turns import LoopTurns
    from headrace.runtime.randomness import Randomness


@dataclass(slots=True, kw_only=True)
class Services:
    """See the module."""

    topics: TopicService
    ledgers: LedgerMap
    topic_figures: TopicFigures
    """Of the whole cluster."""
    lags: GroupLags
    """Of the whole cluster."""
    hot_keys: HotKeys
    past_offsets: PastGroupOffsets
    """Of groups, at an earlier time."""
    cluster: Cluster
    appends: Appends
    """Batches of this broker's partitions."""
    sends: RecordSends
    """Records of any partition."""
    reads: Reads
    stored_reads: StoredReads
    """Of this broker's partitions, as they are stored."""
    queues: QueueService
    lite_subscriptions: LiteSubscriptions
    """To lite topics, of the clients of any broker."""
    timers: MessageTimers
    """Delayed and half messages."""
    search: MessageSearch
    journals: JournalReads
    """Of share groups."""
    groups: GroupAdministration
    """Those that this broker coordinates."""
    all_groups: GroupService
    """Of any broker, of both kinds."""
    transactions: TransactionCoordinator
    """Those that this broker coordinates."""
    producer_ids: ProducerIds
    markers: MarkerWriter
    """Of transactions that end, in partitions of this broker."""
    transaction_checks: TransactionChecks
    """Whether a transaction includes a partition: its coordinator says."""
    share_groups: ShareGroupAdministration
    shares: SharePartitions
    """Share groups on the partitions of this broker."""
    share_members: ShareGroups
    """The members of share groups that this broker coordinates."""
    settings: BrokerSettings
    settings_of_brokers: SettingsOfBrokers
    """Of any broker."""
    configurations: Configurations
    quotas: ClientQuotas
    fair_shares: FairShares
    """Of tenants."""
    turns: LoopTurns
    """Of requests over Kafka's protocol, but Produce and Fetch, and over HTTP."""
    reassignments: Reassignments
    telemetry: ClientTelemetry
    """Metrics that clients push."""
    health: Health
    replication: Replication | None
    """None if ledgers are not replicated."""
    tiering: Tiering | None
    """None if there is no object storage."""
    dead_letters: DeadLetters
    """The copies of what share groups gave up on this broker."""
    desk: LetterDesk
    """Of dead letters: read, edited, taken back."""
    authorizer: Authorizer
    access: AccessControl | None
    """None: there are no access control lists."""
    audit: Audit
    authentication: Authentication
    users: UserAdministration
    """Who can log in by a password."""
    connections: ConnectionLimits
    """Of the listeners of all protocols."""
    issuers: Issuers
    """Browser sessions and the like."""
    helper_access: Callable[[ClientSession], HelperAccess]
    """How a command that this broker runs for a client reaches it. Raises RequestInvalid,
    AuthenticationFailed."""
    tasks: BackgroundTasks
    """Searches, traces and redrives in progress."""
    calls: OwnerCalls
    """What other brokers ask of this one."""
    clock: Clock
    randomness: Randomness
    decoded_values: DecodedValues | None
    """None: this broker knows no schemas."""
