"""A schema registry that answers as Confluent's, with schemas of each kind."""

import base64
import contextlib
import io
import json
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import fastavro
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from headrace.schemas.registry import KNOWN

AVRO = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}  # fmt: skip
ORDER = {
    "id": 7, "note": None, "price": Decimal("12.50"),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC), "day": date(2026, 1, 2),
    "state": "PAID", "lines": [{"sku": "a"}, {"sku": "b"}], "tags": {"x": 1},
}  # fmt: skip
JSON_SCHEMA = {
    "type": "object", "required": ["id"],
    "properties": {
        "id": {"type": "integer", "minimum": 0}, "name": {"type": ["string", "null"]},
        "where": {"$ref": "#/$defs/place"}, "any": {},
        "counts": {"type": "object", "additionalProperties": {"type": "number"}},
        "list": {"type": "array", "items": {"type": "boolean"}},
    },
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}},
}  # fmt: skip


UNTYPED_SCHEMA = {
    "properties": {
        "a": {"type": "string"}, "d": {"properties": {"x": {"type": "integer"}}},
        "f": {"type": "number"},
    },
}  # fmt: skip
"""Without `type`, it holds for values of any type: `properties` restricts objects alone."""


def avro_bytes(value, schema=AVRO):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def proto_file():
    """message Order { int64 id = 1; optional string note = 2; repeated Line lines = 3; ... }"""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    order.oneof_decl.add(name="_note")
    order.field.add(
        name="note", number=2, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL,
        proto3_optional=True, oneof_index=0,
    )  # fmt: skip
    order.field.add(
        name="lines", number=3, type=Field.TYPE_MESSAGE, label=Field.LABEL_REPEATED,
        type_name=".shop.Line",
    )  # fmt: skip
    order.field.add(
        name="at", number=4, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL,
        type_name=".google.protobuf.Timestamp",
    )  # fmt: skip
    order.field.add(name="big", number=5, type=Field.TYPE_UINT64, label=Field.LABEL_OPTIONAL)
    return file


OLDER = {**AVRO, "fields": AVRO["fields"][:1]}
GUID = "d7d5e1a0-0000-4000-8000-000000000001"


class Registry(BaseHTTPRequestHandler):
    """Answers as Confluent's: subjects, ids and GUIDs of a few schemas, for one login."""

    schemas: ClassVar = {
        1: {"schema": json.dumps(OLDER)},
        2: {"schema": json.dumps(AVRO), "guid": GUID},
        3: {"schemaType": "JSON", "schema": json.dumps(JSON_SCHEMA)},
        4: {
            "schemaType": "PROTOBUF",
            "schema": base64.b64encode(proto_file().SerializeToString()).decode(),
        },
    }
    subjects: ClassVar = {"orders-value": 2, "json": 3, "proto": 4}
    login = "Basic " + base64.b64encode(b"me:hidden").decode()
    asked: ClassVar = []
    received: ClassVar = []
    """Of each request, also those that it redirects: the host that it names, and whether it has a
    login."""
    moved_to: ClassVar = ""
    """Where it redirects everything; "": nowhere."""

    def do_GET(self):
        self.received.append((self.headers["Host"], "Authorization" in self.headers))
        if self.moved_to:
            self.send_response(302)
            self.send_header("Location", self.moved_to + self.path)
            self.end_headers()
            return
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        parts = path.strip("/").split("/")
        found = None
        if parts[0] == "subjects":
            number = self.subjects.get(parts[1])
            found = number and {**self.schemas[number], "id": number, "version": 1}
        elif parts[1] == "ids":
            found = self.schemas.get(int(parts[2]))
        elif parts[1] == "guids":
            found = next((s for s in self.schemas.values() if s.get("guid") == parts[2]), None)
        status = 200 if found else 404
        if self.headers["Authorization"] != self.login:
            status, found = 401, None
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(found or {"error_code": 40403}).encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def registry():
    """The address of a registry that serves, and whose schemas are not cached yet."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Registry.asked, Registry.received = Registry.asked[:0], Registry.received[:0]
    KNOWN.clear()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
