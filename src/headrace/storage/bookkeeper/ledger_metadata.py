"""BookKeeper's metadata of a ledger, with its encoding and its paths in ZooKeeper.

Invariants: values and bytes; no ZooKeeper. The encoding is format version 3 (a line of text,
then a length-delimited protobuf message), supported since BookKeeper 4.9; older ledgers in text
formats are not ours. Do not change: stored, and read by BookKeeper's own tools.
Source: `LedgerMetadataSerDe`, `DataFormats.proto`, `StringUtils` of BookKeeper 4.17.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.runtime.protobuf_wire import ProtobufInvalid, read_varint, varint
from headrace.storage.bookkeeper.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Mapping

CRC32C = 3
"""The digest type of all our ledgers; others are not supported."""
_HEADER = b"BookieMetadataFormatVersion\t"
_SHORT_ID_END = 2**31 - 1


class LedgerState(Enum):
    """OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED by the writer itself."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class Ensemble(NamedTuple):
    """The bookies that store the entries from `first_entry` on."""

    first_entry: int
    bookies: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.bookies)} from entry {self.first_entry} on"


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """A ledger. `length` and `last_entry` (-1: no entries) are valid only if it is CLOSED."""

    quorum: Quorum
    ensembles: tuple[Ensemble, ...]
    state: LedgerState = LedgerState.OPEN
    length: int = 0
    last_entry: int = -1
    digest: int = CRC32C
    password: bytes = b""
    created_ms: int = -1
    custom: Mapping[str, bytes] = field(default_factory=dict)
    creator: int = 0

    @property
    def last_ensemble(self) -> Ensemble:
        """The ensemble to which entries are added."""
        return self.ensembles[-1]

    def ensemble_of(self, entry: int) -> tuple[str, ...]:
        """The ensemble that stores `entry`."""
        for ensemble in reversed(self.ensembles):
            if ensemble.first_entry <= entry:
                return ensemble.bookies
        return self.ensembles[0].bookies

    def bookies_of(self, entry: int) -> list[str]:
        """The bookies that store `entry`."""
        bookies = self.ensemble_of(entry)
        return [bookies[slot] for slot in self.quorum.slots(entry)]

    def bookies_between(self, first: int, last: int | None) -> list[str]:
        """The bookies of the ensembles that store entries from `first` to `last`, sorted."""
        found: set[str] = set()
        for ensemble in self.ensembles:
            end = self.ensemble_end(ensemble.first_entry)
            if (end is None or end > first) and (last is None or ensemble.first_entry <= last):
                found.update(ensemble.bookies)
        return sorted(found)

    def ensemble_end(self, entry: int) -> int | None:
        """The first entry after the ensemble of `entry`; None for the last ensemble."""
        for ensemble in self.ensembles:
            if ensemble.first_entry > entry:
                return ensemble.first_entry
        return None

    def with_ensemble(self, new: Ensemble) -> LedgerMetadata:
        """With `new` after the last ensemble, or replacing it if both have the same first entry."""
        last = self.last_ensemble
        assert new.first_entry >= last.first_entry, "acknowledged entries stay in place"
        kept = self.ensembles[:-1] if new.first_entry == last.first_entry else self.ensembles
        return replace(self, ensembles=(*kept, new))

    def in_recovery(self) -> LedgerMetadata:
        """Marked as in recovery."""
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry: int, length: int) -> LedgerMetadata:
        """Closed with this end."""
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length)


# --- the protobuf messages ---------------------------------------------------------------------


def _message_classes() -> tuple[Any, Any]:
    """The classes of LedgerMetadataFormat and BookieServiceInfoFormat, from their descriptors."""
    file = descriptor_pb2.FileDescriptorProto(name="headrace/bookkeeper.proto", syntax="proto2")
    kinds = {
        "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
        "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
        "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
        "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    }
    labels = {
        "required": descriptor_pb2.FieldDescriptorProto.LABEL_REQUIRED,
        "optional": descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        "repeated": descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
    }

    def add(message: Any, fields: str) -> None:
        for line in fields.split(","):
            label, kind, name, number = line.split()
            one = message.field.add(name=name, number=int(number), label=labels[label])
            if kind in kinds:
                one.type = kinds[kind]
            else:
                one.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                one.type_name = kind

    ledger = file.message_type.add(name="LedgerMetadataFormat")
    add(ledger.nested_type.add(name="Segment"), _SEGMENT_FIELDS)
    add(ledger.nested_type.add(name="Custom"), "optional string key 1,optional bytes value 2")
    add(ledger, _LEDGER_FIELDS)
    info = file.message_type.add(name="BookieServiceInfoFormat")
    add(info.nested_type.add(name="Endpoint"), _ENDPOINT_FIELDS)
    property_ = info.nested_type.add(name="Property")
    add(property_, "optional string key 1,optional string value 2")
    add(info, _SERVICE_INFO_FIELDS)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        for name in ("LedgerMetadataFormat", "BookieServiceInfoFormat")
    )


# Enums are declared as int32, with the same encoding.
_SEGMENT_FIELDS = "repeated string ensembleMember 1,required int64 firstEntryId 2"
_LEDGER_FIELDS = (
    "required int32 quorumSize 1,required int32 ensembleSize 2,required int64 length 3,"
    "optional int64 lastEntryId 4,required int32 state 5,"
    "repeated .LedgerMetadataFormat.Segment segment 6,optional int32 digestType 7,"
    "optional bytes password 8,optional int32 ackQuorumSize 9,optional int64 ctime 10,"
    "repeated .LedgerMetadataFormat.Custom customMetadata 11,optional int64 cToken 12"
)
_ENDPOINT_FIELDS = (
    "required string id 1,required int32 port 2,required string host 3,"
    "required string protocol 4,repeated string auth 5,repeated string extensions 6"
)
_SERVICE_INFO_FIELDS = (
    "repeated .BookieServiceInfoFormat.Endpoint endpoints 6,"
    "repeated .BookieServiceInfoFormat.Property properties 7"
)
_LedgerFormat, _ServiceInfoFormat = _message_classes()


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    """The value of a ledger's znode."""
    message = _LedgerFormat(
        quorumSize=metadata.quorum.write,
        ensembleSize=metadata.quorum.ensemble,
        ackQuorumSize=metadata.quorum.ack,
        length=metadata.length,
        lastEntryId=metadata.last_entry,
        state=metadata.state.value,
        digestType=metadata.digest,
        password=metadata.password,
        cToken=metadata.creator,
    )
    if metadata.created_ms >= 0:
        message.ctime = metadata.created_ms
    for ensemble in metadata.ensembles:
        message.segment.add(
            ensembleMember=list(ensemble.bookies), firstEntryId=ensemble.first_entry
        )
    for key in sorted(metadata.custom):
        message.customMetadata.add(key=key, value=metadata.custom[key])
    body: bytes = message.SerializeToString()
    return b"%s3\n%s%s" % (_HEADER, varint(len(body)), body)


def decode_metadata(data: bytes) -> LedgerMetadata:
    """Decode the value of a ledger's znode. Raises FormatUnsupported, DataCorrupt."""
    header, newline, rest = data.partition(b"\n")
    if not header.startswith(_HEADER) or not newline:
        raise DataCorrupt("a ledger's metadata lacks BookKeeper's header")
    if header != _HEADER + b"3":
        version = header[len(_HEADER) :].decode("ascii", "replace")
        raise FormatUnsupported(
            f"a ledger's metadata has format version {version}, this version of Headrace supports"
            " 3: the ledger is not served; start a newer one, or check which program wrote it",
            version=version,
        )
    try:
        size, at = read_varint(rest, 0)
        if size != len(rest) - at:
            raise DataCorrupt(f"a ledger's metadata has {len(rest) - at} bytes, not {size}")
        message = _LedgerFormat.FromString(rest[at:])
        state = LedgerState(message.state)
    except ProtobufInvalid as error:
        raise DataCorrupt("a ledger's metadata has an invalid length") from error
    except (DecodeError, ValueError) as error:
        raise DataCorrupt(f"cannot decode a ledger's metadata: {error}") from error
    write = message.quorumSize
    ack = message.ackQuorumSize if message.HasField("ackQuorumSize") else write
    quorum = Quorum(message.ensembleSize, write, ack)
    ensembles = tuple(
        Ensemble(one.firstEntryId, tuple(one.ensembleMember)) for one in message.segment
    )
    metadata = LedgerMetadata(
        quorum,
        tuple(sorted(ensembles)),
        state,
        message.length,
        message.lastEntryId if message.HasField("lastEntryId") else -1,
        message.digestType if message.HasField("digestType") else 0,
        message.password,
        message.ctime if message.HasField("ctime") else -1,
        {one.key: one.value for one in message.customMetadata},
        message.cToken,
    )
    _check(metadata)
    return metadata


def _check(metadata: LedgerMetadata) -> None:
    quorum = metadata.quorum
    if not 1 <= quorum.ack <= quorum.write <= quorum.ensemble:
        raise DataCorrupt(f"a ledger's metadata has invalid quorums: {quorum}")
    if not metadata.ensembles or any(
        len(ensemble.bookies) != quorum.ensemble for ensemble in metadata.ensembles
    ):
        raise DataCorrupt("a ledger's metadata has an ensemble of the wrong size")


class BookieAddress(NamedTuple):
    """The address of a bookie."""

    host: str
    port: int


def decode_service_info(data: bytes) -> tuple[BookieAddress | None, Mapping[str, str]]:
    """(address, properties) of a registered bookie; the address is None if not stated."""
    if not data:
        return None, {}
    try:
        message = _ServiceInfoFormat.FromString(data)
    except DecodeError as error:
        raise DataCorrupt(f"cannot decode a bookie's service info: {error}") from error
    properties = {one.key: one.value for one in message.properties}
    for endpoint in message.endpoints:
        if endpoint.protocol == "bookie-rpc":
            return BookieAddress(endpoint.host, endpoint.port), properties
    return None, properties


def address_in(bookie: str) -> BookieAddress | None:
    """The address in a bookie id of the form host:port."""
    host, colon, port = bookie.rpartition(":")
    return BookieAddress(host, int(port)) if colon and host and port.isdecimal() else None


# --- paths -------------------------------------------------------------------------------------

_ID_IN_PATH = re.compile(r"/((?:\d{2}/\d{4}|\d{3}/\d{4}/\d{4}/\d{4})/L\d{4})$")


def ledger_path(root: str, ledger: int) -> str:
    """The path of a ledger's metadata: ten digits in 2-4-4, nineteen in 3-4-4-4-4."""
    if ledger < _SHORT_ID_END:
        text = f"{ledger:010}"
        return f"{root}/{text[:2]}/{text[2:6]}/L{text[6:]}"
    text = f"{ledger:019}"
    return f"{root}/{text[:3]}/{text[3:7]}/{text[7:11]}/{text[11:15]}/L{text[15:]}"


def ledger_in(path: str) -> int | None:
    """The ledger of a metadata path; None for other paths."""
    found = _ID_IN_PATH.search(path)
    return int(re.sub(r"\D", "", found[1])) if found else None
