"""A topic as a table of Spark's catalog: `CREATE TABLE orders USING headrace OPTIONS (...)`.

Spark 4.1 tells a Python data source the options of such a table when it is created; when it is
read, it tells those of `WITH (...)` alone, and the table's columns. So the columns have the options
of the table, in the metadata of the first one.

Invariants: pure. Secrets are not kept: who sees a table's columns sees its options.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import StructType

OF_NEW: Final = "option."
"""Precedes the options of a new table, which Spark tells without it, too."""
_KEPT: Final = "headrace.options"
_SERVERS: Final = frozenset({"bootstrap.servers", "kafka.bootstrap.servers"})
_SECRET: Final = re.compile(
    r"password|secret|jaas|token|oauthbearer\.config|key\.pem|keystore\.key"
)


def options_of_new(raw: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created; None: of something else. Raises OptionInvalid
    if one is a secret."""
    given = {name.lower(): str(value) for name, value in dict(raw).items()}
    options = {
        name.removeprefix(OF_NEW): value for name, value in given.items() if name.startswith(OF_NEW)
    }
    for name in filter(_SECRET.search, sorted(options)):
        raise OptionInvalid(
            f"The option {name} is a secret, which a table of Spark's catalog would show to all who"
            " see its columns. Nothing was created. Leave it out, and give it to each read, after"
            f" the table's name: WITH ('{name}' = '...').",
            option=name,
        )
    return options or None


def schema_of(
    raw: Mapping[str, str], ddl: str, check: Callable[[Mapping[str, str]], object]
) -> str | StructType:
    """The columns `ddl` of a source, and of a new table with its options, if `check` accepts them.
    Raises OptionInvalid."""
    of_table = options_of_new(raw)
    if of_table is None:
        return ddl
    check(of_table)
    from pyspark.sql import types

    # StructType.fromDDL needs a session, which a planner has not.
    kinds = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "boolean": types.BooleanType(),
        "timestamp": types.TimestampType(),
    }
    names = [column.split() for column in ddl.split(", ")]
    columns = [types.StructField(name, kinds[kind]) for name, kind in names]
    return with_options(types.StructType(columns), of_table)


def with_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a new table with its options."""
    kept = columns[0].metadata | {_KEPT: json.dumps(options, sort_keys=True)}
    first, *others = columns
    return type(columns)([type(first)(first.name, first.dataType, metadata=kept), *others])


def options_of_read(raw: Mapping[str, str], columns: StructType) -> Mapping[str, str]:
    """The options of a read of these columns: those of the table, and in place of them those that
    the read has itself. A read that says where its brokers are is of no table."""
    given = {name.lower(): value for name, value in dict(raw).items()}
    kept = columns[0].metadata.get(_KEPT) if len(columns) else None
    if kept is None or _SERVERS & given.keys():
        return raw
    options: dict[str, str] = json.loads(kept)
    return options | given


def check_columns(columns: StructType, now: StructType) -> None:
    """Raises OptionInvalid if a table's columns are no longer those of its topic."""
    if [(one.name, one.dataType) for one in columns] != [(one.name, one.dataType) for one in now]:
        raise OptionInvalid(
            "The schema of the topic's values is another one than when the table was created:"
            " create the table again, or name a version with valueSchemaVersion."
        )
