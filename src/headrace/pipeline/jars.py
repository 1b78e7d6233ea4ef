"""The two jars that Spark does not ship: Iceberg's runtime and SQLite's JDBC driver.

Invariants: coordinates and hashes only; `headrace.java.jars` fetches and verifies them.
"""

from __future__ import annotations

from headrace.java.jars import Jar

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
PINNED = (ICEBERG, SQLITE)
