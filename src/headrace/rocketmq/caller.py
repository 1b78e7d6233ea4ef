"""One call of a client: who asks, under which rights, and of which topics and groups.

Invariants: what a client may not use is refused before it is looked up, so that nothing is learned
of its existence. A check of a topic is by the name that stores it, whatever RocketMQ calls it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.access import unauthorized
from headrace.broker.security.authorizer import ResourceType
from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.tenant_shares import Holder
from headrace.broker.services.fair_shares import user_of
from headrace.broker.services.tenant_view import view_of
from headrace.errors import AuthenticationFailed, Retriable, TopicUnknown
from headrace.records.tenant_names import tenant_of
from headrace.rocketmq.codes import CLIENT_ID_REQUIRED, Refused
from headrace.rocketmq.names import group_id_of, topic_name_of
from headrace.rocketmq.signed import SignedConnection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.broker.security.access import Access
    from headrace.broker.security.authorizer import Operation
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.grpc.service import Call
    from headrace.rocketmq.in_progress import Held

CLIENT_ID: Final = b"x-mq-client-id"
CLIENT_ID_LENGTH_MAX: Final = 255
LISTENER: Final = "ROCKETMQ"


class Caller:
    """The client of one call. Also a `queue_receive.Client`: it may go before it is answered."""

    __slots__ = (
        "_gone",
        "_has_gone",
        "_term",
        "call",
        "client_id",
        "held",
        "rpc",
        "services",
        "session",
        "view",
    )

    def __init__(
        self,
        services: Services,
        call: Call,
        rpc: str,
        session: ClientSession,
        held: Held | None = None,
    ) -> None:
        """`held`: what its request holds; None: of a stream of requests, nothing.

        Raises Refused if the client does not say who it is.
        """
        self.services = services
        self.call = call
        self.rpc = rpc
        self.session = session
        self.held = held
        self.view = view_of(services, session)
        """How the client writes names."""
        self.client_id = (call.header(CLIENT_ID) or b"").decode("utf-8", "replace").strip()
        if not self.client_id or len(self.client_id) > CLIENT_ID_LENGTH_MAX:
            raise Refused(
                CLIENT_ID_REQUIRED,
                f"the metadata lack x-mq-client-id, of 1 to {CLIENT_ID_LENGTH_MAX} characters:"
                " use one of RocketMQ's clients",
            )
        if not session.client_id:
            session.client_id = self.client_id
        self._gone: asyncio.Event | None = None
        self._has_gone = False
        guard = services.cluster.guard
        self._term = None if guard is None else guard.term_now()

    def check_term(self) -> None:
        """Raise Retriable if what was read may be another broker's by now."""
        guard = self.services.cluster.guard
        if guard is not None and guard.term_now() != self._term:
            raise Retriable(
                "this broker stopped serving its partitions while it answered, and another one"
                " may serve them by now: try again"
            )

    def drop_request(self) -> None:
        """What its request was is not kept any more, however long the client waits or reads."""
        if self.held is not None:
            self.held.release()

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the client."""
        return str(self.session.principal), self.client_id

    @property
    def holder(self) -> Holder:
        """For whom the places count that it takes."""
        return Holder(tenant_of(self.view.prefix), user_of(self.session))

    # --- a client that goes ------------------------------------------------------------------

    def watch(self) -> None:
        """Notice from now on when the client goes."""
        self.call.on_cancel(self._note_gone)

    def _note_gone(self) -> None:
        self._has_gone = True
        if self._gone is not None:
            self._gone.set()

    def has_gone(self) -> bool:
        """See queue_receive.Client."""
        return self._has_gone

    async def wait_gone(self) -> None:
        """See queue_receive.Client."""
        if not self._has_gone:
            self._gone = asyncio.Event()
            await self._gone.wait()

    # --- names -------------------------------------------------------------------------------

    def dead_letter_topic(self, group_id: str) -> str:
        """The dead letter topic of a group; empty if it has none. Raises MetadataUnavailable."""
        return self.services.queues.terms(group_id).dead_letter_topic

    def topic_name(self, resource: Any) -> str:
        """The name of a topic. Raises Refused."""
        return topic_name_of(resource, self.view, self.dead_letter_topic)

    def group_id(self, resource: Any) -> str:
        """The id of a group. Raises Refused."""
        return group_id_of(resource, self.view)

    def known_topic(self, resource: Any) -> Topic | None:
        """The topic, if this broker knows it already. Raises Refused."""
        return self.services.topics.readable.find(self.topic_name(resource))

    async def topic(self, resource: Any) -> Topic:
        """The topic, which another broker may have created just now. Raises TopicUnknown."""
        name = self.topic_name(resource)
        found = self.services.topics.readable.find(name)
        if found is None:
            await self.services.topics.look_up(name)
            found = self.services.topics.readable.find(name)
        if found is None:
            raise TopicUnknown(
                f"topic {name[:249]!r} does not exist: create it, with the type of its messages"
                " (`headrace topic create NAME --type fifo`); a topic of dead letters comes into"
                " being with the first of them"
            )
        return found

    # --- rights ------------------------------------------------------------------------------

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may do this."""
        return may(self.services, self.session, operation, kind, name)

    def require_still(self, needs: Iterable[tuple[Operation, ResourceType, str]]) -> None:
        """After a call has waited: raise AuthenticationFailed if the client's key has ended, and
        Unauthorized for the first right that it no longer has."""
        if not self.services.authentication.is_valid(self.session):
            raise AuthenticationFailed("the access key has ended")
        for operation, kind, name in needs:
            if not self.may(operation, kind, name):
                raise unauthorized(self.session, operation, kind, name)

    def require(self, access: Access, request: Any) -> None:
        """Raise Unauthorized for the first right that the client lacks, Refused for a name that is
        none."""
        if self.services.authorizer.is_open and self.session.scope is None:
            return
        for need in access.needs:
            for resource in _resources(request, need.of.split(".")):
                is_group = need.kind == ResourceType.GROUP
                name = self.group_id(resource) if is_group else self.topic_name(resource)
                if not self.may(need.operation, need.kind, name):
                    self.services.audit.denied(
                        self.session, need.operation, need.kind, name, self.rpc
                    )
                    raise unauthorized(self.session, need.operation, need.kind, name)


def session_of(services: Services, call: Call) -> ClientSession | None:
    """Whose call this is; None: its signature has to be checked (`signed`)."""
    session = call.session
    if isinstance(session, ClientSession):
        return session
    if isinstance(session, SignedConnection):
        return session.session_now(call)
    return ClientSession(LISTENER, call.peer, ANONYMOUS)


async def check_session(call: Call) -> ClientSession:
    """The session of a call for which `session_of` has none. Raises AuthenticationFailed."""
    assert isinstance(call.session, SignedConnection), "others have a session"
    return await call.session.session(call)


def may(
    services: Services, session: ClientSession, operation: Operation, kind: ResourceType, name: str
) -> bool:
    """Whether a client may do this: by the rules, and by the scope of its key."""
    scope, authorizer = session.scope, services.authorizer
    if scope is not None and not scope.covers(operation, kind, name):
        return False
    return authorizer.is_open or authorizer.allows(session, operation, kind, name)


def _resources(value: Any, places: list[str]) -> Iterator[Any]:
    """The Resources at a place of a request; of a list, those of each item."""
    found = getattr(value, places[0])
    for one in found if hasattr(found, "append") else (found,):
        if len(places) == 1:
            yield one
        else:
            yield from _resources(one, places[1:])
