"""Reads journals of share groups from a broker's HTTP interface.

Invariants: reads only, and from brokers of the cluster that `bootstrap.servers` names. One
connection for each read; a page is bounded by the broker. The client's settings say who it is, as
for Kafka: a password is sent over https, or on this machine.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import quote, urlencode

from headrace.errors import RequestInvalid
from headrace.pipeline.errors import BrokerUnavailable, OptionInvalid, ReadRefused
from headrace.records.cluster_ids import are_of_one_cluster
from headrace.runtime.access import access_of, tls_context

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
RETRY_S: Final = 0.5
COMPACTIONS_MAX: Final = 5
HTTPS: Final = "https://"


class JournalChange(NamedTuple):
    """One event of the records `first` to `last` (inclusive) of a partition in a group."""

    group_name: str | None
    event: str
    first: int
    last: int
    deliveries: int | None = None
    at_ms: int | None = None
    position: int | None = None


COMPACTED: Final = "compacted"
"""The journal begins at `position`: what was before is known as a state only."""


class NotFoundThere(ReadRefused):
    """The broker does not know what was asked for: it may be of an older version."""


@dataclass(frozen=True)
class WebAddress:
    """The HTTP interface of a cluster: `[https://]host:port`, and the client's settings."""

    address: str
    client: dict[str, str] = field(repr=False)
    stall_timeout_ms: int = 60_000

    def opened(self) -> WebConnection:
        """A connection. Raises OptionInvalid."""
        return WebConnection(self)


class WebConnection:
    """One connection to a broker; closed by `with`."""

    def __init__(self, web: WebAddress) -> None:
        self._web = web
        self._is_encrypted = web.address.startswith(HTTPS)
        place = web.address.removeprefix(HTTPS).removeprefix("http://").rstrip("/")
        self._host, _, port = place.rpartition(":")
        self._host = self._host.strip("[]")
        if not self._host or not port.isdigit():
            raise OptionInvalid(
                f"Option http must be [https://]host:port of a broker, not {web.address!r}.",
                option="http",
            )
        try:
            self._headers = self._credentials()
            if self._is_encrypted:
                context = tls_context(web.client)
                self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                    self._host, int(port), timeout=TIMEOUT_S, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(
                    self._host, int(port), timeout=TIMEOUT_S
                )
        except RequestInvalid as error:
            raise OptionInvalid(f"{error}. Nothing was read.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def check_cluster(self, cluster_id: str) -> str:
        """The cluster's id as the broker shows it. Raises OptionInvalid if it is another cluster's,
        BrokerUnavailable, ReadRefused."""
        there = self.cluster_id()
        if not are_of_one_cluster(there, cluster_id):
            raise OptionInvalid(
                f"The HTTP address {self._web.address} belongs to cluster {there}, and"
                f" bootstrap.servers to cluster {cluster_id}. Nothing was read. Set the option http"
                " to a broker of the same cluster.",
                option="http",
            )
        return there

    def objects(self, topic: str, partition: int, offset: int) -> Any:
        """The ledgers of a partition in object storage, from an offset on, as far as one answer
        has them. Raises BrokerUnavailable, ReadRefused, of it NotFoundThere."""
        return self._ask(f"/v1/topics/{quote(topic, safe='')}/objects/{partition}?offset={offset}")

    def cluster_id(self) -> str:
        """The id of the broker's cluster. Raises BrokerUnavailable, ReadRefused."""
        return str(self._ask("/v1/cluster")["cluster_id"])

    def changes(self, topic: str, partition: int) -> list[JournalChange]:
        """All that a partition's journal holds. Raises BrokerUnavailable, ReadRefused.

        A journal that is compacted during the read is read again: otherwise changes between two
        pages could be missing.
        """
        for _ in range(COMPACTIONS_MAX):
            first_position, changes = -1, list[JournalChange]()
            for page in self._pages(topic, partition):
                if first_position not in (-1, page["first_position"]):
                    break
                first_position = page["first_position"]
                changes += map(_change, page["changes"])
            else:
                if first_position > 0:
                    told = JournalChange(None, COMPACTED, 0, -1, None, None, first_position)
                    changes.insert(0, told)
                return changes
        raise BrokerUnavailable(
            f"The journal of {topic}-{partition} was compacted {COMPACTIONS_MAX} times while it was"
            " read. Nothing was returned; start the read again."
        )

    def _pages(self, topic: str, partition: int) -> Iterator[Any]:
        query: dict[str, str] = {}
        path = f"/v1/topics/{quote(topic, safe='')}/journal/{partition}"
        while True:
            page = self._ask(f"{path}?{urlencode(query)}" if query else path)
            yield page
            if "next_page_token" not in page:
                return
            query["page_token"] = page["next_page_token"]

    def _ask(self, path: str) -> Any:
        deadline_s = time.monotonic() + self._web.stall_timeout_ms / 1000
        while True:
            status, text = 0, "no answer"
            try:
                self._connection.request("GET", path, headers=self._headers)
                response = self._connection.getresponse()
                status, data = response.status, response.read(ANSWER_BYTES_MAX)
                if status == http.client.OK:
                    return json.loads(data)
                text = str(json.loads(data).get("detail", text))
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._connection.close()
                status, text = 0, f"{type(error).__name__}: {error}"
            if 400 <= status < 500 and status != http.client.TOO_MANY_REQUESTS:
                refusal = NotFoundThere if status == http.client.NOT_FOUND else ReadRefused
                raise refusal(
                    f"The broker's HTTP interface at {self._web.address} refused {path}: {text}."
                    " Nothing was returned."
                )
            if time.monotonic() >= deadline_s:
                raise BrokerUnavailable(
                    f"The broker's HTTP interface at {self._web.address} did not answer {path}:"
                    f" {text}. Nothing is lost: start the read again. Check the option http."
                )
            time.sleep(RETRY_S)

    def _credentials(self) -> dict[str, str]:
        access = access_of(self._web.client)
        if not access.user or not (self._is_encrypted or _is_loopback(self._host)):
            return {}
        pair = base64.b64encode(f"{access.user}:{access.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _change(one: dict[str, Any]) -> JournalChange:
    return JournalChange(
        one["group"],
        one["event"],
        one["first"],
        one["last"],
        one["deliveries"],
        one["at_ms"],
        one["position"],
    )
