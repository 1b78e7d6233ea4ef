"""Reads the tables of a topic with the engine named on the command line, in an environment of its
own; prints figures as JSON. The rest is in `LAKE`, as JSON: the REST catalog's URL and warehouse,
the environment of clients of S3, and the topic.
"""

import json
import os
import sys
from datetime import datetime

LAKE = json.loads(os.environ["LAKE"])
STORE, TOPIC = LAKE["store"], LAKE["topic"]
S3 = STORE["AWS_ENDPOINT_URL"]
KEY, SECRET, REGION = (
    STORE[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION")
)
DAY = "2020-01-01T00:00:00+00:00"
"""Before all records, so that a filter on it finds all."""


FILES = {
    "s3.endpoint": S3,
    "s3.access-key-id": KEY,
    "s3.secret-access-key": SECRET,
    "s3.region": REGION,
    "s3.path-style-access": "true",
}


def planned_tables():
    """The append table and the upsert table, for what plans by pyiceberg and reads by itself."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake", type="rest", uri=LAKE["rest"], warehouse=LAKE["place"], **FILES)
    return catalog.load_table(("headrace", TOPIC)), catalog.load_table(("headrace", "latest"))


def duckdb():
    """By its own extension."""
    from importlib.resources import files

    import duckdb

    own = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for name in ("httpfs", "avro", "iceberg"):
        folder = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        own.execute(f"LOAD '{folder / name}.duckdb_extension'")
    own.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', REGION '{REGION}',"
        f" ENDPOINT '{S3.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
    )
    own.execute(
        f"ATTACH '{LAKE['place']}' AS lake"
        f" (TYPE iceberg, ENDPOINT '{LAKE['rest']}', AUTHORIZATION_TYPE 'none')"
    )
    figures = own.execute(
        'SELECT count(*), count(DISTINCT ("partition", "offset")), max("offset"),'
        f" sum(len(headers)) FROM lake.headrace.\"{TOPIC}\" WHERE timestamp > '{DAY}'"
    ).fetchone()
    values = own.execute("SELECT decode(value) FROM lake.headrace.latest").fetchall()
    return figures, [value for (value,) in values]


def clickhouse():
    """By its catalog of data lakes, which takes the word after the last dot for the name: a table
    whose name has dots is read by its location."""
    from chdb.session import Session

    own = Session()
    own.query("SET allow_database_iceberg = 1")
    own.query(
        f"CREATE DATABASE lake ENGINE = DataLakeCatalog('{LAKE['rest']}/v1', '{KEY}', '{SECRET}')"
        f" SETTINGS catalog_type = 'rest', warehouse = '{LAKE['place']}',"
        f" storage_endpoint = '{S3}/{LAKE['bucket']}'"
    )

    def rows(sql):
        return [json.loads(line) for line in str(own.query(sql, "JSONCompactEachRow")).splitlines()]

    table, _latest = planned_tables()
    place = table.location().replace("s3:/", S3)
    (figures,) = rows(
        "SELECT count(), count(DISTINCT (partition, offset)), max(offset), sum(length(headers))"
        f" FROM icebergS3('{place}', '{KEY}', '{SECRET}')"
        f" WHERE timestamp > parseDateTimeBestEffort('{DAY}')"
    )
    values = rows("SELECT value FROM lake.`headrace.latest`")
    return [int(each) for each in figures], [value for (value,) in values]


def polars():
    """Planned by pyiceberg."""
    import polars as pl

    table, latest = planned_tables()
    store = {
        "aws_endpoint_url": S3, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET,
        "aws_region": REGION, "aws_allow_http": "true", "aws_virtual_hosted_style_request": "false",
    }  # fmt: skip
    found = (
        pl.scan_iceberg(table, storage_options=store)
        .filter(pl.col("timestamp") > datetime.fromisoformat(DAY))
        .select(
            pl.len(),
            pl.struct("partition", "offset").n_unique().alias("places"),
            pl.col("offset").max(),
            pl.col("headers").list.len().sum(),
        )
        .collect()
    )
    values = pl.scan_iceberg(latest, storage_options=store).select("value").collect()["value"]
    return found.row(0), [value.decode() for value in values]


def daft():
    """Planned by pyiceberg."""
    import daft
    from daft import col
    from daft.io import IOConfig, S3Config

    config = IOConfig(
        s3=S3Config(endpoint_url=S3, key_id=KEY, access_key=SECRET, region_name=REGION)
    )
    table, latest = planned_tables()
    found = daft.read_iceberg(table, io_config=config).where(
        col("timestamp") > daft.lit(datetime.fromisoformat(DAY))
    )
    rows = found.select("partition", "offset", "headers").to_pylist()
    places = {(row["partition"], row["offset"]) for row in rows}
    figures = (
        len(rows), len(places), max(row["offset"] for row in rows),
        sum(len(row["headers"] or ()) for row in rows),
    )  # fmt: skip
    values = daft.read_iceberg(latest, io_config=config).select("value").to_pylist()
    return figures, [row["value"].decode() for row in values]


def datafusion():
    """By pyiceberg's provider of tables, which takes no table of a REST catalog as it is."""
    from datafusion import SessionContext
    from pyiceberg.table import StaticTable

    own = SessionContext()
    for name, table in zip(("orders", "latest"), planned_tables(), strict=True):
        own.register_table(name, StaticTable.from_metadata(table.metadata_location, FILES))
    (figures,) = own.sql(
        'SELECT count(*) AS a, count(DISTINCT "partition" * 1000000 + "offset") AS b,'
        ' max("offset") AS c, sum(array_length(headers)) AS d FROM orders'
        f" WHERE timestamp > '{DAY}'"
    ).to_pylist()
    values = own.sql("SELECT value FROM latest").to_pylist()
    return list(figures.values()), [row["value"].decode() for row in values]


if __name__ == "__main__":
    figures, values = globals()[sys.argv[1]]()
    print(json.dumps([list(figures), sorted(values)]))
