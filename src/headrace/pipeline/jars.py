"""The jars that Spark does not ship: Iceberg's runtime, SQLite's JDBC driver, and Amazon's client
of S3 for warehouses that are no directory.

Invariants: coordinates and hashes only; `headrace.java.jars` fetches and verifies them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.java.jars import Jar

if TYPE_CHECKING:
    from headrace.pipeline.warehouse import Warehouse

ICEBERG = Jar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
SQLITE = Jar(
    "org.xerial",
    "sqlite-jdbc",
    "3.50.3.0",
    "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
)
AWS = Jar(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    "1.12.0",
    "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
)
PINNED = (ICEBERG, SQLITE)


def jars_for(warehouse: Warehouse | None) -> tuple[Jar, ...]:
    """What a session with this warehouse needs: the client of S3 has 69 MB."""
    return (*PINNED, AWS) if warehouse is not None and warehouse.is_remote else PINNED
