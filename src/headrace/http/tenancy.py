"""What the clients of tenants write and get over HTTP: names in place of keys. And operators, who
write `acme/orders` for a name of any kind, and get it so.

Invariants: the places of names in requests are those for which an operation needs rights
(`http/access`), so none has a name without a key. Names of users and principals are the operators'
alone, in the places below. In answers, names, and the cluster's id, have fields of their own; the
contents of messages are in others, and are not touched.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response, StreamingResponse

from headrace.broker.coordinators.group_config import DEAD_LETTER_TOPIC
from headrace.broker.security.access import How
from headrace.broker.security.tenant_ownership import OF_TENANTS
from headrace.http.problems import PROBLEM
from headrace.records.tenant_names import OPEN, TENANT, USER
from headrace.records.written_names import (
    CONTENTS,
    TEXT,
    TEXTS,
    TOPICS_BY_NAME,
    with_written_names,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.security.access import Access
    from headrace.broker.services.tenant_view import TenantView

Json = dict[str, Any]
ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "listTopics": ("query.prefix",),
    "followEvents": ("query.topic",),
    "listPastOffsets": ("query.group",),
    "startRedrive": ("body.group",),
    "takeBackDeadLetters": ("body.sent.to",),
    "shareTopic": ("body.topic",),
    "unshareTopic": ("path.topic",),
    "acceptTopic": ("body.topic",),
    "leaveTopic": ("path.topic",),
    "changeGroupConfig": (f"body.set.{DEAD_LETTER_TOPIC}",),
}
"""Names for which an operation needs no rights of its own, or its handler asks for them."""
OF_OPERATORS: Final[Mapping[str, tuple[str, ...]]] = {
    "listAcls": ("query.principal", "query.name"),
    "createAcl": ("body.principal", "body.name"),
    "explainAcl": ("body.principal", "body.name"),
    "createTenant": ("body.principals",),
    "changeTenant": ("body.add", "body.move", "body.remove"),
    "changeQuota": ("body.user",),
    "deleteQuota": ("query.user",),
    "createUser": ("body.user",),
    "setPassword": ("path.user",),
    "deleteUser": ("path.user",),
    "listConnections": ("query.principal",),
    "listDeadLetters": ("query.origin", "query.group"),
}
_MAY_BE_KEY: Final = re.compile(f'{OPEN}|"({USER})?/*{TENANT}/')
"""In JSON: what operators write in another way."""
_KEYS: Final = frozenset(
    {
        *("name", "topic", "topics", "group", "groups", "origin", "to", "letter", "record"),
        *("dead_letter_topic", DEAD_LETTER_TOPIC),
    }
)
_TEXTS: Final = TEXTS | {"principal"}
_IDS: Final = frozenset({"cluster_id", "prefix"})
"""Fields with the cluster's id: `prefix` is what names of objects begin with."""
_OF_TEXTS: Final = TEXTS | TOPICS_BY_NAME
"""Fields that may be objects of texts, or of what is counted by topic."""


def enter(view: TenantView, operation: str, access: Access, given: Json) -> None:
    """Turn the names of a request into keys. `given`: its path, query and body."""
    if not view.prefix and not view.is_operator:
        return
    needs = [one for one in access.needs if one.how is not How.SHOWN and one.kind in OF_TENANTS]
    places = dict.fromkeys([*(one.of for one in needs), *ALSO.get(operation, ())])
    if view.is_operator:
        places |= dict.fromkeys(OF_OPERATORS.get(operation, ()))
    for place in places:
        _enter(view, given, place)


def _enter(view: TenantView, value: Any, place: str) -> None:
    if isinstance(value, list):
        for item in value:
            _enter(view, item, place)
        return
    if not isinstance(value, dict):
        return
    field, _, rest = place.partition(".")
    if place in value:  # the name of a setting has dots
        field, rest = place, ""
    found = value.get(field)
    if rest:
        _enter(view, found, rest)
    elif isinstance(found, str) and found:  # an empty one names nothing
        value[field] = view.key(found)
    elif isinstance(found, list):
        value[field] = [view.key(one) if isinstance(one, str) else one for one in found]


def leave(view: TenantView, value: Any, field: str = "") -> Any:
    """An answer as its client may see it."""
    if not view.prefix:
        return with_written_names(value, field) if view.is_operator else value
    if isinstance(value, str):
        if field in _TEXTS:
            return view.text(value)
        if field in _IDS:
            return view.without_id(value)
        return view.name(value) if field in _KEYS else value
    if isinstance(value, dict):
        if field in _OF_TEXTS:
            return {view.text(name): leave(view, item, TEXT) for name, item in value.items()}
        found = {
            name: item if name in CONTENTS else leave(view, item, name)
            for name, item in value.items()
        }
        if value.get("name") == DEAD_LETTER_TOPIC:
            found |= {one: leave(view, value.get(one), "name") for one in ("value", "default")}
        return found
    if isinstance(value, list):
        return [leave(view, item, field) for item in value]
    return value


def leave_response(view: TenantView, response: Response) -> Response:
    """The same of a response that a handler has made; a stream's handler does it for each part."""
    if not view.prefix and not view.is_operator:
        return response
    for name in ("location", "content-disposition"):
        if name in response.headers:
            response.headers[name] = view.text(response.headers[name])
    body = bytes(getattr(response, "body", b""))
    is_json = (response.media_type or "") in {"application/json", PROBLEM}
    if isinstance(response, StreamingResponse) or not is_json or not _has_key(view, body):
        return response
    headers = {name: one for name, one in response.headers.items() if name != "content-length"}
    found = leave(view, json.loads(body))
    # A receipt that a client sent comes back, and may have half of a surrogate pair.
    data = json.dumps(found, separators=(",", ":"))
    return Response(data, response.status_code, headers, response.media_type)


def _has_key(view: TenantView, body: bytes) -> bool:
    if view.is_operator:
        text = body.decode("utf-8", "replace")
        return _MAY_BE_KEY.search(text) is not None or json.dumps(OPEN)[1:-1] in text
    if view.hidden_id and view.hidden_id.encode() in body:
        return True
    texts = [view.prefix, *view.sources()]
    return any(one.encode() in body or json.dumps(one)[1:-1].encode() in body for one in texts)
