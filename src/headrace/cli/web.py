"""Calls of a broker's HTTP interface.

Invariants: the brokers called belong to the cluster that --bootstrap names. A problem returned by a
broker becomes a CommandFailed with its next step. One connection per call: the broker that is
called asks the others.
"""

from __future__ import annotations

import base64
import http.client
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import click

from headrace.broker.security.plain import PLAIN
from headrace.cli.config_requests import BROKER, Resource, broker_addresses, describe
from headrace.cli.failures import CONFLICT, FAILED, NOT_FOUND, UNREACHABLE, USAGE, CommandFailed
from headrace.cli.session import CliSession, host_and_port
from headrace.errors import RequestInvalid
from headrace.metadata.endpoints import ENCRYPTED, HTTP_ADVERTISED
from headrace.records.cluster_ids import are_of_one_cluster
from headrace.runtime.access import tls_context
from headrace.runtime.scram import HASHES
from headrace.server.settings import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HTTPS: Final = "https://"
NAMES_HEADER, KEYS = "Headrace-Names", "keys"
"""Asks for names as they are stored: `names` and `output` write them as operators do."""
HTTP_PORT: Final = 9180
HTTP_PROTOCOL: Final = "headrace.http.security.protocol"
CLUSTER_PATH: Final = "/v1/cluster"
PAGE_ITEMS_MAX: Final = 1_000
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
_EXIT_CODES: Final = {400: USAGE, 404: NOT_FOUND, 409: CONFLICT, 503: UNREACHABLE}


def _keep_http(ctx: click.Context, _param: object, value: str | None) -> None:
    if value is not None and isinstance(ctx.obj, CliSession):
        ctx.obj.given_http = value


HTTP = click.option(
    "--http",
    metavar="[https://]HOST:PORT",
    envvar="HEADRACE_HTTP",
    show_envvar=True,
    expose_value=False,
    callback=_keep_http,
    help="HTTP address of a broker of this cluster. Default: as registered by its brokers.",
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Count what would change; change nothing.")


def require_none_failed(answer: dict[str, Any], effect: str) -> None:
    """For responses about a whole topic: raises CommandFailed if some partition is missing."""
    failed = answer.get("failed", [])
    if failed:
        numbers = ", ".join(str(one["partition"]) for one in failed)
        error = failed[0]["error"]
        raise CommandFailed(
            f"partitions {numbers} failed: {effect} ({error['detail']})",
            str(error["next_step"]).capitalize(),
            FAILED,
        )


def path_of(*parts: str, dry_run: bool = False) -> str:
    """A path under /v1, with quoted parts."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts) + "?dry_run=true" * dry_run


def http_address(session: CliSession) -> str:
    """The HTTP address of a broker: as given, else as registered by the brokers that `bootstrap`
    names. Raises CommandFailed."""
    found = session.http
    if found is None:
        found = session.http = _registered_address(session)
    return found


def _registered_address(session: CliSession) -> str:
    failure: CommandFailed | None = None
    unlikely = ""
    for number, kafka in broker_addresses(session).items():
        try:
            settings = describe(session, Resource(BROKER, str(number)))
        except CommandFailed as error:  # this broker is down, and others are not
            failure = error
            failure.next_step = failure.next_step or (
                "Or name the HTTP address of a broker with --http HOST:PORT, or in the context"
            )
            continue
        values = {one.name: one.value for one in settings}
        found = values.get(HTTP_ADVERTISED)
        if found:
            first, *more = found.split(",")
            addresses = [web_address(first, values.get(HTTP_PROTOCOL)), *more]
            is_local = is_loopback(host_and_port(kafka)[0])
            address = nearest(addresses, is_local=is_local)
            if is_local or not is_on_loopback(address):
                return address
            unlikely = unlikely or address  # it leads to this machine, and that broker does not
    if unlikely:
        return unlikely
    raise failure or CommandFailed(
        f"the brokers at {session.bootstrap} do not report an HTTP address; nothing was changed",
        "Specify the HTTP address of one of them with --http HOST:PORT",
        UNREACHABLE,
    )


def web_address(address: str, security: str | None) -> str:
    """The address of a listener with this protocol."""
    return f"{HTTPS}{address}" if security in ENCRYPTED else address


def nearest(addresses: Sequence[str], *, is_local: bool) -> str:
    """The first address of a broker that suits: on loopback if the broker is known to run on this
    machine, where that listener may ask for no login, else one that is not. The first of all if
    none suits."""
    suiting = (one for one in addresses if is_on_loopback(one) == is_local)
    return next(suiting, addresses[0])


def is_on_loopback(address: str) -> bool:
    """Whether it leads to the machine that uses it. Raises CommandFailed (usage)."""
    return is_loopback(_place(address)[0])


def _place(address: str) -> tuple[str, int]:
    """Raises CommandFailed (usage)."""
    return host_and_port(address.removeprefix(HTTPS).removeprefix("http://"), HTTP_PORT)


class Web:
    """The HTTP interface of the cluster that the session names: one broker answers for all.

    Nothing is sent to a broker of another cluster: before the first request, its cluster id is
    compared with that of the brokers at `bootstrap`.
    """

    def __init__(self, session: CliSession, address: str | None = None) -> None:
        """`address`: of one broker; by default that of a broker which the session names."""
        self._session = session
        self._address = address or http_address(session)
        self._timeout_s = session.timeout_s

    def ask(self, method: str, path: str, body: Any = None, *, wait_s: float = 0) -> Any:
        """Return a broker's response; `wait_s`: how long it may wait. Raises CommandFailed."""
        status, text = self.fetch(method, path, body, wait_s=wait_s)
        answer = _decoded(text)
        if status < 400:
            return answer
        raise CommandFailed(
            str(
                answer.get(
                    "detail", f"the broker at {self._address} responded with status {status}"
                )
            ),
            str(answer.get("next_step", "")).capitalize(),
            _EXIT_CODES.get(status, FAILED),
        )

    def ask_pages(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any],
        wait_s: float = 0,
    ) -> Iterator[Any]:
        """Yield a broker's response, page by page if it has pages. Raises CommandFailed."""
        page = {name: value for name, value in query.items() if value is not None}
        while True:
            parameters = f"?{urlencode(page)}" if page else ""
            answer = self.ask(method, f"{path}{parameters}", body, wait_s=wait_s)
            yield answer
            if "next_page_token" not in answer:
                return
            page["page_token"] = answer["next_page_token"]

    def probe(self, path: str) -> tuple[int, Any]:
        """(status, response) of this broker, whatever its cluster: for paths without effects.
        Raises CommandFailed."""
        status, text = self._fetch("GET", path, None, 0)
        return status, _decoded(text)

    def _require_same_cluster(self) -> None:
        """Raises CommandFailed."""
        address, expected = self._address, self._cluster_named()
        status, text = self._fetch("GET", CLUSTER_PATH, None, 0)
        answer = _decoded(text)
        found = answer.get("cluster_id")
        if status >= 400 or found is None:
            raise CommandFailed(
                f"the broker at {address} does not say which cluster it belongs to"
                f" ({answer.get('detail', f'status {status}')}): nothing was sent to it",
                str(answer.get("next_step", "Specify another broker with --http")).capitalize(),
                _EXIT_CODES.get(status, FAILED),
            )
        if not are_of_one_cluster(found, expected):
            raise CommandFailed(
                f"the HTTP address {address} belongs to cluster {found}, and"
                f" {self._session.bootstrap} to cluster {expected}: nothing was changed",
                "Specify brokers of one cluster with --bootstrap and --http. If no --http was"
                " given, the brokers register an HTTP address that another machine cannot reach",
                USAGE,
            )
        self._session.same_cluster.add(address)

    def _cluster_named(self) -> str:
        """The id of the cluster that --bootstrap names. Raises CommandFailed."""
        try:
            return self._session.identify()
        except CommandFailed as failure:
            if self._session.is_default and failure.exit_code == UNREACHABLE:
                failure.next_step = (
                    f"--http {self._address} alone does not name a cluster: specify a Kafka address"
                    f" of the same brokers with --bootstrap, whose default is"
                    f" {self._session.bootstrap}"
                )
            raise

    def _next_step(self, error: Exception) -> str:
        """What to do when the address does not respond."""
        if isinstance(error, ConnectionResetError) and not self._is_encrypted():
            return f"If the broker speaks TLS there, name it {HTTPS}{self._address}"
        if self._session.given_http is None and is_on_loopback(self._address):
            return (
                "Check that a broker is running there. If it runs on another machine, let it"
                " register an address that others reach (headrace serve --http HOST:PORT), or"
                " specify the HTTP address of another broker with --http HOST:PORT"
            )
        return (
            "Check that a broker is running there, or specify another one's HTTP address with"
            " --http HOST:PORT"
        )

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Raises CommandFailed."""
        host, port = _place(self._address)
        if not self._is_encrypted():
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        try:
            context = tls_context(self._session.client_config)
        except RequestInvalid as error:
            raise CommandFailed(f"{error}; nothing was sent", "", USAGE) from error
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)

    def _is_encrypted(self) -> bool:
        return self._address.startswith(HTTPS)

    def _credentials(self) -> dict[str, str]:
        """The header that authenticates the user of the client's settings. A password is sent over
        https, or on this machine."""
        access = self._session.access
        if access.mechanism.upper() not in {PLAIN, *HASHES} or not access.user:
            return {}
        if not self._is_encrypted() and not is_on_loopback(self._address):
            return {}
        pair = base64.b64encode(f"{access.user}:{access.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    def fetch(
        self, method: str, path: str, body: Any = None, *, wait_s: float = 0
    ) -> tuple[int, bytes]:
        """The status and the body of any response, once the broker's cluster is known to be the
        session's. Raises CommandFailed."""
        if self._address not in self._session.same_cluster:
            self._require_same_cluster()
        return self._fetch(method, path, body, wait_s)

    def _fetch(self, method: str, path: str, body: Any, wait_s: float) -> tuple[int, bytes]:
        address = self._address
        connection = self._connection(self._timeout_s + wait_s)
        data = None if body is None else json.dumps(body)
        headers = {NAMES_HEADER: KEYS, **self._credentials()}
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise CommandFailed(
                f"the broker's HTTP interface at {address} did not respond ({error})",
                self._next_step(error),
                UNREACHABLE,
            ) from None
        finally:
            connection.close()


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"detail": text.decode(errors="replace").strip()[:200]}
