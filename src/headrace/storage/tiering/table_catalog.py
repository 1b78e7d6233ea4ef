"""Where the tables of topics are, as a broker's settings name it, and their catalog.

Invariants: files in a directory, or in S3; the catalog in an SQLite file of a directory, or a REST
server. Secrets come from the environment, and are in no message. A request to a REST catalog fails
if the server is silent for too long; one that sends its answer slowly is waited for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from headrace.errors import RequestInvalid
from headrace.records.tenant_names import name_in, prefix_of, tenant_of

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session

CATALOG: Final = "headrace"
NAMESPACE: Final = "headrace"
"""Of the tables that topics have by default. Do not change: stored."""
TENANT_NAMESPACE: Final = "tenant_"
"""And the tenant's name: of the tables of its topics. Do not change: stored."""
REST: Final = "rest:"
LOGIN: Final = {
    "token": "HEADRACE_CATALOG_TOKEN",
    "credential": "HEADRACE_CATALOG_CREDENTIAL",
    "oauth2-server-uri": "HEADRACE_CATALOG_OAUTH2_URI",
    "scope": "HEADRACE_CATALOG_SCOPE",
}
"""Properties of a REST catalog, and the variables that hold them."""
KEEPS_TAGGED: Final = "headrace.tags-keep-files"
"""The property by which who runs a REST catalog says that its maintenance keeps the files of tagged
snapshots: of a table, or of the catalog's configuration for all. Do not change: stored."""
CONNECT_S: Final = 5
ANSWER_S: Final = 30
"""How long a request waits for a connection, and for the next bytes. Without them, a server that
has hung would hold up an archive, or a broker's work on tables, without end."""
_S3: Final = "s3://"
_FILE: Final = "file://"
_CATALOG_FILE: Final = "catalog.db"


def table_of(topic: str) -> tuple[str, str]:
    """Namespace and name of the table of its own that a topic has by default."""
    tenant = tenant_of(topic)
    return TENANT_NAMESPACE + tenant if tenant else NAMESPACE, name_in(topic)


def topic_of(namespace: str, name: str) -> str | None:
    """The topic that has this table by default; None if no topic has it."""
    tenant = namespace.removeprefix(TENANT_NAMESPACE) if namespace != NAMESPACE else ""
    topic = prefix_of(tenant) + name
    return topic if table_of(topic) == (namespace, name) else None


def s3_properties(region: str) -> dict[str, str]:
    """How S3 is reached, from the variables of AWS's own clients; `region` names its property."""
    found: dict[str, str] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:  # not Amazon's: buckets have no host names of their own
        found |= {"s3.endpoint": endpoint, "s3.path-style-access": "true"}
    place = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return {**found, region: place} if place else found


def python_s3_properties() -> dict[str, str]:
    """The same for pyiceberg, whose requests do not wait for a silent server without end."""
    limits = {"s3.connect-timeout": str(CONNECT_S), "s3.request-timeout": str(ANSWER_S)}
    return s3_properties("s3.region") | limits


def java_rest_limits() -> dict[str, str]:
    """Iceberg's properties of the same limits, for Spark's requests to a REST catalog."""
    return {
        "rest.client.connection-timeout-ms": str(CONNECT_S * 1000),
        "rest.client.socket-timeout-ms": str(ANSWER_S * 1000),
    }


def rest_catalog(name: str, properties: dict[str, str]) -> Any:
    """A REST catalog of pyiceberg. Raises what that raises, and RequestException."""
    from pyiceberg.catalog.rest import RestCatalog

    class Impatient(RestCatalog):
        """The library's own waits for an answer without end."""

        def _config_headers(self, session: Session) -> None:
            _limit(session)
            super()._config_headers(session)

    return Impatient(name, **properties)


def rest_properties(url: str, warehouse: str) -> dict[str, str]:
    """The properties of pyiceberg's REST catalog, with secrets: not to be shown."""
    login = {name: os.environ.get(variable, "") for name, variable in LOGIN.items()}
    named = {"warehouse": warehouse} if warehouse else {}
    given = {name: value for name, value in login.items() if value}
    return {"uri": url, **named, **given, **python_s3_properties()}


class TableCatalog:
    """The catalog of one warehouse. Not for several threads before it is opened."""

    def __init__(self, tables: str, catalog: str = "") -> None:
        """`tables`: a directory, s3://BUCKET/PREFIX, or what a REST catalog calls the warehouse;
        `catalog`: rest:URL, or the directory of an SQLite file, by default `tables`.

        Raises RequestInvalid.
        """
        self.shown = f"{tables} of the catalog {catalog}" if catalog else tables
        self.rest = _checked_url(catalog) if catalog.startswith(REST) else ""
        self._is_in_s3 = tables.startswith(_S3)
        self._tables = tables.rstrip("/") if self._is_in_s3 else tables
        self.folder: Path | None = None
        """Of the SQLite file."""
        self.files: Path | None = None
        """Of the tables, if they are in a directory."""
        if self._is_in_s3 and not catalog:
            raise RequestInvalid(
                f"--tables {tables} needs the catalog that says which files are a table: give"
                " --tables-catalog what `headrace pipeline tables` has as --catalog, rest:URL or a"
                " directory"
            )
        if not self.rest:
            self.folder = _directory(catalog, "--tables-catalog") if catalog else None
        if not self.rest and not self._is_in_s3:
            self.files = _directory(tables, "--tables")
            self.folder = self.folder or self.files
            self._tables = f"{_FILE}{self.files}"
        self._opened: Any = None

    @property
    def catalog_file(self) -> Path | None:
        """The SQLite file, if there is one."""
        return self.folder / _CATALOG_FILE if self.folder is not None else None

    def opened(self) -> Any:
        """The catalog; None if there is none yet. Raises what pyiceberg raises."""
        file = self.catalog_file
        if file is not None and not file.is_file():
            return None
        if self._opened is None:
            if file is None:
                given = rest_properties(self.rest, self._tables)
                self._opened = rest_catalog(CATALOG, given)
            else:
                self._opened = self._open_sqlite(file)
        return self._opened

    def why_not(self, table: Any) -> str | None:
        """Why files of a table may not become the only copy of records."""
        location = str(table.location())
        if not self.holds(location):
            return f"it is in {location}, which --tables and --tables-catalog do not name"
        own = table.properties.get(KEEPS_TAGGED)
        said = self.opened().properties.get(KEEPS_TAGGED) if self.rest and own is None else own
        if self.rest and str(said).lower() != "true":
            return (
                f"its property {KEEPS_TAGGED} is not true: set it if all maintenance of the catalog"
                f" {self.rest} keeps the files of snapshots that have tags"
            )
        return None

    def holds(self, location: str) -> bool:
        """Whether a table or file is where this warehouse has its own."""
        if self._is_in_s3:
            return location.startswith(f"{self._tables}/")
        if self.files is not None:
            path = location.removeprefix(_FILE).removeprefix("file:")
            return "://" not in path and Path(path).resolve().is_relative_to(self.files)
        return location.startswith(_S3)  # what the catalog calls by a name is its to place

    def _open_sqlite(self, file: Path) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        given = {"uri": f"sqlite:///{file}?timeout=30", "warehouse": self._tables}
        return SqlCatalog(CATALOG, **given, **(python_s3_properties() if self._is_in_s3 else {}))


def _limit(session: Session) -> None:
    """Limit how long the session's requests wait, whatever adapter sends them: that which signs
    for Amazon's catalogs is mounted later, and before all others."""
    send = session.send

    def bounded(request: PreparedRequest, **named: Any) -> Response:
        return send(request, **{**named, "timeout": (CONNECT_S, ANSWER_S)})

    session.send = bounded  # type: ignore[method-assign]  # of this session alone


def _checked_url(catalog: str) -> str:
    url = catalog.removeprefix(REST).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise RequestInvalid(
            "--tables-catalog rest: needs an http:// or https:// address: give it what `headrace"
            " pipeline tables` has as --catalog"
        )
    if "@" in parts.netloc or parts.query:
        raise RequestInvalid(
            "the URL of --tables-catalog must hold no login, which others on this machine can read:"
            f" set {LOGIN['token']}, or {LOGIN['credential']}=ID:SECRET, in the environment"
        )
    return url


def _directory(place: str, option: str) -> Path:
    path = Path(place.removeprefix(_FILE))
    if "://" in str(place).removeprefix(_FILE) or not path.is_dir():
        raise RequestInvalid(
            f"{option} {place} is not a directory: create it, and give it to `headrace pipeline"
            f" tables`, too. Tables in S3 are s3://BUCKET/PREFIX, REST catalogs rest:URL"
        )
    return path.resolve()
