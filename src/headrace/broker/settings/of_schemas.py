"""Settings of values by schemas. See `table`."""

from __future__ import annotations

from headrace.broker.settings.kinds import PathName, Text
from headrace.broker.settings.setting import BrokerSetting

SCHEMAS = (
    BrokerSetting(
        "headrace.schema.registry.url",
        Text("URL"),
        "The schema registry (Confluent's API) with whose schemas the HTTP API and the console"
        " decode values, as http://HOST:PORT, without a user. Requires the package"
        " headrace[schemas].",
        is_sensitive=True,
    ),
    BrokerSetting(
        "headrace.schema.registry.credential.file",
        PathName(),
        "File with USER:PASSWORD for the schema registry.",
        is_sensitive=True,
    ),
    BrokerSetting(
        "headrace.schema.folder",
        PathName(is_folder=True),
        "Folder of schemas for values that name none: <topic>.avsc (Avro), <topic>.json (JSON"
        " Schema) or <topic>.desc (a Protobuf descriptor set, whose first message in its last file"
        " counts). Requires the package headrace[schemas].",
        is_sensitive=True,
    ),
)
