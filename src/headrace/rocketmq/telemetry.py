"""The stream by which a client tells its settings and gets commands, and its heartbeats.

Invariants: the answer to settings is the client's own, completed. A client that does not wait for
them is served all the same. The last stream of a client is the one that commands go to.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.services.tenant_view import OF_ALL, view_of
from headrace.errors import HeadraceError
from headrace.grpc.service import Status
from headrace.records.identifiers import LITE_TOPIC_LENGTH_MAX
from headrace.rocketmq import wire
from headrace.rocketmq.bodies import BODY_BYTES_MAX
from headrace.rocketmq.caller import Caller, check_session, session_of
from headrace.rocketmq.clients import POLL_MS_DEFAULT
from headrace.rocketmq.codes import UNRECOGNIZED_CLIENT_TYPE, Refused, set_status
from headrace.rocketmq.lite import SUBSCRIPTIONS_MAX
from headrace.runtime.protobuf_wire import ProtobufInvalid, fields

if TYPE_CHECKING:
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.services import Services
    from headrace.grpc.service import Call, Requests
    from headrace.rocketmq.call_turns import CallTurns
    from headrace.rocketmq.clients import Client, Clients
    from headrace.rocketmq.groups import RocketGroups
    from headrace.rocketmq.in_progress import Held, InProgress

SETTINGS: Final = 2
"""The number of TelemetryCommand's field."""
FIELDS_MAX: Final = 16
"""Of a TelemetryCommand, that are looked at: it has two."""
SEND_ATTEMPTS: Final = 3
SEND_BACKOFF_MS: Final = (500, 5_000)
"""Clients wait so long only after TOO_MANY_REQUESTS: they retry other failures at once."""
RECEIVE_BATCH: Final = 32
LITE: Final = frozenset({wire.LITE_PUSH_CONSUMER, wire.LITE_SIMPLE_CONSUMER})
FIFO_BACKOFF_MS: Final = (1_000, 60_000)
"""Of retries inside the client, which are the ones in order; Node's client ends after one attempt
unless they are exponential."""
CONSUMERS: Final = LITE | {wire.PUSH_CONSUMER, wire.SIMPLE_CONSUMER, wire.PULL_CONSUMER}


class Telemetry:
    """Telemetry, Heartbeat and NotifyClientTermination."""

    def __init__(
        self,
        services: Services,
        groups: RocketGroups,
        clients: Clients,
        turns: CallTurns,
        in_progress: InProgress,
    ) -> None:
        self._services = services
        self._groups = groups
        self._clients = clients
        self._turns = turns
        self._in_progress = in_progress
        self._streams: dict[_Stream, None] = {}
        """Those that have said whose they are."""
        services.issuers.keys.issued.on_change(self._key_changed)

    def _key_changed(self, id_: str, fact: object) -> None:
        """End the streams of an access key that was revoked or has expired: they get no command
        any more."""
        ended = [] if fact is not None else [one for one in self._streams if one.key_id == id_]
        for stream in ended:
            stream.ended(Status.UNAUTHENTICATED, "the access key has ended")

    async def heartbeat(self, caller: Caller, request: Any, response: Any) -> None:
        """The client is there. Java's 5.0.0 leaves out what it is: its settings have said so."""
        if request.client_type not in CONSUMERS | {wire.PRODUCER, wire.UNSPECIFIED_CLIENT}:
            raise Refused(UNRECOGNIZED_CLIENT_TYPE, f"client type {request.client_type} is unknown")
        client = self._clients.seen(caller)
        if request.client_type in LITE:
            # After a restart, this may come before the settings of the client's new stream. Only
            # settings say that it is none: a lite consumer's heartbeat may name the plain type.
            client.is_lite = True

    async def terminate(self, caller: Caller, request: Any, response: Any) -> None:
        """The client ends."""
        self._clients.leave(caller.key)

    # --- the stream --------------------------------------------------------------------------

    def open(self, call: Call) -> Requests:
        """A client's stream of settings and commands."""
        return _Stream(self, call)

    def take(self, stream: _Stream, body: bytes) -> None:
        """One command of a client: settings wait, encoded, for their turn."""
        try:
            is_settings = any(number == SETTINGS for number, *_ in islice(fields(body), FIELDS_MAX))
            held = self._in_progress.begin(stream.call, len(body)) if is_settings else None
        except ProtobufInvalid:
            stream.refuse()
            return
        except Refused as error:
            answer = wire.TelemetryCommand()
            set_status(answer.status, error)
            stream.call.send(answer.SerializeToString())
            return
        if held is not None:
            stream.wait(body, held)
            if not stream.is_answering:
                stream.is_answering = True
                answer_latest = partial(self._answer_latest, stream)
                session = stream.session or session_of(self._services, stream.call)
                self._turns.spawn(stream.call, session, answer_latest, "rocketmq settings")

    async def _answer_latest(self, stream: _Stream) -> None:
        """Answer settings one after another; of those that came meanwhile, the last ones alone."""
        try:
            while stream.waiting is not None and not stream.call.is_finished:
                (body, held), stream.waiting = stream.waiting, None
                try:
                    await self._answer(stream, wire.TelemetryCommand.FromString(body).settings)
                except DecodeError:
                    stream.refuse()
                finally:
                    held.release()
                del body  # the client may never read the answer
                await stream.call.drained()
        finally:
            stream.is_answering = False

    async def _answer(self, stream: _Stream, settings: Any) -> None:
        answer, services = wire.TelemetryCommand(), self._services
        try:
            caller = await self._caller(stream)
            client = self._clients.seen(caller)
            stream.joins(client)
            client.is_lite = settings.client_type in LITE
            answer.settings.CopyFrom(settings)
            await self._complete(caller, client, answer.settings)
            set_status(answer.status, None)
        except HeadraceError as error:
            answer.Clear()
            view = OF_ALL if stream.session is None else view_of(services, stream.session)
            set_status(answer.status, error, view)
        stream.call.send(answer.SerializeToString())

    async def _caller(self, stream: _Stream) -> Caller:
        """Raises AuthenticationFailed, PolicyViolation, Refused."""
        session = stream.session or session_of(self._services, stream.call)
        if session is None:
            session = await check_session(stream.call)
        stream.session = session
        if not stream.call.is_finished:
            self._streams[stream] = None
        self._services.connections.join(stream.call.connection, session)
        caller = Caller(self._services, stream.call, "Telemetry", session)
        caller.require_still(())
        return caller

    async def _complete(self, caller: Caller, client: Client, settings: Any) -> None:
        settings.metric.on = False
        if settings.HasField("publishing"):
            self._clients.publishes(caller, client, settings.publishing.topics)
            settings.publishing.max_body_size = BODY_BYTES_MAX
            settings.publishing.validate_message_type = True
            _exponential(settings.backoff_policy, SEND_ATTEMPTS, SEND_BACKOFF_MS)
            return
        subscription = settings.subscription
        group_id = caller.group_id(subscription.group)
        if not caller.may(Operation.READ, ResourceType.GROUP, group_id):
            return  # the first receive is refused, with the reason
        if settings.client_type == wire.PULL_CONSUMER:
            return  # its group is one of Kafka's kind
        await self._groups.ensure(group_id, is_lite=client.is_lite)
        config = self._groups.config(group_id)
        policy = settings.backoff_policy
        subscription.fifo = self._groups.is_fifo(group_id)
        if subscription.fifo:
            _exponential(policy, config.delivery_count_max, FIFO_BACKOFF_MS)
        else:
            policy.Clear()
            policy.max_attempts = config.delivery_count_max
            for step_ms in self._groups.backoff_ms(group_id):
                wire.set_ms(policy.customized_backoff.next.add(), step_ms)
        subscription.receive_batch_size = RECEIVE_BATCH
        client.poll_ms = wire.ms_of(subscription.long_polling_timeout) or POLL_MS_DEFAULT
        wire.set_ms(subscription.long_polling_timeout, POLL_MS_DEFAULT)
        subscription.lite_subscription_quota = SUBSCRIPTIONS_MAX
        subscription.max_lite_topic_size = LITE_TOPIC_LENGTH_MAX

    def left(self, stream: _Stream) -> None:
        """The stream has ended."""
        self._streams.pop(stream, None)
        if stream.client is not None:
            self._clients.closed(stream.client, stream.call)

    def joined(self, stream: _Stream) -> None:
        """The client's commands go to this stream from now on."""
        if stream.client is not None:
            self._clients.opened(stream.client, stream.call)


def _exponential(policy: Any, attempts: int, bounds_ms: tuple[int, int]) -> None:
    policy.Clear()
    policy.max_attempts = attempts
    backoff = policy.exponential_backoff
    wire.set_ms(backoff.initial, bounds_ms[0])
    wire.set_ms(backoff.max, bounds_ms[1])
    backoff.multiplier = 2


class _Stream:
    """See headrace.grpc.service.Requests."""

    def __init__(self, telemetry: Telemetry, call: Call) -> None:
        self._telemetry = telemetry
        self.call = call
        self.client: Client | None = None
        self.session: ClientSession | None = None
        """Whose stream it is, from its first command on: it is signed when it is opened."""
        self.waiting: tuple[bytes, Held] | None = None
        """The client's last settings that are not answered yet."""
        self.is_answering = False
        call.on_cancel(self._end)

    def joins(self, client: Client) -> None:
        """The client of the stream is known."""
        if not self.call.is_finished:
            self.client = client
            self._telemetry.joined(self)

    def wait(self, body: bytes, held: Held) -> None:
        """Answer these settings, in place of those that wait."""
        self._drop_waiting()
        self.waiting = body, held

    def _drop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting[1].release()
            self.waiting = None

    def message(self, body: bytes) -> None:
        """See Requests."""
        self._telemetry.take(self, body)

    @property
    def key_id(self) -> str:
        """The access key that it is signed with; empty: none."""
        identity = None if self.session is None else self.session.identity
        return "" if identity is None else identity.key_id

    def ended(self, status: Status = Status.OK, message: str = "") -> None:
        """See Requests."""
        self._end()
        self.call.finish(status, message)

    def refuse(self) -> None:
        """End it for a message that cannot be read."""
        self.ended(Status.INVALID_ARGUMENT, "the message is not a TelemetryCommand")

    def _end(self) -> None:
        self._drop_waiting()
        self._telemetry.left(self)
