"""Iceberg's own REST catalog server, over a bucket of the tests' S3 server."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from tests.integration.foreign import pinned_jars
from tests.waiting import wait_until

from headrace.dev_cluster.ports import free_port
from headrace.java.installation import find_java_home
from headrace.java.jars import cache_folder, ensure_jars
from headrace.pipeline.jars import AWS, SQLITE

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@contextmanager
def iceberg_rest(store: dict[str, str], location: str, log: Path) -> Iterator[int]:
    """Its port; `store` is the environment of a client of the S3 server."""
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
    with (
        log.open("w") as out,
        subprocess.Popen(command, env={**os.environ, **store, **own}, stdout=out, stderr=out) as it,
    ):
        try:

            def answers() -> bool:
                assert it.poll() is None, log.read_text()[-2000:]
                with socket.socket() as client:
                    return client.connect_ex(("127.0.0.1", port)) == 0

            wait_until(answers, timeout_s=120)
            yield port
        finally:
            it.kill()
