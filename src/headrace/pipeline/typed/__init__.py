"""Values by a schema: Avro, JSON Schema and Protobuf, from a file or a registry."""
