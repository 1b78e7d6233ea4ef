"""Tables whose files are in S3, as a broker reads them; a catalog that does not answer."""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from requests import RequestException
from tests.s3_server import BUCKET, SECRET_KEY, Proxy, S3Server
from tests.unit.storage.test_iceberg_tables import OWNER, SCHEMA, TOPIC, Lake, place, protected

from headrace.errors import StorageUnavailable
from headrace.pipeline.catalog import TableName, loaded, open_catalog
from headrace.pipeline.errors import CatalogUnavailable
from headrace.pipeline.warehouse import Warehouse
from headrace.storage.ledger import LedgerId
from headrace.storage.tiering import table_catalog
from headrace.storage.tiering.iceberg_tables import IcebergTables
from headrace.storage.tiering.table_catalog import KEEPS_TAGGED, TableCatalog, s3_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("pyarrow")
WAREHOUSE = f"s3://{BUCKET}/lake"


@pytest.fixture
def server(tmp_path, monkeypatch):
    found = S3Server(tmp_path / "server").start()
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    yield found
    found.stop()


class S3Lake(Lake):
    """A warehouse in S3, whose catalog is a file."""

    def __init__(self, folder: Any) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        folder.mkdir()
        uri = f"sqlite:///{folder}/catalog.db?timeout=30"
        given = {"uri": uri, "warehouse": WAREHOUSE, **s3_properties("s3.region")}
        self.catalog = SqlCatalog("headrace", **given)
        self.catalog.create_namespace("headrace")
        self.create()


@pytest.fixture
def lake(server, tmp_path):
    found = S3Lake(tmp_path / "catalog")
    yield found
    found.catalog.close()


@pytest.fixture
def tables(lake, tmp_path):
    return IcebergTables.open(WAREHOUSE, OWNER, str(tmp_path / "catalog"))


async def test_a_ledgers_files_in_s3_are_tagged_and_outlive_expiry(lake, tables, server):
    lake.append(0, 10)
    lake.append(10, 20)
    found = await tables.protect(place(7), 12, 20)
    (file,) = found.files
    assert file.path.startswith(f"{WAREHOUSE}/")
    assert [f"headrace-{OWNER}-0-20-0000000000000007"] == lake.tags()
    lake.table.delete("partition = 0")
    lake.append(0, 20)
    lake.expire()
    assert await tables.protect(place(7), 12, 20) == found
    stored = server.root / file.path.removeprefix("s3://")
    assert stored.stat().st_size == file.size_bytes
    await tables.release(TOPIC, LedgerId(7))
    assert await protected(tables) == []


async def test_a_file_that_cannot_be_had_protects_nothing(lake, tables, server):
    lake.append(0, 10)
    (path,) = server.root.rglob("*.parquet")
    data = path.read_bytes()
    for harm in (path.unlink, lambda: path.write_bytes(data[:-1])):
        harm()
        with pytest.raises(Exception, match="only the table has") as caught:
            await tables.protect(place(7), 0, 10)
        assert SECRET_KEY not in str(caught.value)
        path.write_bytes(data)
    assert await tables.protect(place(7), 0, 10) is not None


async def test_a_table_in_another_place_than_the_one_named_is_refused(lake, tables):
    for other in (f"s3://{BUCKET}/lake-of-others/orders", f"s3://{BUCKET}/elsewhere"):
        lake.catalog.drop_table(("headrace", TOPIC))
        lake.catalog.create_table(("headrace", TOPIC), SCHEMA, location=other)
        lake.append(0, 10)
        for call in (tables.settled(TOPIC), tables.protect(place(7), 0, 10)):
            with pytest.raises(StorageUnavailable, match="do not name"):
                await call
    assert lake.tags() == []


async def test_s3_away_is_an_error_and_back_is_none(lake, tables, server):
    lake.append(0, 10)
    server.stop()
    with pytest.raises(StorageUnavailable, match="cannot be used now"):
        await tables.protect(place(7), 0, 10)
    server.start()
    assert await tables.protect(place(7), 0, 10) is not None


async def test_a_catalog_that_never_answers_is_an_error_in_bounded_time(monkeypatch):
    monkeypatch.setattr(table_catalog, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = Proxy(listening.getsockname()[1])
        proxy.stall()
        for credential in ("", "id:secret-of-nobody"):  # which is exchanged for a token first
            monkeypatch.setenv("HEADRACE_CATALOG_CREDENTIAL", credential)
            url = f"http://127.0.0.1:{proxy.port}"
            monkeypatch.setenv("HEADRACE_CATALOG_OAUTH2_URI", f"{url}/v1/oauth/tokens")
            tables = IcebergTables.open("lake", OWNER, f"rest:{url}")
            for call in (tables.settled(TOPIC), tables.protected([])):
                with pytest.raises(StorageUnavailable, match="cannot be used now") as caught:
                    await call
                assert "secret-of-nobody" not in str(caught.value)
        proxy.close()


@pytest.mark.timeout(120)  # without a bound of its own it never ends
@pytest.mark.parametrize("is_signed", [False, True])
def test_a_request_to_a_catalog_ends_in_bounded_time_however_it_is_signed_and_whoever_asks(
    monkeypatch, tmp_path, is_signed
):
    monkeypatch.setattr(table_catalog, "ANSWER_S", 0.2)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    for module in signing_modules():
        monkeypatch.setitem(sys.modules, module.__name__, module)
    catalog = RestCatalog({"rest.sigv4-enabled": "true"} if is_signed else {})
    with served(catalog, monkeypatch) as url:
        of_broker, of_pipeline = TableCatalog("lake", url), Warehouse.at("lake", kept_in=url)
        asked, opened = of_broker.opened(), open_catalog(of_pipeline)
        assert len(asked.list_tables("headrace")) == len(opened.list_tables("headrace")) == 0
        assert catalog.signatures == (2 if is_signed else 0)
        catalog.answers.clear()
        with pytest.raises(RequestException, match="timed out"):
            asked.list_tables("headrace")
        with pytest.raises(CatalogUnavailable, match="does not answer"):
            loaded(opened, TableName.of_topic(TOPIC))
        with pytest.raises(CatalogUnavailable, match="does not answer"):
            open_catalog(of_pipeline)


def signing_modules() -> list[ModuleType]:
    """What signs for Amazon's catalogs, as far as pyiceberg uses it: not installed here."""

    class Signer:
        def __init__(self, *_: Any) -> None:
            pass

        def add_auth(self, request: SimpleNamespace) -> None:
            request.headers["Authorization"] = "AWS4-HMAC-SHA256 of nobody"

    class Session:
        region_name = "us-east-1"

        def __init__(self, **_: Any) -> None:
            pass

        def get_credentials(self) -> Any:
            return SimpleNamespace(get_frozen_credentials=lambda: None)

    found = []
    for name, parts in {
        "boto3": {"Session": Session},
        "botocore": {},
        "botocore.auth": {"SigV4Auth": Signer},
        "botocore.awsrequest": {"AWSRequest": SimpleNamespace},
    }.items():
        module = ModuleType(name)
        for part, value in parts.items():
            setattr(module, part, value)
        found.append(module)
    return found


EMPTY: dict[str, Any] = {"identifiers": [], "namespaces": []}
"""Lists of tables, or of namespaces."""


class RestCatalog:
    """The login of a REST catalog without tables, and its configuration."""

    def __init__(self, config: dict[str, str]) -> None:
        self.config = config
        self.answers = threading.Event()
        self.answers.set()
        self.signatures = 0
        self.logins = 0
        self.valid = 0
        """The number of the login whose token is valid."""

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, Any]]:
        self.answers.wait()
        if authorization.startswith("AWS4-"):
            self.signatures += 1
            return 200, EMPTY
        if path.startswith("/v1/config"):
            return 200, {"defaults": {}, "overrides": self.config}
        if path == "/v1/oauth/tokens":
            self.logins = self.valid = self.logins + 1
            return 200, {"access_token": f"token-{self.logins}", "token_type": "bearer"}
        if authorization != f"Bearer token-{self.valid}":
            error = {"message": "expired", "type": "NotAuthorizedException", "code": 401}
            return 401, {"error": error}
        return 200, EMPTY


@contextmanager
def served(catalog: RestCatalog, monkeypatch: Any) -> Iterator[str]:
    """What --tables-catalog takes; its login is in the environment."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            code, body = catalog.answer(self.path, self.headers.get("Authorization", ""))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(BrokenPipeError):  # who asked has waited long enough
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("HEADRACE_CATALOG_CREDENTIAL", "id:secret")
    monkeypatch.setenv("HEADRACE_CATALOG_OAUTH2_URI", f"{url}/v1/oauth/tokens")
    try:
        yield f"rest:{url}"
    finally:
        catalog.answers.set()
        server.shutdown()
        thread.join()
        server.server_close()


async def test_an_expired_login_is_renewed(monkeypatch):
    catalog = RestCatalog({})
    with served(catalog, monkeypatch) as url:
        tables = IcebergTables.open("lake", OWNER, url)
        assert await protected(tables) == []
        before, catalog.valid = catalog.logins, 0
        assert await protected(tables) == []
        assert catalog.logins > before


@pytest.mark.parametrize(("config", "properties", "is_refused"), [
    ({}, {}, True), ({}, {KEEPS_TAGGED: "false"}, True), ({}, {KEEPS_TAGGED: "true"}, False),
    ({KEEPS_TAGGED: "true"}, {}, False), ({KEEPS_TAGGED: "true"}, {KEEPS_TAGGED: "false"}, True),
])  # fmt: skip
def test_a_rest_catalogs_table_has_the_only_copy_if_it_or_the_catalog_says_that_tags_keep_files(
    monkeypatch, config, properties, is_refused
):
    with served(RestCatalog(config), monkeypatch) as url:
        catalog = TableCatalog("lake", url)
        table = SimpleNamespace(location=lambda: "s3://any/where", properties=properties)
        reason = catalog.why_not(table)
        assert (reason is not None and KEEPS_TAGGED in reason) == is_refused
        table = SimpleNamespace(location=lambda: "file:///here", properties={KEEPS_TAGGED: "true"})
        assert "do not name" in str(catalog.why_not(table))
