"""Self-test: security holes planted in a real broker, each of which its case must find.

Invariants: as in `wire.bugs`: `spoiled.py` patches the process before it starts.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import json
import logging
import os
import sys
import unicodedata
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headrace.broker.security.authorizer import ResourceType
from headrace.broker.topics import topics
from headrace.broker.topics.topic import Topic
from headrace.kafka import apis, dispatch
from headrace.kafka.handlers import producers
from headrace.records.tenant_names import tenant_of
from headrace.runtime import disk, log_text
from headrace_verify.wire.bugs import Hole, found_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_verify.self_proof import Patch


_SERVE = "headrace.cli.serve"
"""Below the root package; patched by name before the process starts."""


def log_what_clients_call_themselves_as_it_is(patch: Patch) -> None:
    take = dispatch.KafkaFace.dispatch
    log = logging.getLogger("headrace.planted")  # dispatch's own is limited

    def telling(self: Any, connection: Any, frame: memoryview) -> None:
        size = int.from_bytes(frame[8:10])
        log.info("a request of %s", bytes(frame[10 : 10 + size]).decode(errors="replace"))
        take(self, connection, frame)

    patch(dispatch.KafkaFace, "dispatch", telling)
    patch(log_text, "one_line", lambda text: text)


def keep_topics_in_folders_of_their_names(patch: Patch) -> None:
    create = topics.Topics.create

    async def careless(self: Any, name: str, *arguments: Any, **settings: Any) -> Any:
        data_dir = sys.argv[sys.argv.index("--data-dir") + 1]
        # pathlib and os.path alike: an absolute name replaces everything before it.
        os.makedirs(os.path.join(data_dir, name.replace("\0", "")[:99]), exist_ok=True)
        return await create(self, name, *arguments, **settings)

    patch(topics.Topics, "create", careless)


def show_tracebacks_to_who_asks_oddly(patch: Patch) -> None:
    from starlette.middleware.errors import ServerErrorMiddleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Router

    from headrace.http import app, monitoring

    async def limited(self: Any, request: Any) -> Any:
        int(request.query_params.get("limit", "0").replace("-", "minus"))
        return PlainTextResponse("ok\n")

    patch(monitoring.Monitoring, "_healthz", limited)

    def telling(*arguments: Any, **settings: Any) -> Any:
        return ServerErrorMiddleware(Router(*arguments, **settings), debug=True)

    patch(app, "Router", telling)


def log_the_environment_at_debug(patch: Patch) -> None:
    serve = importlib.import_module(_SERVE)
    prepare = serve._prepare

    def telling(*given: str) -> None:
        prepare(*given)
        for name, value in os.environ.items():  # one line each: a long line is truncated
            serve.log.debug("started with %s=%s", name, value)

    patch(serve, "_prepare", telling)


def let_everybody_read_the_data(patch: Patch) -> None:
    patch(disk, "FILE_MODE", 0o644)
    patch(importlib.import_module(_SERVE), "_OWNER_ONLY_UMASK", 0)


def answer_for_any_host(patch: Patch) -> None:
    from headrace.http import app

    patch(app, "is_own_host", lambda _host: True)


def take_internal_topics_for_ordinary_ones(patch: Patch) -> None:
    patch(Topic, "is_internal", False)


def give_a_producer_the_id_that_it_names(patch: Patch) -> None:
    init = producers.init_producer_id

    async def believing(node: Any, request: Any, context: Any) -> Any:
        if request.transactional_id is None and request.producer_id >= 0:
            given = {"producer_id": request.producer_id, "producer_epoch": request.producer_epoch}
            return {"error_code": 0, **given}
        return await init(node, request, context)

    handlers: Any = {**dispatch._HANDLERS, apis.INIT_PRODUCER_ID: believing}
    patch(dispatch, "_HANDLERS", handlers)


def admit_everybody(patch: Patch) -> None:
    from headrace.broker.security.authentication import Authentication

    patch(Authentication, "admits", lambda _self, _session, _api_key: True)


def take_frames_of_any_size_before_a_login(patch: Patch) -> None:
    from headrace.kafka import login_connections

    patch(login_connections, "REQUEST_BYTES_MAX", 2**31)
    patch(login_connections, "SMALL_REQUEST_BYTES_MAX", 2**31)


def store_any_number_of_iterations(patch: Patch) -> None:
    from headrace.broker.security import users
    from headrace.runtime import scram

    for module in (users, scram):
        patch(module, "ITERATIONS_MIN", -1)
        patch(module, "ITERATIONS_MAX", 2**31)


def begin_logins_by_any_mechanism(patch: Patch) -> None:
    from headrace.broker.security.logins import Logins
    from headrace.runtime.scram import HASHES

    begin = Logins.begin

    def lax(self: Any, mechanism: str, enabled: Any, *place: Any, **named: Any) -> Any:
        return begin(self, mechanism, [*enabled, *HASHES], *place, **named)

    patch(Logins, "begin", lax)


def take_public_keys_for_secrets(patch: Patch) -> None:
    from joserfc import jws

    from headrace.broker.security import tokens

    judge = tokens.Tokens.judge

    async def confused(self: Any, token: str) -> Any:
        head, _, signature = token.rpartition(".")
        for key in self._keys:
            public = key.as_pem(private=False)
            mac = hmac.digest(public, head.encode(), hashlib.sha256)
            if base64.urlsafe_b64encode(mac).decode().rstrip("=") == signature:
                return self._user(json.loads(jws.extract_compact(token.encode()).payload))
        return await judge(self, token)

    patch(tokens.Tokens, "judge", confused)


def believe_tokens_unseen(patch: Patch) -> None:
    from joserfc import jws

    from headrace.broker.security import tokens

    def read(token: str, _key: Any) -> Any:
        return json.loads(jws.extract_compact(token.encode()).payload)

    patch(tokens, "_verified", read)


def take_names_that_collide_for_one(patch: Patch) -> None:
    from headrace.broker.security import acls

    find = acls._Held.find

    def alike(self: Any, name: str) -> Any:
        return find(self, name) or find(self, name.replace("_", ".").lower())

    patch(acls._Held, "find", alike)


def give_absent_users_a_new_salt_each_time(patch: Patch) -> None:
    from headrace.broker.security import user_forms
    from headrace.runtime.scram import absent_credential as absent

    def changing(mechanism: str, _secret: bytes, user: str, form: Any) -> Any:
        return absent(mechanism, os.urandom(16), user, form)

    patch(user_forms, "absent_credential", changing)


def take_all_absent_users_for_new_ones(patch: Patch) -> None:
    from headrace.broker.security.user_forms import UserForms

    patch(UserForms, "count", lambda _self, _credentials, _step: None)


def keep_the_session_that_a_browser_brings(patch: Patch) -> None:
    from headrace.broker.security.browser_sessions import BrowserSessions
    from headrace.http.logins import AuthenticatedApp

    brought: list[str] = []
    kept: dict[str, Any] = {}
    of_cookie, begin, find = (
        AuthenticatedApp._of_cookie,
        BrowserSessions.begin,
        BrowserSessions.find,
    )

    async def noting(self: Any, headers: Any) -> Any:
        brought[:] = [one.partition("=")[2] for one in headers.getlist("cookie")]
        return await of_cookie(self, headers)

    async def keeping(self: Any, identity: Any) -> Any:
        value, session = await begin(self, identity)
        kept.update(dict.fromkeys(brought, session))
        return value, session

    async def finding(self: Any, value: str) -> Any:
        return kept.get(value) or await find(self, value)

    patch(AuthenticatedApp, "_of_cookie", noting)
    patch(BrowserSessions, "begin", keeping)
    patch(BrowserSessions, "find", finding)


def keep_sessions_that_were_signed_out(patch: Patch) -> None:
    from headrace.broker.security.browser_sessions import BrowserSessions

    async def nothing(_self: Any, _session: Any) -> None:
        return

    patch(BrowserSessions, "end", nothing)


def take_sessions_from_any_page(patch: Patch) -> None:
    from headrace.http import logins

    patch(logins, "is_own_page", lambda _headers: True)


def believe_a_header_of_a_proxy(patch: Patch) -> None:
    from headrace.broker.security.principal import Principal
    from headrace.http import logins

    login = logins.AuthenticatedApp._login

    async def believing(self: Any, headers: Any, *request: Any) -> Any:
        user = headers.get("x-forwarded-user")
        if user:
            return logins.HttpLogin(Principal(user), logins.PASSWORD, lambda: True)
        return await login(self, headers, *request)

    patch(logins.AuthenticatedApp, "_login", believing)


def take_signatures_of_any_age(patch: Patch) -> None:
    from headrace.broker.security.access_signatures import AccessSignatures

    patch(AccessSignatures, "_holds_until_ms", lambda _self, _date_time: 2**62)


def let_rules_open_what_other_tenants_have(patch: Patch) -> None:
    from headrace.broker.services import access_control

    patch(access_control, "is_of_another", lambda *_asked, **_settings: False)


def refuse_absent_users_without_a_hash(patch: Patch) -> None:
    from headrace.broker.security import logins
    from headrace.errors import AuthenticationFailed

    check = logins.Logins.check_password

    async def hasty(self: Any, given: Any, *place: Any) -> Any:
        if self.users.any_credential(given.user) is None:
            raise AuthenticationFailed("wrong password, or no such user", user=given.user)
        return await check(self, given, *place)

    patch(logins.Logins, "check_password", hasty)


def _work() -> None:
    """Milliseconds, as reads of stored metadata may take: the attack does not see what costs
    microseconds."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 8_192)


def _look_first(patch: Patch, asked: ResourceType, known: set[str]) -> None:
    from headrace.broker.security.tenant_ownership import is_of_another
    from headrace.broker.services import access_control

    def looking(kind: Any, name: str, *more: Any, **settings: Any) -> bool:
        if kind == asked and name in known:
            _work()
        return is_of_another(kind, name, *more, **settings)

    patch(access_control, "is_of_another", looking)


def look_at_topics_before_the_rights_to_them(patch: Patch) -> None:
    create, created = topics.Topics.create, set[str]()

    async def noting(self: Any, name: str, *arguments: Any, **settings: Any) -> Any:
        created.add(name)
        return await create(self, name, *arguments, **settings)

    patch(topics.Topics, "create", noting)
    _look_first(patch, ResourceType.TOPIC, created)


def look_at_groups_before_the_rights_to_them(patch: Patch) -> None:
    from headrace.broker.coordinators.group_coordinator import GroupCoordinator

    submit, known = GroupCoordinator.submit, set[str]()

    async def noting(self: Any, command: Any) -> Any:
        known.add(command.group_id)
        return await submit(self, command)

    patch(GroupCoordinator, "submit", noting)
    _look_first(patch, ResourceType.GROUP, known)


def look_at_topics_of_rocketmq_before_the_rights_to_them(patch: Patch) -> None:
    from headrace.rocketmq.caller import Caller

    may = Caller.may

    def looking(self: Any, operation: Any, kind: Any, name: str) -> bool:
        if kind == ResourceType.TOPIC and self.services.topics.find(name) is not None:
            _work()
        return may(self, operation, kind, name)

    patch(Caller, "may", looking)


def look_long_for_users_that_do_not_exist(patch: Patch) -> None:
    from headrace.broker.security.logins import Logins

    credential = Logins._credential

    def looking(self: Any, mechanism: str, user: str, *, is_enabled: bool) -> Any:
        found = credential(self, mechanism, user, is_enabled=is_enabled)
        if not found[1]:
            _work()
        return found

    patch(Logins, "_credential", looking)


def look_long_for_access_keys_that_exist(patch: Patch) -> None:
    from headrace.broker.security.api_keys import ApiKeys

    secret = ApiKeys.access_secret

    def looking(self: Any, id_: str) -> Any:
        if self.get(id_) is not None:
            _work()
        return secret(self, id_)

    patch(ApiKeys, "access_secret", looking)


class _Decoding(str):
    """A tenant's prefix, which decodes what it precedes once more: a name that becomes another
    tenant's key by it is taken for that key."""

    __slots__ = ()

    def __add__(self, name: str) -> str:
        plain = unquote(unicodedata.normalize("NFKC", unquote(name))).replace("\0", "")
        return plain if tenant_of(plain) else super().__add__(name)


def _believe_keys(patch: Patch) -> None:
    from headrace.broker.services import access_control

    patch(access_control, "is_of_another", lambda *_asked, **_settings: False)


def decode_names_in_http_once_more(patch: Patch) -> None:
    from headrace.broker.services.tenant_view import TenantView

    patch(TenantView, "key", lambda self, name: _Decoding(self.prefix) + name)
    _believe_keys(patch)


def decode_names_in_kafka_once_more(patch: Patch) -> None:
    from headrace.kafka.tenancy import Tenancy

    init = Tenancy.__init__

    def decoding(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self.prefix = _Decoding(self.prefix)

    patch(Tenancy, "__init__", decoding)
    _believe_keys(patch)


def decode_names_in_rocketmq_once_more(patch: Patch) -> None:
    from headrace.broker.services.tenant_view import view_of
    from headrace.rocketmq import caller, names

    def decoding(*arguments: Any) -> Any:
        view = view_of(*arguments)
        return view._replace(prefix=_Decoding(view.prefix))

    patch(caller, "view_of", decoding)
    patch(names, "is_topic_name", lambda _name: True)
    _believe_keys(patch)


def forget_for_which_tenant_a_listener_is(patch: Patch) -> None:
    from headrace.broker.security.listener import ListenerSecurity

    patch(ListenerSecurity, "place_of", lambda _self, _name: None)


def put_a_tenant_before_names_twice(patch: Patch) -> None:
    from headrace.kafka.tenancy import Tenancy

    init = Tenancy.__init__

    def doubling(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self.prefix += self.prefix

    patch(Tenancy, "__init__", doubling)


def take_names_in_rules_as_people_of_tenants_write_them(patch: Patch) -> None:
    from headrace.broker.services import tenant_acls

    patch(tenant_acls, "stored", lambda acl, _tenant: [acl])


def show_all_rules_to_people_of_tenants(patch: Patch) -> None:
    from headrace.broker.services.tenant_acls import TenantAcls

    patch(TenantAcls, "find", lambda self, wanted: self._access.find(wanted))


def forget_the_limits_of_tenants(patch: Patch) -> None:
    from headrace.broker.topics.tenant_room import TenantRoom

    async def anything(_self: Any, _name: str, _added: int) -> None:
        pass

    patch(TenantRoom, "place", anything)


def let_tenants_store_without_end(patch: Patch) -> None:
    from headrace.broker.services.tenant_counts import TenantCounts

    patch(TenantCounts, "end_period", lambda _self: None)


def give_places_to_whoever_comes_first(patch: Patch) -> None:
    from headrace.broker.security.tenant_shares import NO_HOLDER, SharedPlaces

    take = SharedPlaces.take
    patch(SharedPlaces, "take", lambda self, _holder: take(self, NO_HOLDER))


def forget_who_makes_groups(patch: Patch) -> None:
    from headrace.broker.coordinators.kept_groups import KeptGroups

    check = KeptGroups.check_group

    async def forgetful(self: Any, group_id: str, _user: str, *, is_there: bool | None) -> None:
        await check(self, group_id, "", is_there=is_there)

    patch(KeptGroups, "check_group", forgetful)


def keep_share_groups_without_bound(patch: Patch) -> None:
    from headrace.broker.shares.share_groups import ShareGroups

    async def unbounded(self: Any, beat: Any, _user: str = "") -> Any:
        return self._heartbeat(beat)

    patch(ShareGroups, "heartbeat", unbounded)


def forget_who_describes_members(patch: Patch) -> None:
    from headrace.broker.coordinators.kept_state import Room
    from headrace.broker.security.tenant_shares import NO_HOLDER

    take = Room.take

    async def forgetful(self: Any, holder: Any = NO_HOLDER, amount: int = 1) -> str:
        is_of_members = self._what == "bytes of members"
        return await take(self, NO_HOLDER if is_of_members else holder, amount)

    patch(Room, "take", forgetful)


def forget_who_delays_records(patch: Patch) -> None:
    from headrace.broker.timers.timer_room import TimerRoom

    take = TimerRoom.take
    patch(TimerRoom, "take", lambda self, hosted, _user, timers: take(self, hosted, "", timers))


def forget_who_begins_transactions(patch: Patch) -> None:
    from headrace.broker.coordinators.transaction_coordinator import TransactionCoordinator

    check = TransactionCoordinator._check_room
    patch(TransactionCoordinator, "_check_room", lambda self, id_, _user: check(self, id_, ""))


def forget_who_takes_places(patch: Patch) -> None:
    from headrace.broker.security.tenant_shares import Holder, SharedPlaces

    take = SharedPlaces.take
    patch(SharedPlaces, "take", lambda self, holder: take(self, Holder(holder.tenant)))


def parse_requests_leniently(patch: Patch) -> None:
    from headrace.http.connection import HttpConnection

    made = HttpConnection.connection_made

    def lenient(self: Any, transport: Any) -> None:
        made(self, transport)
        self.parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_chunked_length=True, lenient_transfer_encoding=True
        )

    patch(HttpConnection, "connection_made", lenient)


BUGS = (
    Hole(admit_everybody, ("nothing is answered before",), says="is answered before the login"),
    Hole(take_frames_of_any_size_before_a_login, ("before a login is small",), says="stays open"),
    Hole(store_any_number_of_iterations, ("scram is neither",), says="iterations are stored"),
    Hole(begin_logins_by_any_mechanism, ("scram is neither",), says="not enabled begins a login"),
    Hole(believe_tokens_unseen, ("forged tokens",), says="logs in"),
    Hole(take_public_keys_for_secrets, ("forged tokens",), says="as a secret logs in"),
    Hole(take_names_that_collide_for_one, ("rules are of one name",), says="a_b"),
    Hole(
        give_absent_users_a_new_salt_each_time, ("errors do not tell",), says="the salt of nobody"
    ),
    Hole(take_all_absent_users_for_new_ones, ("errors do not tell",), says="nobody is asked for"),
    Hole(keep_the_session_that_a_browser_brings, ("sessions are new",), says="planted session is"),
    Hole(keep_sessions_that_were_signed_out, ("sessions are new",), says="still holds"),
    Hole(take_sessions_from_any_page, ("other sites cannot",), says="another site"),
    Hole(believe_a_header_of_a_proxy, ("headers do not smuggle",), says="X-Forwarded-User"),
    Hole(parse_requests_leniently, ("requests are not smuggled",), says="is answered"),
    Hole(
        let_rules_open_what_other_tenants_have,
        ("another tenants names",),
        says="names another tenant's",
    ),
    Hole(forget_for_which_tenant_a_listener_is, ("listener is its own",), says="of another tenant"),
    Hole(put_a_tenant_before_names_twice, ("listener is its own",), says="sees as its topics"),
    Hole(
        take_names_in_rules_as_people_of_tenants_write_them,
        ("make no rule about others",),
        says="makes a rule about",
    ),
    Hole(
        show_all_rules_to_people_of_tenants,
        ("make no rule about others",),
        says="rules of others are shown",
    ),
    Hole(let_tenants_store_without_end, ("does not fill the disk",), says="may store more"),
    Hole(
        give_places_to_whoever_comes_first,
        ("leaves places for streams",),
        says="keeps others out",
    ),
    Hole(forget_who_makes_groups, ("leaves room for others",), says="makes groups keeps"),
    Hole(
        keep_share_groups_without_bound,
        ("leaves room for others",),
        says="makes share groups",
    ),
    Hole(
        forget_who_describes_members,
        ("leaves room for others",),
        says="descriptions of members keeps",
    ),
    Hole(forget_who_delays_records, ("leaves room for others",), says="delays records keeps"),
    Hole(
        forget_who_begins_transactions,
        ("leaves room for others",),
        says="transactional ids keeps",
    ),
    Hole(forget_who_takes_places, ("leaves room for others",), says="follows keeps others out"),
    Hole(decode_names_in_http_once_more, ("encoded names",), says="tells by HTTP"),
    Hole(decode_names_in_kafka_once_more, ("encoded names",), says="tells by Kafka"),
    Hole(decode_names_in_rocketmq_once_more, ("encoded names",), says="tells by RocketMQ"),
    Hole(refuse_absent_users_without_a_hash, ("work does not tell",), says="a wrong password"),
    Hole(
        look_at_topics_before_the_rights_to_them, ("work does not tell",), says="/v1/topics/hidden"
    ),
    Hole(
        look_at_groups_before_the_rights_to_them,
        ("work does not tell",),
        says="DescribeGroups of hidden",
    ),
    Hole(
        look_at_topics_of_rocketmq_before_the_rights_to_them,
        ("work does not tell",),
        says="QueryRoute of hidden",
    ),
    Hole(look_long_for_users_that_do_not_exist, ("work does not tell",), says="by SCRAM"),
    Hole(look_long_for_access_keys_that_exist, ("work does not tell",), says="a wrong signature"),
    Hole(forget_the_limits_of_tenants, ("takes no more than its limits",), says="topics allowed"),
    Hole(take_signatures_of_any_age, ("signatures of others",), says="a year ago"),
    Hole(
        log_what_clients_call_themselves_as_it_is, ("what clients call themselves",), says="control"
    ),
    Hole(
        keep_topics_in_folders_of_their_names, ("topic names lead nowhere",), says="strange names"
    ),
    Hole(show_tracebacks_to_who_asks_oddly, ("odd query options",), says="500"),
    Hole(
        log_the_environment_at_debug, ("secrets of the environment",), says="the log tells a secret"
    ),
    Hole(let_everybody_read_the_data, ("files are their owners alone",), says="mode"),
    Hole(answer_for_any_host, ("other hosts names",), says="status 200"),
    Hole(give_a_producer_the_id_that_it_names, ("producers do not pass",), says="gets it"),
    Hole(
        take_internal_topics_for_ordinary_ones,
        ("what is the brokers own",),
        says="__consumer_offsets",
    ),
)


def find(
    bug: Hole, seed: int, on_progress: Callable[[float, str], None], seconds: float = 4
) -> list[str]:
    """What its case has found; empty if not the bug."""
    from headrace_verify.security.run import plan

    return found_by(bug, plan(seconds, seed, bug.found_by, bug.name), on_progress)
