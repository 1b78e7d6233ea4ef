"""How a command runs a job: its session, on this machine, a cluster, or through Spark Connect.

Invariants: a job takes a session as it is and uses public methods of PySpark only, so it does not
see where it runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline import errors
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.session import make_session

if TYPE_CHECKING:
    from headrace.pipeline.session import SessionConfig

REMOTE: Final = "sc://"
_OURS: Final = re.compile(r"headrace\.pipeline\.errors\.(\w+): (.+)")


def open_session(config: SessionConfig) -> Any:
    """A session on `config.master`; `sc://HOST:PORT` is Spark Connect.

    A Spark Connect server has its own catalogs. Raises OptionInvalid if its client is missing.
    """
    if not config.master.startswith(REMOTE):
        return make_session(config)
    from pyspark.errors import PySparkImportError
    from pyspark.sql import SparkSession

    from headrace.pipeline.source import HeadraceDataSource

    try:
        builder: Any = SparkSession.builder
        spark = builder.remote(config.master).getOrCreate()
    except (ImportError, PySparkImportError) as error:
        raise OptionInvalid(
            "Spark Connect needs packages that are not installed: pip install 'pyspark[connect]'."
        ) from error
    spark.dataSource.register(HeadraceDataSource)
    return spark


def cause_of(error: BaseException) -> str | None:
    """The message of our own error that Spark passes on as text, or None."""
    found = [
        match
        for match in _OURS.finditer(str(error))
        if isinstance(getattr(errors, match.group(1), None), type)
    ]
    return found[-1].group(2).strip() if found else None
