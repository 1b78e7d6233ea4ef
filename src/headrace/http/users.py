"""Users over HTTP: listed, created, given passwords and removed.

Invariants: parses and encodes; the rules are in `broker/services/user_administration`. A password
that a client sends is in no answer; one that the broker makes is in one answer only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse

from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.logins import PASSWORD_LENGTH_MAX
from headrace.broker.security.principal import USER
from headrace.broker.security.users import NAME_BYTES_MAX
from headrace.broker.services.user_administration import NewPassword
from headrace.http.keys import refuse_keys
from headrace.http.operations import (
    CREATED,
    DRY_RUN,
    PAGE,
    Call,
    Json,
    Operation,
    fields,
    integer,
    listing,
    page,
    text,
)
from headrace.runtime.scram import HASHES, ITERATIONS, ITERATIONS_MAX, ITERATIONS_MIN

if TYPE_CHECKING:
    from starlette.responses import Response

    from headrace.broker.services.services import Services
    from headrace.http.schemas import Schema

_NAME: Final = text(NAME_BYTES_MAX, 1)
_NEW: Final[dict[str, Schema]] = {
    "password": text(
        PASSWORD_LENGTH_MAX, 1, description="Default: the broker makes one, for this answer only."
    ),
    "mechanisms": listing({"type": "string", "enum": [*HASHES]}, len(HASHES), 1)
    | {"description": "By which the user can log in. Default: all; PLAIN and HTTP Basic need any."},
    "iterations": integer(ITERATIONS_MIN, ITERATIONS_MAX, default=ITERATIONS),
}
_FORCE: Final[Schema] = {
    "type": "boolean",
    "description": "Remove it although no other super user has a password.",
}
_NO_STORE: Final = {"Cache-Control": "no-store"}


class UserOperations:
    """The operations on users."""

    def __init__(self, services: Services) -> None:
        self._users = services.users
        self._super_users = services.users.super_users
        users, named = "/v1/users", {"user": _NAME, "dry_run": DRY_RUN}
        self.operations = [
            Operation("GET", users, "listUsers", "List the users that have passwords.",
                      self._list, PAGE),
            Operation("POST", users, "createUser", "Create a user.",
                      self._create, {"dry_run": DRY_RUN}, fields(("user",), user=_NAME, **_NEW),
                      success=CREATED),
            Operation("PUT", f"{users}/{{user}}/password", "setPassword",
                      "Give a user another password, which closes its connections.",
                      self._set_password, named, fields((), **_NEW), is_body_required=False),
            Operation("DELETE", f"{users}/{{user}}", "deleteUser",
                      "Remove a user, and close its connections.", self._delete,
                      named | {"force": _FORCE}),
        ]  # fmt: skip

    async def _list(self, call: Call) -> Json:
        prefix = call.view.prefix
        names = ({"user": one.removeprefix(prefix)} for one in self._users.names(prefix))
        answer = page([*names], "user", call, "users")
        for one in answer["users"]:
            one["mechanisms"] = dict(self._users.described(prefix + one["user"]))
        return answer

    async def _create(self, call: Call) -> Response:
        name, new = call.body["user"], _new(call.body)
        user = self._user(call, call.body, "createUser", "a key makes no users")
        made = await self._users.create(user, new, is_dry_run=call.is_dry_run)
        return _answer(name, call, new, made, 200 if call.is_dry_run else int(CREATED))

    async def _set_password(self, call: Call) -> Response:
        name, new = call.path["user"], _new(call.body)
        user = self._user(call, call.path, "setPassword", "a key changes no passwords")
        prefix = call.view.prefix
        made = await self._users.set_password(user, new, prefix=prefix, is_dry_run=call.is_dry_run)
        return _answer(name, call, new, made, 200)

    async def _delete(self, call: Call) -> Json:
        name = call.path["user"]
        user = self._user(call, call.path, "deleteUser", "a key removes no users")
        remaining = None
        if not call.query.get("force"):
            step = "repeat it with force=true"
            remaining = self._super_users.remaining(call.session, user, step)
        prefix, is_dry_run = call.view.prefix, call.is_dry_run
        await self._users.delete(user, prefix=prefix, remaining=remaining, is_dry_run=is_dry_run)
        return {"user": name, "dry_run": call.is_dry_run}

    def _user(self, call: Call, given: Json, request: str, refusal: str) -> str:
        """The key of the user that `given` names, for the audit log, too. Raises Unauthorized for
        keys, and for credentials of super users."""
        user: str = call.view.prefix + given["user"]
        given["user"] = user
        refuse_keys(call, refusal)
        self._super_users.require(call.session, f"{USER}:{user}", Right.ALTER, request)
        return user


def _new(body: Json) -> NewPassword:
    mechanisms = tuple(sorted({*body.get("mechanisms", HASHES)}))
    return NewPassword(body.get("password"), mechanisms, body.get("iterations", ITERATIONS))


def _answer(user: str, call: Call, new: NewPassword, made: str | None, status: int) -> Response:
    """`made`: the password that the broker has made."""
    answer: Json = {
        "user": user,
        "mechanisms": dict.fromkeys(new.mechanisms, new.iterations),
        "dry_run": call.is_dry_run,
    }
    shown = {} if made is None else {"password": made}
    return JSONResponse(answer | shown, status, _NO_STORE)
