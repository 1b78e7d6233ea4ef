"""Dispatches a frame to the handler of its API, and encodes the response.

Invariants: the only module that knows all handlers. Produce and Fetch are called at once, in the
turn in which they arrive; every other API runs in a task of its own. An exception in a handler
becomes an error response if the API has a field for it; otherwise the connection is closed, and
other connections continue. Whether this broker may still answer as an owner is checked when a
request arrives (`gate`), so that requests after the process was frozen are refused with the API's
own error, and again when its response leaves (`connection`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.broker.security.listener import OPEN, ListenerSecurity
from headrace.broker.services.connection_memory import RequestMemory, ResponseMemory
from headrace.errors import HeadraceError
from headrace.kafka.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    APIS,
    BROKER_APIS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    END_TXN,
    FETCH,
    GET_TELEMETRY_SUBSCRIPTIONS,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    LIST_CONFIG_RESOURCES,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FOR_LEADER_EPOCH,
    OWN_APIS,
    PRODUCE,
    PUSH_TELEMETRY,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SHARE_ACKNOWLEDGE,
    TXN_OFFSET_COMMIT,
    UPDATE_FEATURES,
    Api,
    advertised,
)
from headrace.kafka.authorization import failures_in, is_change, resources_of
from headrace.kafka.authorization_rules import authorized
from headrace.kafka.connection import ANY_TERM, Gate, KafkaConnection, Reply
from headrace.kafka.error_codes import UNSUPPORTED_VERSION, name_of
from headrace.kafka.handlers import (
    acls,
    client_quotas,
    cluster,
    configs,
    consumer_groups,
    delegation_tokens,
    forwarded_queues,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    partition_transactions,
    producers,
    reassignments,
    sasl,
    share_fetch,
    share_group_offsets,
    share_groups,
    streams_groups,
    telemetry,
    topics,
    transactional_offsets,
    transactions,
    users,
)
from headrace.kafka.handlers.context import Context
from headrace.kafka.handlers.fetch import FetchHandler
from headrace.kafka.handlers.produce import ProduceHandler
from headrace.kafka.login_connections import LINGER_S, LoginConnections, exceeded_by
from headrace.kafka.peers.lines import incarnation_in
from headrace.kafka.refusals import refusal
from headrace.kafka.request_figures import RequestFigures
from headrace.kafka.request_turns import WAITING_BYTES_MIN, RequestTurns
from headrace.kafka.tenancy import NOT_FOR_TENANTS, Tenancy, tenancy_of
from headrace.kafka.wire.primitives import FrameInvalid, skip_tags
from headrace.kafka.wire.produce import FLEXIBLE
from headrace.kafka.wire.schema import read_request, write_response
from headrace.metadata.endpoints import KAFKA, Endpoint
from headrace.runtime.loop_turns import Paced, paced_here
from headrace.runtime.tasks import Tasks
from headrace.runtime.tls import server_name_of
from headrace.runtime.tls_server import TlsServer, listening_sockets

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.security.sessions import Admission, Quotas
    from headrace.kafka.handlers.context import Handler
    from headrace.kafka.wire.schema import Answer
    from headrace.runtime.histogram import Histogram
    from headrace.runtime.slow_requests import SlowRequests

log = logging.getLogger(__name__)

_HEADER: Final = Struct(">hhih")
_API_KEY: Final = Struct(">h")
_SIZE_AND_ID: Final = Struct(">ii")
CLIENT_ID_SIZE_MAX: Final = 1_000
CONNECTIONS_SWEEP_S: Final = 60
BACKLOG: Final = 1024
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
"""For every request except Produce: it is copied in the loop's thread, and kept while it is
handled. Kafka's largest, a group's assignment, must fit into a record of 1 MB there. The number of
elements is limited separately (`wire.primitives.ELEMENTS_MAX`)."""

_PRODUCE_MIN, _PRODUCE_MAX = APIS[PRODUCE].version_min, APIS[PRODUCE].version_max

_NOT_OF_OWNERS: Final = frozenset(
    {
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        CREATE_PARTITIONS,
        DESCRIBE_CONFIGS,
        DESCRIBE_ACLS,
        CREATE_ACLS,
        DELETE_ACLS,
        DESCRIBE_CLIENT_QUOTAS,
        ALTER_CLIENT_QUOTAS,
        ALTER_CONFIGS,
        INCREMENTAL_ALTER_CONFIGS,
        LIST_CONFIG_RESOURCES,
        DESCRIBE_QUORUM,
        UPDATE_FEATURES,
        GET_TELEMETRY_SUBSCRIPTIONS,
        PUSH_TELEMETRY,
    }
)
"""APIs whose responses depend on the metadata store only, not on what this broker owns. Produce
checks by itself: an acknowledgement comes from storage, a refusal from an owner."""

_SASL: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
"""Handled before the next request of the connection is read."""
_LOOKUPS: Final = frozenset({LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH})

_HANDLERS: dict[int, Handler] = {
    **metadata.HANDLERS,
    **sasl.HANDLERS,
    **topics.HANDLERS,
    **configs.HANDLERS,
    **acls.HANDLERS,
    **client_quotas.HANDLERS,
    **users.HANDLERS,
    **delegation_tokens.HANDLERS,
    **log_dirs.HANDLERS,
    **reassignments.HANDLERS,
    **cluster.HANDLERS,
    **telemetry.HANDLERS,
    **offsets.HANDLERS,
    **producers.HANDLERS,
    **partition_transactions.HANDLERS,
    **groups.HANDLERS,
    **consumer_groups.HANDLERS,
    **streams_groups.HANDLERS,
    **group_offsets.HANDLERS,
    **transactions.HANDLERS,
    **transactional_offsets.HANDLERS,
    **share_groups.HANDLERS,
    **share_group_offsets.HANDLERS,
    **share_fetch.HANDLERS,
    **forwarded_queues.HANDLERS,
}
_SERVED: Final = {**APIS, **OWN_APIS}
_CHANGES: Final = frozenset(api.key for api in APIS.values() if is_change(api))
_READS: Final = frozenset(
    key
    for key, api in APIS.items()
    if api.name.startswith(("Describe", "List", "Metadata", "OffsetFetch", "FindCoordinator"))
    or api.name.endswith("Describe")
)
"""What a client asks for that has no effect: not done for one that has left."""
_STORED: Final = _CHANGES | {
    OFFSET_COMMIT,
    TXN_OFFSET_COMMIT,
    INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    SHARE_ACKNOWLEDGE,
}
"""Holds its tenant's share until it is answered: it takes the disk, and waits for nothing that the
tenant has yet to send."""


class KafkaFace:
    """All Kafka connections of one broker. See `broker.face.Face`."""

    name = KAFKA

    def __init__(
        self,
        node: Node,
        admission: Admission | None = None,
        quotas: Quotas | None = None,
        slow: SlowRequests | None = None,
    ) -> None:
        """By default clients are authenticated and throttled as the node says, and no request is
        slow."""
        self._node = node
        known = self._authentication = node.services.authentication
        self._admission: Admission = known if admission is None else admission
        self._quotas: Quotas = node.services.quotas if quotas is None else quotas
        self._is_metering = False
        node.services.quotas.on_change(self._forget_throttles)
        known.users.on_change(self._user_changed)
        node.services.issuers.tokens.issued.on_change(self._token_changed)
        self.now_ns = node.services.clock.now_ns
        self.figures = RequestFigures({key: api.name for key, api in _SERVED.items()}, slow)
        self._tasks = Tasks()
        self._loop = asyncio.get_running_loop()
        self._share_of = node.services.fair_shares.of
        node.services.fair_shares.on_change(self._tenants_changed)
        self._servers: list[asyncio.Server | TlsServer] = []
        self._is_closed = False
        # ordered, so that a simulated run can be replayed
        self.connections: dict[KafkaConnection, None] = {}
        config = self._config = node.services.settings.current
        self.request_bytes_max = config.request_bytes_max
        self._logins = LoginConnections(node.services, self._loop, self.request_bytes_max)
        self.gate: Gate | None = node.services.cluster.guard
        self.produce = ProduceHandler(node.services, self.figures)
        self.responses = ResponseMemory(config.response_bytes_max, self._loop)
        self._loop_turns = node.services.turns
        self.turns = RequestTurns(self._loop, self.responses, self._loop_turns)
        self.requests = RequestMemory(config.request_memory_bytes_max, self._loop)
        self.fetch = FetchHandler(node.services, self._tasks, self.responses, self.figures)
        self.request_counts: dict[int, int] = dict.fromkeys(_SERVED, 0)

    async def listen(
        self,
        host: str,
        port: int,
        listener: ListenerSecurity = OPEN,
        advertised: tuple[str, int] | None = None,
    ) -> tuple[str, int]:
        """Listen for clients; see Face. Raises OSError."""

        def protocol() -> asyncio.Protocol:
            return cast("asyncio.Protocol", KafkaConnection(self, self._loop, listener))

        server: asyncio.Server | TlsServer
        if listener.tls is None:
            server = await self._loop.create_server(
                protocol, host, port, backlog=BACKLOG, start_serving=False
            )
        else:
            sockets = await listening_sockets(host, port, BACKLOG)
            server = TlsServer(sockets, protocol, listener.tls)
        if not self._servers:
            self._tasks.spawn(self._sweep(), "idle connections")
        self._servers.append(server)
        listening: Any = server  # its sockets are a list in uvloop, and a tuple for type checkers
        address = listening.sockets[0].getsockname()[:2]
        # Set before the first client connects: clients that waited for a restart send requests at
        # once, and must be led back to this broker.
        told_host, told_port = advertised or address
        self._node.services.cluster.add_endpoint(
            Endpoint(KAFKA, listener.name, told_host, told_port, listener.protocol)
        )
        await server.start_serving()
        return address[0], address[1]

    def serve_ready(self) -> None:
        """See Face: clients are served as soon as they connect."""

    async def close(self) -> None:
        """Stop accepting clients and close the existing connections."""
        self._is_closed = True
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.close()
        await self._tasks.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(CONNECTIONS_SWEEP_S)
            now_ns = self.now_ns()
            oldest_ns = now_ns - self._config.connections_idle_max_ms * 1_000_000
            for connection in list(self.connections):
                if connection.last_request_ns < oldest_ns:
                    connection.close()

    def request_figures(self) -> list[tuple[str, int, Histogram]]:
        """(API name, requests, durations) of each API."""
        durations = self.figures.durations
        counts = self.request_counts.items()
        return [(_SERVED[key].name, count, durations[key]) for key, count in counts]

    def error_figures(self) -> list[tuple[str, str, int]]:
        """(API name, error name, count) of the errors in responses."""
        counts = self.figures.errors.items()
        return [(_SERVED[key].name, name_of(code), count) for (key, code), count in counts]

    # --- Dispatcher --------------------------------------------------------------------------

    def opened(self, connection: KafkaConnection) -> None:
        """See connection.Dispatcher."""
        self.connections[connection] = None
        connection.last_request_ns = self.now_ns()
        session = self._admission.open(connection.listener, connection.peer, connection.certified)
        if connection.transport is not None:
            session.place = connection.listener.place_of(server_name_of(connection.transport))
        connection.session = session
        if self._is_closed:  # it was accepted in that moment
            connection.close()
            return
        if not self._may_connect(connection):
            return
        connection.must_be_admitted = session.must_be_admitted
        if connection.must_be_admitted:
            self._logins.opened(connection)
        else:
            connection.set_share(self._share_of(session))
        quotas = self._node.services.quotas
        if quotas.has_connection_quota:
            throttle_ms = quotas.connected(connection.peer)
            if throttle_ms:
                # After the transport has started reading, but before it has read anything.
                self._loop.call_soon(connection.mute, throttle_ms)

    def _may_connect(self, connection: KafkaConnection) -> bool:
        """Whether the connection is within the limits; if not, it is closed."""
        limits = self._node.services.connections
        listener = connection.listener.name
        exceeded = limits.open(connection, listener, connection.peer)
        principal = connection.session.principal
        if not exceeded and principal is not None:
            exceeded = exceeded_by(limits, connection, principal)
        if exceeded:
            connection.abort(f"has more connections than allowed ({exceeded})")
            return False
        delay_ms = limits.delay_ms(listener)
        if delay_ms:
            self._loop.call_soon(connection.mute, delay_ms)
        return True

    def _forget_throttles(self) -> None:
        """Quotas have changed: without quotas, requests skip them."""
        for connection in self.connections:
            connection.throttle_ms = 0

    def _tenants_changed(self) -> None:
        for connection in self.connections:
            connection.set_share(self._share_of(connection.session))

    def closed(self, connection: KafkaConnection) -> None:
        """See connection.Dispatcher."""
        self.connections.pop(connection, None)
        self._node.services.connections.close(connection)
        self._logins.closed(connection)
        self.turns.drop(connection, _READS)
        self.fetch.closed(connection)
        self._node.services.share_members.disconnected(connection)
        incarnation = incarnation_in(connection.session.client_id)
        if incarnation is not None and self._authentication.admits_to_brokers(connection.session):
            self._node.services.cluster.line_ended(incarnation)

    def _user_changed(self, user: str) -> None:
        """Close the connections that were authenticated by a credential the user no longer has."""
        for connection in list(self.connections):
            session = connection.session
            is_of_user = session.principal is not None and session.principal.name == user
            if is_of_user and not self._authentication.is_valid(session):
                why = f"of user {user!r} has lost its credential"
                if connection.api_key == ALTER_USER_SCRAM_CREDENTIALS:
                    # Its own change, perhaps: it gets the answer, and nothing more.
                    connection.hold_input()
                    self._loop.call_later(LINGER_S, connection.abort, why)
                else:
                    connection.abort(why)

    def _token_changed(self, _id: str, fact: object) -> None:
        """Close the connections of a delegation token that has ended."""
        if fact is not None:
            return
        for connection in list(self.connections):
            identity = connection.session.identity
            is_of_token = identity is not None and identity.token_id
            if is_of_token and not self._authentication.is_valid(connection.session):
                connection.abort("has logged in by a delegation token that has ended")

    def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
        """See connection.Dispatcher."""
        if connection.must_be_admitted and not self._admit(connection, frame):
            return
        if self._quotas.is_active and not self._is_metering:
            self._dispatch_metered(connection, frame)
            return
        now_ns = connection.last_request_ns = self.now_ns()
        gate = self.gate
        term = ANY_TERM if gate is None else gate.term_at(now_ns)
        api_key, version, correlation_id, client_size = _HEADER.unpack_from(frame)
        connection.api_key = api_key
        if api_key == PRODUCE and _PRODUCE_MIN <= version <= _PRODUCE_MAX:
            # The fast path of most requests: 0.4 us less than the general one below.
            at = 10 + client_size
            if 0 <= client_size <= CLIENT_ID_SIZE_MAX and (version < FLEXIBLE or not frame[at]):
                self.request_counts[PRODUCE] += 1
                at += version >= FLEXIBLE
                self.produce.handle(connection, frame, at, version, correlation_id)
                return
        api = _SERVED.get(api_key)
        if api is None:
            raise FrameInvalid(f"sent a request of unknown API {api_key}")
        self.request_counts[api_key] += 1
        if not api.version_min <= version <= api.version_max:
            self._refuse_version(connection, api, version, correlation_id)
            return
        at = 10 + max(client_size, 0)
        if client_size > CLIENT_ID_SIZE_MAX or at > len(frame):
            raise FrameInvalid(f"invalid client id length {client_size}")
        if version >= api.flexible_from:
            at = at + 1 if frame[at] == 0 else skip_tags(frame, at)
        if api_key == PRODUCE:
            self.produce.handle(connection, frame, at, version, correlation_id)
            return
        self._check(connection, api, frame)
        if connection.line is not None and api_key not in _STORED:
            connection.line.pass_turn()
        if api_key == FETCH:
            self.fetch.handle(connection, frame, at, version, correlation_id)
            return
        self.fetch.complete_waiting(connection, is_lookup=api_key in _LOOKUPS)
        client_id = bytes(frame[10 : 10 + max(client_size, 0)]).decode(errors="replace")
        context = Context(
            api_key,
            version,
            client_id,
            connection.peer,
            connection.session,
            self.responses.grant,
            connection,
            connection.peer_port,
        )
        request = read_request(api_key, version, bytes(frame), at)
        reply = connection.expect()
        if api_key not in _NOT_OF_OWNERS:
            reply.term = term
        if api_key in _SASL:
            connection.hold_input()
        begin = partial(self._begin, reply, request, context, correlation_id)
        self.turns.begin(connection, reply, begin)

    def _begin(self, reply: Reply, request: Any, context: Context, correlation_id: int) -> None:
        # In a task, so that connections that ended before this request came are noted first.
        answering = self._answer(reply, request, context, correlation_id)
        self._tasks.spawn(answering, _SERVED[context.api_key].name)

    def _admit(self, connection: KafkaConnection, frame: memoryview) -> bool:
        """The gate before every handler. False if the frame is a SASL token, which is handled.

        Raises FrameInvalid, which closes the connection.
        """
        session = connection.session
        if session.has_raw_tokens:
            connection.hold_input()
            connection.api_key, connection.last_request_ns = SASL_AUTHENTICATE, self.now_ns()
            token = self._logins.take_token(connection, bytes(frame))
            self._tasks.spawn(token, "SASL token")
            return False
        (api_key,) = _API_KEY.unpack_from(frame)
        if session.must_be_admitted and not self._admission.admits(session, api_key):
            raise FrameInvalid(f"sent a request of API {api_key} before it was authenticated")
        connection.must_be_admitted = session.must_be_admitted
        return True

    def _check(self, connection: KafkaConnection, api: Api, frame: memoryview) -> None:
        """Raise FrameInvalid if the request is too large, or only brokers may send it."""
        if len(frame) > REQUEST_BYTES_MAX:
            raise FrameInvalid(
                f"sent a {api.name} request of {len(frame)} bytes, and the limit is "
                f"{REQUEST_BYTES_MAX}"
            )
        if api.key in BROKER_APIS:
            # Kafka has some of these, too, and an authorizer's rules say who may send them.
            has_rule = api.key not in OWN_APIS and not self._node.services.authorizer.is_open
            if not has_rule and not self._authentication.admits_to_brokers(connection.session):
                raise FrameInvalid(f"sent {api.name}, which only brokers may send")

    def _refuse_version(
        self, connection: KafkaConnection, api: Api, version: int, correlation_id: int
    ) -> None:
        if api.key != API_VERSIONS:
            raise FrameInvalid(
                f"sent {api.name} v{version}, and v{api.version_min} to v{api.version_max} "
                "are supported"
            )
        # KIP-511: answered in v0, from which the client can pick a supported version.
        answer = {"error_code": UNSUPPORTED_VERSION, "api_keys": advertised()}
        body = write_response(API_VERSIONS, 0, answer)
        connection.expect().send([_SIZE_AND_ID.pack(len(body) + 4, correlation_id) + body])

    def _dispatch_metered(self, connection: KafkaConnection, frame: memoryview) -> None:
        """Handle a request while there are quotas. The cost of its handling in this turn throttles
        the client's next one."""
        begun_ns = self.now_ns()
        api_key, _version, _correlation_id, client_size = _HEADER.unpack_from(frame)
        session = connection.session
        if 0 <= client_size <= CLIENT_ID_SIZE_MAX:
            session.client_id = bytes(frame[10 : 10 + client_size]).decode(errors="replace")
        connection.throttle_ms = self._quotas.charge(session, api_key, len(frame))
        self._is_metering = True
        try:
            self.dispatch(connection, frame)
        finally:
            self._is_metering = False
        if connection.throttle_ms:
            # Mute now as well: a client that pipelines has already sent further requests.
            connection.mute(connection.throttle_ms)
        if api_key in {PRODUCE, FETCH}:
            self._quotas.spent(session, api_key, self.now_ns() - begun_ns)

    def _charged(self, answer: Any, reply: Reply, context: Context) -> Answer:
        """A handler's answer with the throttle time of all quotas, that of its own time among
        them."""
        paced = paced_here()
        assert paced is not None, "requests that are not of Produce or Fetch are paced"
        reply.throttle_ms = max(
            reply.throttle_ms,
            answer.get("throttle_time_ms", 0),
            self._quotas.spent(context.session, context.api_key, paced.spent_until_now_ns()),
        )
        return {**answer, "throttle_time_ms": reply.throttle_ms} if reply.throttle_ms else answer

    async def _handle(self, api: Api, request: Any, context: Context) -> Answer:
        """The answer to a request, as far as its client may have it."""
        node, handler = self._node, _HANDLERS[api.key]
        tenancy: Tenancy | None = None
        if node.services.authorizer.has_tenants:
            tenancy = tenancy_of(node, context.session)
            if tenancy is not None and not tenancy.enter(api.key, request):
                return refusal(api.key, context.version, request, NOT_FOR_TENANTS)
        prefix = "" if tenancy is None else tenancy.prefix
        resources = resources_of(api, request, prefix) if api.key in _CHANGES else ()
        if node.services.authorizer.is_open:
            answer = await handler(node, request, context)
        else:
            answer = await authorized(node, api, handler, request, context)
        if api.key in _CHANGES and not getattr(request, "validate_only", False):
            node.services.audit.changed(context.session, api.name, resources, failures_in(answer))
        return answer if tenancy is None else tenancy.leave(answer)

    async def _encoded(self, reply: Reply, request: Any, context: Context) -> bytes:
        """The body of a response."""
        is_charged = self._quotas.is_active
        answer = await self._handle(_SERVED[context.api_key], request, context)
        paced, charged_ns = paced_here(), 0
        if is_charged and paced is not None:
            answer = self._charged(answer, reply, context)
            charged_ns = paced.spent_until_now_ns()
        body = write_response(context.api_key, context.version, answer)
        if charged_ns and paced is not None:  # large answers take as long as what they say
            rest_ns = paced.spent_until_now_ns() - charged_ns
            self._quotas.spent(context.session, context.api_key, rest_ns)
        self.figures.note_errors(context.api_key, answer)
        return body

    async def _answer(
        self, reply: Reply, request: Any, context: Context, correlation_id: int
    ) -> None:
        api, connection = _SERVED[context.api_key], reply.connection
        body = b""
        path = self.turns.path(connection)
        paced = Paced(self._loop_turns, path, self._encoded(reply, request, context), self.now_ns)
        paced.has_begun = True
        try:
            body = await paced
        except HeadraceError as error:
            log.warning("%s from %s cannot be answered: %s", api.name, connection.peer, error)
            connection.abort(f"cannot be answered: {api.name} has no error field")
        except Exception:
            log.exception("internal error in %s v%d", api.name, context.version)
            connection.abort(f"met an internal error in {api.name}")
        else:
            if len(body) >= WAITING_BYTES_MIN and not reply.is_next:
                reply.hold(len(body))
            reply.send([_SIZE_AND_ID.pack(len(body) + 4, correlation_id) + body], len(body))
            if context.api_key in _SASL:
                self._logins.answered(connection)
        finally:
            self.turns.answered(connection, len(body), paced.spent_ns)
            if reply.charge is not None:
                reply.charge.release()
