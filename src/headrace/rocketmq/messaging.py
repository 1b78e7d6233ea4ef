"""RocketMQ's `MessagingService`: its table of RPCs, and what holds for each call.

Invariants: an RPC has a row in `access`, which is enforced before its handler runs. Errors become
codes in one place. A handler that streams finishes its call itself. What is not served is refused
with UNSUPPORTED, and named in docs/ROCKETMQ.md.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from headrace.broker.services.tenant_view import OF_ALL, view_of
from headrace.coordination.quotas.entities import REQUEST
from headrace.errors import HeadraceError
from headrace.grpc.service import Method, services_of
from headrace.grpc.service import Status as GrpcStatus
from headrace.rocketmq import codes, wire
from headrace.rocketmq.access import ACCESS
from headrace.rocketmq.call_turns import CallTurns
from headrace.rocketmq.caller import Caller, check_session, session_of
from headrace.rocketmq.clients import Clients
from headrace.rocketmq.codes import Refused, set_status
from headrace.rocketmq.groups import RocketGroups
from headrace.rocketmq.in_progress import InProgress
from headrace.rocketmq.lite import SUBSCRIPTIONS_MAX, LiteConsumers
from headrace.rocketmq.offsets import Offsets
from headrace.rocketmq.receiving import Receiving
from headrace.rocketmq.routes import Routes
from headrace.rocketmq.sending import Sending
from headrace.rocketmq.telemetry import Telemetry
from headrace.runtime.loop_turns import paced_here
from headrace.runtime.protobuf_wire import ProtobufInvalid, fields
from headrace.runtime.slow_requests import OFF_NS, EndedRequest, SlowRequests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.security.access import Access
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.fair_shares import Charge
    from headrace.broker.services.services import Services
    from headrace.grpc.service import Call
    from headrace.grpc.service import Services as GrpcServices
    from headrace.rocketmq.in_progress import Held
    from headrace.rocketmq.sending import Ended as SendEnded
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

OTHER_BYTES_MAX: Final = 256 * 1024
"""Of a request that is no SendMessage: 1,000 receipts have less than half of it."""
FIELDS_MAX: Final = 1_008
"""Of the message that a request is: 1,000 messages or receipts, and what goes with them."""
LITE_FIELDS_MAX: Final = SUBSCRIPTIONS_MAX + 8
"""Of a SyncLiteSubscription: clients repeat all their lite topics in one."""
SCANNED_BYTES_MIN: Final = 4 * 1024
"""A smaller request is decoded at once."""
STARTED_FIELDS_MAX: Final = 64
"""A request with more takes turns: 1,000 messages or receipts take the loop for 10 ms."""
TRACE_PARENT: Final = b"traceparent"
"""The client's own span (W3C Trace Context), in the call's metadata."""
STORED: Final = frozenset(
    {
        "SendMessage",
        "EndTransaction",
        "RecallMessage",
        "AckMessage",
        "ChangeInvisibleDuration",
        "ForwardMessageToDeadLetterQueue",
        "UpdateOffset",
    }
)
"""Holds its tenant's share until it is answered. Others may wait for what the tenant has yet to
send."""


class Rpc(NamedTuple):
    """One RPC."""

    name: str
    handle: Callable[[Caller, Any, Any], Awaitable[None]]
    """(caller, request, response to fill in); of a stream, the response's class."""
    access: Access
    is_stream: bool = False
    """Whether the response is a stream."""
    start: Callable[[Caller, Any, SendEnded], bool] | None = None
    """Begins a call without a task of its own, if it need not wait for anything first."""
    fields_max: int = FIELDS_MAX
    """Of its request."""


class Messaging:
    """See the module."""

    def __init__(self, services: Services, tasks: Tasks, slow: SlowRequests | None = None) -> None:
        self._services = services
        self._slow = slow or SlowRequests()
        groups = RocketGroups(services)
        self.clients = Clients(services, tasks)
        routes = Routes(services, groups)
        self._sending = sending = Sending(services, tasks)
        lite = LiteConsumers(services, groups, self.clients, tasks)
        receiving = Receiving(services, groups, self.clients, lite)
        offsets = Offsets(services, tasks)
        self.in_progress = InProgress()
        self._turns = CallTurns(services, tasks)
        telemetry = Telemetry(services, groups, self.clients, self._turns, self.in_progress)
        unary = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": telemetry.heartbeat,
            "NotifyClientTermination": telemetry.terminate,
            "SendMessage": sending.send,
            "EndTransaction": sending.end_transaction,
            "RecallMessage": sending.recall,
            "AckMessage": receiving.acknowledge,
            "ChangeInvisibleDuration": receiving.change_invisible,
            "ForwardMessageToDeadLetterQueue": receiving.forward,
            "UpdateOffset": offsets.update,
            "GetOffset": offsets.get,
            "QueryOffset": offsets.query,
            "SyncLiteSubscription": lite.sync,
        }
        streams = {"ReceiveMessage": receiving.receive, "PullMessage": offsets.pull}
        rpcs = [Rpc(name, handle, ACCESS[name]) for name, handle in unary.items()]
        starts = {"SendMessage": sending.start, "AckMessage": receiving.start_acknowledge}
        most = {"SyncLiteSubscription": LITE_FIELDS_MAX}
        rpcs = [
            one._replace(start=starts.get(one.name), fields_max=most.get(one.name, FIELDS_MAX))
            for one in rpcs
        ]
        rpcs += [Rpc(name, handle, ACCESS[name], True) for name, handle in streams.items()]
        methods = [
            Method(
                _path(one.name),
                partial(self._begin, one),
                request_bytes_max=None if one.name == "SendMessage" else OTHER_BYTES_MAX,
            )
            for one in rpcs
        ]
        methods.append(
            Method(_path("Telemetry"), telemetry.open, True, request_bytes_max=OTHER_BYTES_MAX)
        )
        self.methods: GrpcServices = services_of(methods)
        """For the gRPC layer."""

    def _begin(self, rpc: Rpc, call: Call, body: bytes) -> None:
        if self._slow.noted_from_ns != OFF_NS:
            call.on_end(partial(self._note, rpc, call, self._services.appends.clock.now_ns()))
        try:
            field_count = _field_count(body, rpc.fields_max)
            held = self.in_progress.begin(call, len(body))
        except ProtobufInvalid:
            _finish_invalid(rpc, call)
            return
        except Refused as error:
            response = wire.response_of(rpc.name)()
            set_status(response.status, error)
            call.respond(response.SerializeToString())
            return
        session = session_of(self._services, call)
        quotas = self._services.quotas
        begun_ns = self._services.appends.clock.now_ns() if quotas.is_active else 0
        is_started = (
            rpc.start is not None
            and session is not None
            and field_count <= STARTED_FIELDS_MAX
            and self._start(rpc, call, body, session, held)
        )
        if not is_started:
            answer = partial(self._answer, rpc, call, body, session, held)
            self._turns.spawn(call, session, answer, rpc.name)
        elif begun_ns and session is not None:
            quotas.take(session, REQUEST, self._services.appends.clock.now_ns() - begun_ns)

    def _note(self, rpc: Rpc, call: Call, begun_ns: int) -> None:
        """A call has ended. Clients ask for streams to wait for messages."""
        took_ns = self._services.appends.clock.now_ns() - begun_ns
        waited_ns = took_ns if rpc.is_stream else 0
        if took_ns - waited_ns >= self._slow.noted_from_ns:
            parent = (call.header(TRACE_PARENT) or b"").decode("latin-1")
            self._slow.note(
                EndedRequest(
                    "rocketmq", rpc.name, call.peer, took_ns, waited_ns, traceparent=parent
                )
            )

    def close(self) -> None:
        """Drop what waits for a thread."""
        self._sending.close()

    def _start(self, rpc: Rpc, call: Call, body: bytes, session: ClientSession, held: Held) -> bool:
        """Begin a call without a task; returns False if it has to wait for something first."""
        assert rpc.start is not None

        def ended(found: Any) -> None:
            held.release()
            if isinstance(found, Exception):
                self._fail(rpc, call, found, session)
            else:
                call.respond(found.SerializeToString())

        try:
            charge = self._services.fair_shares.take_now(session, len(body))
            if charge is None:
                return False
            held.charge = charge
            caller, request = self._accepted(rpc, call, body, session, held)
            has_begun = rpc.start(caller, request, ended)
            if not has_begun:
                charge.release()  # it asks again
            return has_begun
        except Exception as error:  # noqa: BLE001 - the edge of a call
            ended(error)
            return True

    def _accepted(
        self, rpc: Rpc, call: Call, body: bytes, session: ClientSession, held: Held
    ) -> tuple[Caller, Any]:
        """(who asks, the request). Raises DecodeError, HeadraceError."""
        request = wire.request_of(rpc.name).FromString(body)
        self._services.connections.join(call.connection, session)
        caller = Caller(self._services, call, rpc.name, session, held)
        caller.require(rpc.access, request)
        return caller, request

    async def _answer(
        self, rpc: Rpc, call: Call, body: bytes, session: ClientSession | None, held: Held
    ) -> None:
        kind = wire.response_of(rpc.name)
        response = kind()
        try:
            if call.is_finished:
                return  # while it waited for its turn
            if session is None:
                session = await check_session(call)
            held.charge = await self._enter(rpc, session, len(body))
            caller, request = self._accepted(rpc, call, body, session, held)
            if rpc.is_stream:
                caller.watch()
            handling = rpc.handle(caller, request, kind if rpc.is_stream else response)
            # Decoded, it is many times larger: the handler says for how long it is kept.
            del request, body
            await handling
            if rpc.is_stream:
                return
            if not response.status.code:
                set_status(response.status, None)
        except Exception as error:  # noqa: BLE001 - the edge of a call
            self._fail(rpc, call, error, session)
            return
        finally:
            held.release()
            self._charge(session)
        call.respond(response.SerializeToString())

    def _charge(self, session: ClientSession | None) -> None:
        """The time of the event loop that a call took."""
        quotas, paced = self._services.quotas, paced_here()
        if quotas.is_active and session is not None and paced is not None:
            quotas.take(session, REQUEST, paced.spent_until_now_ns())

    async def _enter(self, rpc: Rpc, session: ClientSession, size: int) -> Charge:
        """Wait for room in the share of the client's tenant. Raises QuotaExceeded."""
        charge = await self._services.fair_shares.enter(session, size)
        if rpc.name not in STORED:
            charge.pass_turn()
        return charge

    def _fail(self, rpc: Rpc, call: Call, error: Exception, session: ClientSession | None) -> None:
        """Finish a call with an error. `session`: whose call it is, if that became known: a
        signature that was good then may be too old now, and the error names keys."""
        if isinstance(error, DecodeError):
            _finish_invalid(rpc, call)
            return
        response = wire.response_of(rpc.name)()
        if isinstance(error, HeadraceError):
            view = OF_ALL if session is None else view_of(self._services, session)
            set_status(response.status, error, view)
        else:
            log.error("internal error in %s of RocketMQ's protocol", rpc.name, exc_info=error)
            response.status.code = codes.INTERNAL_SERVER_ERROR
            response.status.message = "internal error: see the broker's log"
        if rpc.is_stream:
            call.send(response.SerializeToString())
            call.finish()
        else:
            call.respond(response.SerializeToString())


def _finish_invalid(rpc: Rpc, call: Call) -> None:
    call.finish(GrpcStatus.INVALID_ARGUMENT, f"this is no {rpc.name}Request")


def _field_count(body: bytes, fields_max: int) -> int:
    """How many fields a large request has; 0: a small one. Raises Refused if it has more than any
    may have, before it is decoded: 16 MiB of empty ones take 600 MB and 2 s. ProtobufInvalid."""
    if len(body) <= SCANNED_BYTES_MIN:
        return 0
    count = sum(1 for _ in islice(fields(body), fields_max + 1))
    if count > fields_max:
        raise Refused(
            codes.BAD_REQUEST, f"the request has more than {fields_max} fields: send less at once"
        )
    return count


def _path(rpc: str) -> str:
    return f"/{wire.SERVICE}/{rpc}"
