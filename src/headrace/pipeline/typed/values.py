"""What a codec of values does, and how records become rows with it.

Invariants: a value that cannot be decoded is a row, too: its column `value` is null, and
`undecodable` says why and holds the bytes. So nothing that a topic holds is left out in silence.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.pipeline.errors import OptionInvalid, RowInvalid, ValueUndecodable
from headrace.schemas import registry as registries
from headrace.schemas.errors import SchemaUnusable
from headrace.schemas.undecodable import Undecodable
from headrace.schemas.wire import GUID_MARK, HEADER, MAGIC, reference_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.pipeline.typed.options import TypedOptions
    from headrace.schemas.registry import RegisteredSchema

UNDECODABLE = "undecodable"
_SCHEMA_TYPES = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


_OF_A_VALUE = (Undecodable, TypeError, ValueError, ArithmeticError)
"""What a value can raise that is not what its schema says: a surrogate in a text is a
UnicodeEncodeError, which is a ValueError, a number that is too large an OverflowError."""


@contextmanager
def as_options() -> Iterator[None]:
    """Raise OptionInvalid for a schema that cannot be used: it was named by options."""
    try:
        yield
    except SchemaUnusable as error:
        raise OptionInvalid(str(error)) from error


class ValueCodec(Protocol):
    """Values of one schema; `arrow_type` is the type of the column `value`."""

    arrow_type: Any

    def decode(self, payload: bytes, written_with: RegisteredSchema | None) -> Any:
        """The value for Arrow; `written_with` is the schema its id names.

        Raises Undecodable, TypeError, ValueError, ArithmeticError.
        """
        ...

    def encode(self, value: Any) -> bytes:
        """The bytes of a row's value. Raises any exception of the library."""
        ...


class _Carried(NamedTuple):
    """A value and the schema that it names."""

    payload: bytes
    schema: RegisteredSchema | None


class TypedValues:
    """Values of a topic by the schema that the options name."""

    def __init__(self, options: TypedOptions, topic: str | None) -> None:
        """Load the schema. Raises OptionInvalid, RegistryUnavailable."""
        self._options = options
        self.schema: RegisteredSchema | None = None
        if options.registry is not None:
            subject = options.subject or (topic and f"{topic}-value")
            if not subject:
                raise OptionInvalid("Set valueSubject: there is no single topic to derive it from.")
            serialized = options.format == "protobuf"
            with as_options():
                self.schema = registries.of_subject(
                    options.registry, subject, options.version, is_serialized=serialized
                )
            if self.schema.type != _SCHEMA_TYPES[options.format]:
                raise OptionInvalid(
                    f"The subject {subject} has a schema of type {self.schema.type}: set"
                    f" valueFormat to that instead of {options.format}."
                )
        self._codec = codec_of(options, self.schema)

    @property
    def arrow_type(self) -> Any:
        """The type of the column `value`."""
        return self._codec.arrow_type

    def typed(self, batch: Any) -> Any:
        """An Arrow batch of the source with decoded values. Raises ValueUndecodable (fails)."""
        import pyarrow as pa

        names = batch.schema.names
        values = batch.column("value").to_pylist()
        headers = [None] * len(values)
        if self._options.registry is not None:
            headers = batch.column("headers").to_pylist()
        found: list[Any] = []
        problems: list[dict[str, Any] | None] = []
        for row, value in enumerate(values):
            decoded, reason = None, None
            if value is not None:
                try:
                    decoded = self._decode(value, headers[row])
                    pa.scalar(decoded, self.arrow_type)
                except (*_OF_A_VALUE, pa.ArrowException) as error:
                    decoded, reason = None, str(error)[:500]
            if reason is not None and self._options.fails:
                place = batch.slice(row, 1).select(["topic", "partition", "offset"]).to_pylist()[0]
                raise ValueUndecodable(
                    f"{place['topic']}-{place['partition']}: the value at offset {place['offset']}"
                    f" cannot be decoded: {reason}. Leave out onUndecodable=fail to get it in the"
                    f" column {UNDECODABLE}.",
                    **place,
                )
            found.append(decoded)
            problems.append(None if reason is None else {"reason": reason, "value": value})
        at = names.index("value")
        columns = [batch.column(index) for index in range(len(names))]
        columns[at] = pa.array(found, self.arrow_type)
        columns.append(pa.array(problems, undecodable_type()))
        return pa.RecordBatch.from_arrays(columns, names=[*names, UNDECODABLE])

    def encoded(self, value: Any) -> bytes:
        """The bytes of a row's value, with the schema's id unless it is a header. Raises
        RowInvalid."""
        try:
            body = self._codec.encode(value)
        except Exception as error:
            raise RowInvalid(
                f"A row's value is not what the {self._options.format} schema says:"
                f" {str(error)[:300]}. The batch is not committed. Filter or change such rows."
            ) from error
        if self.schema is None or self._options.id_in_header:
            return body
        return bytes([MAGIC]) + self.schema.id.to_bytes(4, "big") + body

    def header(self) -> tuple[str, bytes] | None:
        """The header that names the schema, if values do not. Raises OptionInvalid."""
        if self.schema is None or not self._options.id_in_header:
            return None
        if not self.schema.guid:
            raise OptionInvalid(
                "The registry gives its schemas no GUID, which valueSchemaId=header needs: use"
                " valueSchemaId=prefix."
            )
        guid = bytes.fromhex(self.schema.guid.replace("-", ""))
        return HEADER, bytes([GUID_MARK]) + guid

    def _decode(self, value: bytes, headers: list[dict[str, Any]] | None) -> Any:
        payload, schema = self._carried(value, headers)
        if schema is not None and schema.type != _SCHEMA_TYPES[self._options.format]:
            raise Undecodable(f"schema {schema.id} is of type {schema.type}")
        return self._codec.decode(payload, schema)

    def _carried(self, value: bytes, headers: list[dict[str, Any]] | None) -> _Carried:
        """The value without the id of its schema, and that schema. Raises Undecodable."""
        access = self._options.registry
        if access is None:
            return _Carried(value, None)
        serialized = self._options.format == "protobuf"
        pairs = ((each["key"], each["value"]) for each in headers or ())
        payload, reference = reference_of(value, pairs)
        try:
            with as_options():
                schema = registries.by_reference(access, reference, is_serialized=serialized)
        except registries.SchemaUnknown as error:
            raise Undecodable(f"the registry has no schema at {error}") from error
        return _Carried(payload, schema)


def codec_of(options: TypedOptions, schema: RegisteredSchema | None) -> ValueCodec:
    """The codec of the options' schema. Raises OptionInvalid."""
    data = b"" if schema is not None else _file(options.file or "")
    text = data.decode("utf-8", "replace") if schema is None else schema.text
    try:
        with as_options():
            if options.format == "avro":
                from headrace.pipeline.typed.avro import AvroCodec

                return AvroCodec(text)
            if options.format == "json":
                from headrace.pipeline.typed.json_values import JsonCodec

                return JsonCodec(text)
            from headrace.pipeline.typed.protobuf import ProtobufCodec

            is_file = schema is None
            source = data if is_file else text
            return ProtobufCodec(source, options.message, has_indexes=not is_file)
    except ImportError as error:
        raise OptionInvalid(
            f"valueFormat={options.format} needs a library that is not installed ({error.name}):"
            " pip install 'headrace[schemas]', on all workers."
        ) from error


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionInvalid(
            f"valueSchemaFile {path!r} cannot be read ({error.strerror}). It must be there on this"
            " machine and on all workers."
        ) from error


def undecodable_type() -> Any:
    """The type of the column `undecodable`."""
    import pyarrow as pa

    return pa.struct([("reason", pa.string()), ("value", pa.binary())])
