"""The rights to topics that Produce and Fetch check by themselves, without a call for each request.

Invariants: the authorizer is asked once for each topic of a session and version of the rules; its
positive answers are kept in the session (`ClientSession.granted`). A topic is refused whether it
exists or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.broker.security.access import unauthorized
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.sessions import REMEMBERED_LENGTH_MAX
from headrace.broker.topics.topics import topic_id_unknown
from headrace.errors import HeadraceError
from headrace.kafka.tenancy import is_foreign

if TYPE_CHECKING:
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.services import Services


class TopicRights:
    """One operation on topics, and the name of the request that needs it."""

    def __init__(self, services: Services, operation: Operation, request: str) -> None:
        self._services = services
        self._operation = operation
        self._request = request

    def granted(self, session: ClientSession) -> set[Any]:
        """The keys that are allowed for the session's principal by the current rules."""
        if (
            session.rights_version != self._services.authorizer.version
            or session.rights_principal is not session.principal
        ):
            session.granted.clear()
        return session.granted

    def refusal(
        self, session: ClientSession, topic_key: bytes, *, is_id: bool, grant: object = None
    ) -> HeadraceError | None:
        """The error if the client may not use a topic, or if no topic has this id. `grant`: the
        key to remember, if it may."""
        try:
            if is_id:
                topics, topic_id = self._services.topics.readable, UUID(bytes=topic_key)
                name = topics.get_by_id(topic_id).name
                if is_foreign(self._services.authorizer, session, name):
                    raise topic_id_unknown(topic_id)
            else:
                name = topic_key.decode(errors="replace")
        except HeadraceError as unknown:
            return unknown
        error = self.refusal_of(session, ResourceType.TOPIC, name)
        if error is None and grant is not None and len(topic_key) <= REMEMBERED_LENGTH_MAX:
            session.grant(grant)
        return error

    def refusal_of(
        self, session: ClientSession, kind: ResourceType, name: str
    ) -> HeadraceError | None:
        """The error if the client may not use a resource, which is noted for the audit log."""
        if self._services.authorizer.allows(session, self._operation, kind, name):
            return None
        self._services.audit.denied(session, self._operation, kind, name, self._request)
        return unauthorized(session, self._operation, kind, name)
