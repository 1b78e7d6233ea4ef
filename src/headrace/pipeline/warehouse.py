"""Where Iceberg tables live: a directory with an SQLite catalog, which Spark and pyiceberg share.

Invariants: the catalog's name is part of its rows, so it is the same on both sides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.pipeline.errors import OptionInvalid

CATALOG = "headrace"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class Warehouse:
    """Where tables live: data files under `folder`, their catalog in one SQLite file.

    Raises OptionInvalid for a URI: a path would silently become a local folder of that name.
    """

    folder: Path
    catalog: str = CATALOG

    def __post_init__(self) -> None:
        _check_is_path(str(self.folder))

    @classmethod
    def at(cls, place: str | Path, catalog: str = CATALOG) -> Warehouse:
        """The warehouse at a path or a `file:` URI. Raises OptionInvalid for other URIs."""
        uri = urlsplit(str(place))
        text = unquote(uri.path) if uri.scheme == "file" and not uri.netloc else str(place)
        _check_is_path(text)  # before a Path is made of it, which joins slashes
        return cls(Path(text), catalog)

    @property
    def catalog_file(self) -> Path:
        """The SQLite file of the JDBC catalog."""
        return self.folder / "catalog.db"

    @property
    def is_there(self) -> bool:
        """Whether the catalog exists: opening it creates it."""
        return self.catalog_file.is_file()

    def spark_settings(self) -> dict[str, str]:
        """Spark's settings of the catalog."""
        self.folder.mkdir(parents=True, exist_ok=True)
        prefix = f"spark.sql.catalog.{self.catalog}"
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.type": "jdbc",
            # Several processes share the file: wait for its lock instead of failing.
            f"{prefix}.uri": f"jdbc:sqlite:{self.catalog_file.resolve()}?busy_timeout=30000",
            f"{prefix}.jdbc.schema-version": "V1",
            f"{prefix}.warehouse": f"file://{self.folder.resolve()}",
            f"{prefix}.cache-enabled": "false",
        }


def _check_is_path(text: str) -> None:
    if _SCHEME.match(text):
        raise OptionInvalid(
            f"The warehouse {text!r} is a URI, but a warehouse is a directory to which this machine"
            " and all workers can write: its catalog is an SQLite file. Nothing was written. Give a"
            " path, for example of a mounted file system."
        )
