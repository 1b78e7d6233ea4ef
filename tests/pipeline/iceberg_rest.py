"""REST catalogs over a bucket of the tests' S3 server: Iceberg's own server, and Nessie."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from tests.integration.foreign import pinned_jars
from tests.pipeline.engines import newer_java
from tests.waiting import wait_until

from headrace.dev_cluster.ports import free_port
from headrace.java.installation import find_java_home
from headrace.java.jars import Jar, JarUnavailable, cache_folder, ensure_jars
from headrace.pipeline.jars import AWS, SQLITE

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
NESSIE = Jar(
    "org.projectnessie.nessie",
    "nessie-quarkus",
    "0.99.0",
    "ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417",
    "runner",
)
"""The newest at Maven Central: 245 MB."""


@contextmanager
def iceberg_rest(
    store: dict[str, str], location: str, log: Path, *, lends_keys: bool = False
) -> Iterator[int]:
    """Its port; `store` is the environment of a client of the S3 server, whose keys the catalog may
    lend to its clients."""
    port = free_port()
    jars = [*pinned_jars(HERE / "iceberg_rest.jars.txt"), *ensure_jars([SQLITE, AWS])]
    others = Path(pyspark.__file__).parent / "jars" / "*"
    command = [
        str(find_java_home(cache_folder()) / "bin" / "java"),
        *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-cp", os.pathsep.join(map(str, [*jars, others]))),
        "org.apache.iceberg.rest.RESTCatalogServer",
    ]
    own = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": location,
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": store["AWS_ENDPOINT_URL"],
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        # The Apache client of 1.11 is not in the bundle of 1.12.
        "CATALOG_HTTP__CLIENT_TYPE": "urlconnection",
    }
    if lends_keys:
        own["CATALOG_INCLUDE__CREDENTIALS"] = "true"
        own["CATALOG_S3_ACCESS__KEY__ID"] = store["AWS_ACCESS_KEY_ID"]
        own["CATALOG_S3_SECRET__ACCESS__KEY"] = store["AWS_SECRET_ACCESS_KEY"]
    with _running(command, {**store, **own}, port, log):
        yield port


@contextmanager
def nessie(store: dict[str, str], location: str, log: Path) -> Iterator[int]:
    """Its port; its warehouse is `lake`, and its Iceberg REST is under /iceberg."""
    java = newer_java(21, f"Nessie {NESSIE.revision}")
    port, management = free_port(), free_port()
    options = "nessie.catalog.service.s3.default-options"
    own = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": str(management),
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "lake",
        "nessie.catalog.warehouses.lake.location": location,
        f"{options}.region": store["AWS_REGION"],
        f"{options}.endpoint": store["AWS_ENDPOINT_URL"],
        f"{options}.path-style-access": "true",
        f"{options}.access-key": "urn:nessie-secret:quarkus:keys",
        "keys.name": store["AWS_ACCESS_KEY_ID"],
        "keys.secret": store["AWS_SECRET_ACCESS_KEY"],
    }
    try:
        (jar,) = ensure_jars([NESSIE])
    except JarUnavailable as error:
        pytest.skip(str(error))
    command = [
        str(java),
        *("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(f"-D{name}={value}" for name, value in own.items()),
        *("-jar", str(jar)),
    ]
    with _running(command, {}, port, log):
        yield port


@contextmanager
def _running(
    command: list[str], environment: dict[str, str], port: int, log: Path
) -> Iterator[None]:
    """A server, once it takes connections."""
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=out, stderr=out, cwd=log.parent
        ) as it,
    ):
        try:

            def answers() -> bool:
                assert it.poll() is None, log.read_text()[-2000:]
                with socket.socket() as client:
                    return client.connect_ex(("127.0.0.1", port)) == 0

            wait_until(answers, timeout_s=300)
            yield
        finally:
            it.kill()
