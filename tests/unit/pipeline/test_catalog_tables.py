"""Options of topics that are tables of Spark's catalog."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import StringType, StructField, StructType

from headrace.pipeline.catalog_tables import options_of_new, options_of_read, with_options
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.source import HeadraceDataSource
from headrace.pipeline.typed.columns import typed_values

SERVER = {"bootstrap.servers": "h:9092"}
COLUMNS = StructType(
    [StructField("a", StringType(), True, {"b": 1}), StructField("c", StringType())]
)
NAMES = st.sampled_from(["subscribe", "startingOffsets", "kafka.client.id", "batchRows"])


def told_to(options: dict[str, str]) -> dict[str, str]:
    """What Spark tells the source of a new table."""
    given = {"provider": "headrace", "owner": "root"}
    return given | options | {f"option.{name}": value for name, value in options.items()}


@given(st.dictionaries(NAMES, st.text()), st.dictionaries(NAMES, st.text()))
def test_a_read_has_the_options_of_its_table_and_its_own_before_them(of_table, of_read):
    options = options_of_new(told_to(SERVER | of_table))
    assert options is not None
    columns = with_options(COLUMNS, options)
    assert columns.names == COLUMNS.names
    assert columns[0].metadata["b"] == 1
    again = StructType.fromJson(json.loads(columns.json()))
    lower = {name.lower(): value for name, value in (SERVER | of_table | of_read).items()}
    assert options_of_read(of_read, again) == lower
    assert options_of_read(SERVER | of_read, again) == SERVER | of_read
    assert options_of_read(of_read, COLUMNS) == of_read


def test_what_is_no_new_table_has_no_options_of_one():
    assert options_of_new(SERVER | {"subscribe": "t"}) is None


@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.password", "kafka.sasl.jaas.config", "kafka.ssl.key.password",
        "kafka.ssl.key.pem", "kafka.ssl.keystore.key", "kafka.sasl.oauthbearer.client.secret",
        "kafka.sasl.oauthbearer.config", "schemaRegistry.password",
    ],
)  # fmt: skip
def test_secrets_are_refused(name):
    with pytest.raises(OptionInvalid, match="is a secret") as refused:
        options_of_new(told_to(SERVER | {name: "canary"}))
    assert "canary" not in str(refused.value)


def test_a_table_whose_values_have_another_schema_now_is_refused(tmp_path):
    file = tmp_path / "value.avsc"

    def store(*names: str) -> None:
        fields = [{"name": name, "type": "long"} for name in names]
        file.write_text(json.dumps({"type": "record", "name": "V", "fields": fields}))
        typed_values.cache_clear()

    store("a")
    typed = {"subscribe": "t", "valueFormat": "avro", "valueSchemaFile": str(file)}
    columns = HeadraceDataSource(told_to(SERVER | typed)).schema()
    assert isinstance(columns, StructType)
    reader = HeadraceDataSource({"startingoffsets": "latest"}).reader(columns)
    assert (reader.options.topics, reader.options.starting) == (("t",), "latest")
    store("a", "b")
    with pytest.raises(OptionInvalid, match="create the table again"):
        HeadraceDataSource({}).reader(columns)
