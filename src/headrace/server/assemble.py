"""Assembles a broker: the only module that knows every implementation.

Invariants: choices only, no behaviour. Optional parts are imported here, on demand.
"""

from __future__ import annotations

import errno
import logging
import socket
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.administration.cluster_backup import Roots, refuse_while_restoring
from headrace.broker.broker_config import ACL
from headrace.broker.machine import Machine
from headrace.broker.node import Node
from headrace.broker.services.helper_access import HelperListener
from headrace.broker.services.storage_figures import counter_figures
from headrace.broker.settings.kinds import ADMIN_LISTENER
from headrace.errors import FactMissing, RequestInvalid
from headrace.http.face import HttpFace
from headrace.kafka.dispatch import KafkaFace
from headrace.kafka.face_figures import kafka_figures
from headrace.metadata.endpoints import HTTP, KAFKA
from headrace.metadata.facts import ensure_cluster_id
from headrace.metadata.sqlite import POLL_MS, SqliteMetadataStore
from headrace.metadata.sqlite_file import METADATA, check_format
from headrace.runtime.access import Access
from headrace.runtime.clock import BootTimeClock, SystemClock, process_cpu_ns
from headrace.runtime.log_levels import LogLevels, parse_levels
from headrace.runtime.loop_lag import LoopLag
from headrace.runtime.randomness import SystemRandomness
from headrace.runtime.tasks import Tasks
from headrace.server.authentication import set_up_authentication
from headrace.server.connection_limits import limit_connections
from headrace.server.lifecycle import Broker
from headrace.server.listener_tls import Certificates
from headrace.server.peers import kafka_peers
from headrace.server.request_log import RequestLog
from headrace.server.schemas import decoded_values
from headrace.server.settings import (
    check_advertised,
    check_exposure,
    check_listeners,
    is_authenticated,
    is_wildcard,
)
from headrace.server.telemetry import send_telemetry
from headrace.storage.files.store import FileLedgerStore
from headrace.zookeeper.servers import ask_servers

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.administration.cluster_settings import ClusterSettings
    from headrace.broker.face import Face
    from headrace.metadata.endpoints import Endpoint
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.figures import Source
    from headrace.server.settings import Settings
    from headrace.storage.files.wal_sync import Counters
    from headrace.storage.ledger import LedgerStore
    from headrace.storage.tiering.tiered_store import TieredLedgerStore
    from headrace.zookeeper.client import ZooKeeper

log = logging.getLogger(__name__)
_levels = LogLevels()

LOG_LEVEL, LOG_LEVELS = "headrace.log.level", "headrace.log.levels"
AUTO, NONE = "auto", "none"
"""Values of headrace.authorizer."""
WORKERS_POLL_MS = 50
"""How soon a worker sees another worker's metadata writes; one check costs about 10 us."""


def follow_log_level(name: str, value: Any) -> None:
    """Apply a change of log levels; ignores other settings."""
    if name == LOG_LEVEL:
        logging.getLogger().setLevel(value.upper())
    elif name == LOG_LEVELS:
        _levels.apply(value)


async def start(settings: Settings) -> Broker:
    """Start a broker with these settings. Raises the errors of its parts, and OSError."""
    check_listeners(settings)
    check_exposure(settings)
    check_advertised(settings)
    settings = replace(
        settings, broker=replace(settings.broker, authorizer=authorizer_of(settings))
    )
    if settings.cluster is not None:
        return await start_clustered(settings, settings.cluster)
    return await start_embedded(settings)


def authorizer_of(settings: Settings) -> str:
    """The authorizer that the settings ask for. Clients that log in are authorized by default: a
    login alone would let each of them do everything."""
    chosen = settings.broker.authorizer
    if chosen != AUTO:
        return chosen
    logs_in = any(is_authenticated(settings, endpoint) for endpoint in settings.endpoints)
    return ACL if logs_in else NONE


async def start_embedded(settings: Settings) -> Broker:
    """Start a stand-alone broker: files and SQLite. Raises the errors of its parts, and OSError."""
    clock, randomness = SystemClock(), SystemRandomness()
    certificates = Certificates(settings, clock)  # a start that is refused has changed nothing
    check_format(settings.data_dir / METADATA)  # a folder that is refused is not modified
    had_metadata = (settings.data_dir / METADATA).exists()
    # Create (durably) and lock the ledgers' folder first: a second process must not modify
    # anything.
    store = await FileLedgerStore.open(settings.ledger_dir, clock)
    broker = Broker(store.close, certificates)
    try:
        if not had_metadata:
            _refuse_ledgers_without_metadata(store, settings.data_dir)
        slots = range(settings.worker_count) if settings.worker_count > 1 else ()
        metadata = await SqliteMetadataStore.open(
            settings.data_dir / METADATA,
            clock,
            poll_ms=WORKERS_POLL_MS if slots else POLL_MS,
        )
        broker.on_stop(metadata.close)
        tier = await _tier(broker, settings, store, metadata, is_storage_shared=False)
        node = Node(
            settings.broker,
            tier or store,
            metadata,
            clock,
            randomness,
            slots=slots,
            tier=tier,
            given=settings.given,
            machine=_machine(broker, settings, certificates, clock)._replace(disk=store.room),
        )
        await _open(broker, node, settings, certificates, store.counters)
    except BaseException:
        await broker.stop()
        raise
    return broker


def _machine(
    broker: Broker, settings: Settings, certificates: Certificates, clock: Clock
) -> Machine:
    """What this process offers its node. Raises RequestInvalid."""
    decoder = decoded_values(settings, clock)
    if decoder is not None:
        broker.on_stop(decoder.close)
    name = settings.inter_broker_listener
    security = next(
        one.security for one in settings.endpoints if one.face == KAFKA and one.listener == name
    )
    helpers = HelperListener(security, certificates.helper_settings)
    peers = partial(kafka_peers, listener=name, access=Access(certificates.peers))
    return Machine(None, process_cpu_ns, certificates.reload, decoder, helpers, peers)


def _refuse_ledgers_without_metadata(store: FileLedgerStore, data_dir: Path) -> None:
    """Raise FactMissing: with new metadata no topic would name the ledgers, and they would be
    deleted."""
    count = len(store.list())
    if count:
        raise FactMissing(
            f"{data_dir / METADATA} is missing, but the folder contains {count} ledgers: "
            "starting would delete their records. Restore the file from a backup, or use "
            "another data folder",
            path=str(data_dir / METADATA),
        )


async def start_clustered(settings: Settings, cluster: ClusterSettings) -> Broker:
    """Start a broker without local data, over BookKeeper and ZooKeeper."""
    try:
        from headrace.metadata.zookeeper import ZooKeeperMetadataStore
        from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
        from headrace.storage.bookkeeper.quorum import Quorum
        from headrace.storage.bookkeeper.settings import BookKeeperSettings
    except ImportError as error:
        raise RequestInvalid(
            f"--zookeeper needs a package that is not installed ({error.name}): pip install"
            " 'headrace[cluster]'"
        ) from error
    clock, randomness = BootTimeClock(), SystemRandomness()
    certificates = Certificates(settings, clock)
    broker, zookeeper = await _connect(cluster, certificates, clock)
    try:
        # Before anything is written, such as the id of a new cluster.
        await refuse_while_restoring(zookeeper, Roots(cluster.root, cluster.ledgers_root))
        metadata = await ZooKeeperMetadataStore.open(zookeeper, cluster.root)
        broker.on_stop(metadata.close)
        quorum = Quorum(cluster.ensemble, cluster.write_quorum, cluster.ack_quorum)
        store = await BookKeeperLedgerStore.open(
            zookeeper,
            BookKeeperSettings(
                ledgers_root=cluster.ledgers_root,
                quorum=quorum,
                cluster=await ensure_cluster_id(metadata, randomness),
                tls=cluster.bookie_context(),
                credential=cluster.bookie_credential,
            ),
            clock,
            randomness,
        )
        broker.on_stop(store.close)
        tier = await _tier(broker, settings, store, metadata, is_storage_shared=True)
        node = Node(
            replace(settings.broker, ledger_quorum=",".join(map(str, quorum))),
            tier or store,
            metadata,
            clock,
            randomness,
            shared_ledgers=store,
            tier=tier,
            given=settings.given,
            machine=_machine(broker, settings, certificates, clock),
        )
        await _open(broker, node, settings, certificates, None)
    except BaseException:
        await broker.stop()
        raise
    return broker


async def _connect(
    cluster: ClusterSettings, certificates: Certificates, clock: BootTimeClock
) -> tuple[Broker, ZooKeeper]:
    """Open a session, with the process beside this one that ends it after this one's death. Raises
    MetadataUnavailable, RequestInvalid, OSError."""
    from headrace.zookeeper.client import ZooKeeper
    from headrace.zookeeper.link import ZooKeeperOptions
    from headrace.zookeeper.session_ender_process import SessionEnder

    context = cluster.zookeeper_context()
    ender = SessionEnder(cluster.tls if context is not None else None)
    broker = Broker(ender.close, certificates)
    try:
        options = ZooKeeperOptions(
            cluster.zookeeper,
            cluster.session_timeout_ms,
            credential=cluster.credential,
            tls=context,
            on_session=ender.note,
        )
        zookeeper = await ZooKeeper.connect(options, clock)
    except BaseException:
        await broker.stop()
        raise
    broker.on_stop(zookeeper.close)
    tasks = Tasks()
    broker.on_stop(tasks.close)
    tasks.spawn(ender.watch(), "the process that ends the session")
    tasks.spawn(warn_of_zookeepers(cluster), "ZooKeeper's versions")
    return broker, zookeeper


async def warn_of_zookeepers(cluster: ClusterSettings) -> None:
    """Log which of the cluster's ZooKeepers must be upgraded. Raises RequestInvalid."""
    for server in await ask_servers(cluster.zookeeper, cluster.zookeeper_context()):
        if server.warning:
            log.warning("%s", server.warning)


async def _tier(
    broker: Broker,
    settings: Settings,
    store: LedgerStore,
    metadata: MetadataStore,
    *,
    is_storage_shared: bool,
) -> TieredLedgerStore | None:
    """Object storage beneath the ledgers; None if the settings name none."""
    from headrace.server.tiering import has_offloaded, open_tier

    if settings.objects_url is None:
        if await has_offloaded(metadata):
            log.error(
                "records of this data are in object storage, and --objects is not given: reads of"
                " them fail, and their objects are kept; start again with the --objects of before"
            )
        return None

    tier = await open_tier(
        settings,
        store,
        metadata,
        SystemClock(),
        SystemRandomness(),
        is_storage_shared=is_storage_shared,
    )
    broker.on_stop(tier.close)
    return tier


def _faces(
    broker: Broker,
    node: Node,
    settings: Settings,
    counters: Counters | None,
    certificates: Certificates,
    slow: RequestLog,
) -> list[Face]:
    """The protocol faces of this broker, Kafka's first. Add new faces here. Raises RequestInvalid
    if one lacks its package."""
    kafka = KafkaFace(node, slow=slow)
    lag = LoopLag(node.clock)
    node.tasks.spawn(lag.run(), "lag of the event loop")
    slow.name_causes(lag, counters)
    sources: list[Source] = [
        *node.figures,
        partial(kafka_figures, kafka),
        lag.figures,
        certificates.figures,
    ]
    if counters is not None:
        sources.append(partial(counter_figures, counters))
    http = HttpFace(node.services, node.tasks, kafka, sources, slow)
    instance = str(node.config.broker_id)
    telemetry = send_telemetry(slow, http, node.tasks, node.clock, instance)
    if telemetry is not None:
        broker.on_stop(telemetry.close)
    faces: list[Face] = [kafka, http]
    if settings.rocketmq is not None:
        try:
            from headrace.rocketmq.face import RocketMqFace
        except ImportError as error:
            raise RequestInvalid(
                f"--rocketmq needs a package that is not installed ({error.name}): pip install"
                " 'headrace[rocketmq]'"
            ) from error
        faces.append(RocketMqFace(node.services, node.tasks, node.cluster.endpoints, slow))
    return faces


async def _open(
    broker: Broker,
    node: Node,
    settings: Settings,
    certificates: Certificates,
    counters: Counters | None,
) -> None:
    """Open the node and its faces, and join the cluster."""
    follow_log_level(LOG_LEVELS, parse_levels(settings.given.get(LOG_LEVELS, "")))
    node.settings.on_change(follow_log_level)
    slow = RequestLog(settings.given)
    node.settings.on_change(slow.follow)
    await node.open()
    broker.on_stop(node.close)
    limit_connections(node, settings)
    await set_up_authentication(node, settings)
    faces = _faces(broker, node, settings, counters, certificates, slow)
    for face in faces:
        for endpoint in settings.endpoints:
            if endpoint.face == face.name:
                await _listen(broker, node, face, endpoint, settings, certificates)
        broker.on_stop(face.close)
    certificates.start()
    broker.on_stop(certificates.close)
    address = next(
        (one.host, one.port)
        for one in node.cluster.endpoints
        if one.face == KAFKA and one.listener == settings.inter_broker_listener
    )
    await node.register(address)
    broker.on_stop(node.leave)
    for face in faces:
        face.serve_ready()


def _why_not_listening(endpoint: Endpoint, error: OSError) -> str:
    """What is wrong with the address of a listener, and what to do."""
    option = "--http" if endpoint.face == HTTP else "--kafka"
    option = "--admin-address" if endpoint.listener == ADMIN_LISTENER else option
    place = f"the address {endpoint.host}:{endpoint.port} of {option}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{place} is in use: another process, or another broker, listens there. Stop it, or"
            f" choose another port with {option} (port 0 takes a free one)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{place} is not an address of this machine: listen on one that it has, or on 0.0.0.0,"
            " and give clients another one with --advertise"
        )
    if isinstance(error, socket.gaierror):
        return f"{place} cannot be resolved ({error.strerror}): use a name or an address that can"
    if error.errno == errno.EACCES:
        return f"{place} needs rights that this process lacks: use a port from 1024 on"
    return f"{place} cannot be listened on ({error.strerror or error}): use another one"


async def _listen(
    broker: Broker,
    node: Node,
    face: Face,
    endpoint: Endpoint,
    settings: Settings,
    certificates: Certificates,
) -> None:
    listener = certificates.listeners[endpoint.listener]
    advertised = settings.advertised.get(endpoint.listener)
    if advertised is None and face.name != KAFKA and is_wildcard(endpoint.host):
        # Reached under the name that Kafka clients use.
        advertised = node.cluster.endpoints[0].host, endpoint.port
    try:
        address = await face.listen(endpoint.host, endpoint.port, listener, advertised)
    except OSError as error:
        raise RequestInvalid(_why_not_listening(endpoint, error)) from error
    broker.bound.append(replace(endpoint, host=address[0], port=address[1]))
