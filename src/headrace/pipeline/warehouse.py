"""Where Iceberg tables live: a directory or an S3 bucket, and the catalog that knows them.

Invariants: Spark and pyiceberg get the same place and the same catalog, whose name is part of its
rows. A secret is in no setting: where one is needed, settings name the variable of the environment
that holds it, or both libraries find it there by themselves (AWS_ACCESS_KEY_ID and others).
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from headrace.java.jars import cache_folder
from headrace.pipeline.errors import OptionInvalid
from headrace.storage.tiering.table_catalog import (
    CATALOG,
    LOGIN,
    REST,
    java_rest_limits,
    python_s3_properties,
    rest_properties,
    s3_properties,
)

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/[^?#]*)?")
_FROM_ENVIRONMENT = "env:"  # Iceberg's REST client replaces it by the variable's value


@dataclass(frozen=True)
class Warehouse:
    """Where tables live.

    `folder` has the catalog's SQLite file, and locks of this machine. Data files are there, too,
    unless `objects` says where else. With `rest`, the URL of an Iceberg REST catalog, there is no
    SQLite file, and `objects` is what that catalog calls the warehouse.

    Raises OptionInvalid for a folder that is a URI: a path would silently become a local folder of
    that name.
    """

    folder: Path
    catalog: str = CATALOG
    objects: str = ""
    rest: str = ""

    def __post_init__(self) -> None:
        _check_is_path(str(self.folder))

    @classmethod
    def at(cls, place: Place, catalog: str = CATALOG, kept_in: str = "") -> Warehouse:
        """The warehouse at a path, a `file:` URI or `s3://BUCKET/PREFIX`.

        `kept_in` says where the catalog is: `rest:URL`, or a directory for an SQLite file, by
        default the warehouse. Raises OptionInvalid for what is neither.
        """
        if isinstance(place, Warehouse):
            return replace(place, catalog=catalog)
        if kept_in.startswith(REST):
            url = _checked_url(kept_in.removeprefix(REST))
            digest = hashlib.sha256(f"{url}\0{place}".encode()).hexdigest()[:16]
            return cls(cache_folder() / "catalogs" / digest, catalog, str(place), url)
        if _S3.fullmatch(str(place)):
            if not kept_in:
                raise OptionInvalid(
                    f"The warehouse {place} needs a catalog, which says which files are a table."
                    " Nothing was read or written. Give --catalog rest:URL, an Iceberg REST"
                    " catalog, or --catalog DIRECTORY for an SQLite file."
                )
            return cls(_path(kept_in), catalog, str(place).rstrip("/"))
        folder = _path(place)
        objects = f"file://{folder.resolve()}" if kept_in else ""
        return cls(_path(kept_in) if kept_in else folder, catalog, objects)

    def __str__(self) -> str:
        place = self.objects or str(self.folder)
        return f"{place} of the catalog {self.rest}" if self.rest else place

    @property
    def catalog_file(self) -> Path:
        """The SQLite file of the JDBC catalog."""
        return self.folder / "catalog.db"

    @property
    def is_there(self) -> bool:
        """Whether the catalog exists: opening an SQLite file creates it."""
        return bool(self.rest) or self.catalog_file.is_file()

    @property
    def is_remote(self) -> bool:
        """Whether data files may be in S3, or in what only a REST catalog knows."""
        return bool(self.rest) or self.objects.startswith("s3:")

    def make_folder(self, mark: str = "") -> None:
        """Make the folder, and the file `mark` beneath it. Raises OptionInvalid."""
        place = self.folder / mark
        try:
            (place.parent if mark else place).mkdir(parents=True, exist_ok=True)
            if mark:
                place.open("a").close()
        except OSError as error:
            raise OptionInvalid(
                f"The warehouse {self} cannot be used: {error.strerror}: {error.filename}. Nothing"
                " was read or written. Give a directory in which this machine can make files."
            ) from error

    def spark_settings(self) -> dict[str, str]:
        """Spark's settings of the catalog."""
        prefix = f"spark.sql.catalog.{self.catalog}"
        own = self._rest_properties() if self.rest else self._sqlite_properties()
        return {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.cache-enabled": "false",
            **{f"{prefix}.{name}": value for name, value in own.items()},
        }

    def python_properties(self) -> dict[str, str]:
        """The properties of pyiceberg's catalog, with secrets: not to be shown."""
        if self.rest:
            return rest_properties(self.rest, self.objects)
        return {
            "uri": f"sqlite:///{self.catalog_file.resolve()}?timeout=30",
            "warehouse": self._location(),
            **(python_s3_properties() if self.is_remote else {}),
        }

    def _rest_properties(self) -> dict[str, str]:
        login = {
            name: f"{_FROM_ENVIRONMENT}{variable}"
            for name, variable in LOGIN.items()
            if os.environ.get(variable)
        }
        return {
            "type": "rest",
            "uri": self.rest,
            # A catalog that lends keys of its storage does so; others ignore it.
            "header.X-Iceberg-Access-Delegation": "vended-credentials",
            **self._named(),
            **login,
            **java_rest_limits(),
            # A login that expires is renewed by the credential: few servers exchange one
            # token for another, which is the default.
            **({"token-exchange-enabled": "false"} if "credential" in login else {}),
            **s3_properties("client.region"),
        }

    def _sqlite_properties(self) -> dict[str, str]:
        self.make_folder()
        remote = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"} if self.is_remote else {}
        return {
            "type": "jdbc",
            # Several processes share the file: wait for its lock instead of failing.
            "uri": f"jdbc:sqlite:{self.catalog_file.resolve()}?busy_timeout=30000",
            "jdbc.schema-version": "V1",
            "warehouse": self._location(),
            **remote,
            **(s3_properties("client.region") if self.is_remote else {}),
        }

    def _named(self) -> dict[str, str]:
        return {"warehouse": self.objects} if self.objects else {}

    def _location(self) -> str:
        return self.objects or f"file://{self.folder.resolve()}"


Place: TypeAlias = str | Path | Warehouse
"""What a job takes for a warehouse."""


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise OptionInvalid(
            f"The catalog {REST}{url} has no http:// or https:// address. Nothing was read or"
            " written. Give --catalog rest:https://HOST/PATH."
        )
    if "@" in parts.netloc or parts.query:
        raise OptionInvalid(
            "The URL of the catalog must hold no login: it is shown in errors and to other users of"
            f" this machine. Nothing was read or written. Set {LOGIN['token']}, or"
            f" {LOGIN['credential']}=ID:SECRET."
        )
    return url.rstrip("/")


def _path(place: str | Path) -> Path:
    uri = urlsplit(str(place))
    text = unquote(uri.path) if uri.scheme == "file" and not uri.netloc else str(place)
    _check_is_path(text)  # before a Path is made of it, which joins slashes
    return Path(text)


def _check_is_path(text: str) -> None:
    if _SCHEME.match(text):
        raise OptionInvalid(
            f"The warehouse {text!r} is a URI that is not supported. Nothing was written. A"
            " warehouse is a directory to which this machine and all workers can write,"
            " s3://BUCKET/PREFIX, or what a REST catalog (--catalog rest:URL) knows by that name."
        )
