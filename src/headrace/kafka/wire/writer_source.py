"""Generates Python source that encodes one message in one version.

Responsibilities: turns a definition into the source of functions, one for each struct, that take a
mapping and emit pieces of bytes; handles no values. A field without a default must be in the
mapping (KeyError); null in a field that is not nullable raises an error as well: both are bugs of
the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.kafka.wire.definitions import FIXED, layout_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.kafka.wire.definitions import Field, MessageDefinition


def writer_source(definition: MessageDefinition, name: str) -> str:
    """`def write_<name>(values, put)`: `put` takes a piece of bytes."""
    fields = [field for field in definition.structs[name] if field.is_present]
    lines = [f"def write_{name}(values, put):"]
    run: list[Field] = []
    in_order = [field for field in fields if field.tag is None]
    if any(not field.is_required for field in fields):
        lines.append("    get = values.get")
    for field in in_order:
        if field.kind in FIXED and not field.is_array:
            run.append(field)
            continue
        lines += _run(name, run)
        run = []
        lines.append(f"    value = {_given(name, field)}")
        lines += ["    " + line for line in _value(definition, field)]
    lines += _run(name, run)
    if definition.is_flexible:
        tagged = sorted(
            (field for field in fields if field.tag is not None), key=lambda f: f.tag or 0
        )
        lines += ["    " + line for line in _tags(definition, name, tagged)]
    if len(lines) == 1:
        lines.append("    pass")
    return "\n".join(lines)


def _packer(layout: str) -> str:
    """The name of the function that packs this layout."""
    return "pack_" + layout_name(layout)


def _given(name: str, field: Field) -> str:
    if field.is_required:
        return f"values[{field.name!r}]"
    return f"get({field.name!r}, default_{name}_{field.name})"


def _run(name: str, run: list[Field]) -> list[str]:
    """Fields of fixed size, encoded together."""
    if not run:
        return []
    layout = ">" + "".join(FIXED[field.kind][0] for field in run)
    values = ", ".join(
        f"id_bytes({_given(name, field)})" if field.kind == "uuid" else _given(name, field)
        for field in run
    )
    return [f"    put({_packer(layout)}({values}))"]


def _value(definition: MessageDefinition, field: Field) -> Iterator[str]:
    """Lines that put `value`."""
    if field.is_array:
        yield from _array(definition, field)
    elif field.kind in definition.structs:
        if field.is_nullable and field.tag is None:
            yield "if value is None:"
            yield "    put(b'\\xff')"
            yield "else:"
            yield "    put(b'\\x01')"
            yield f"    write_{field.kind}(value, put)"
        else:
            yield f"write_{field.kind}(value, put)"
    elif field.kind in FIXED:
        value = "id_bytes(value)" if field.kind == "uuid" else "value"
        yield f"put({_packer('>' + FIXED[field.kind][0])}({value}))"
    else:
        yield from _sized(definition, field)


def _sized(definition: MessageDefinition, field: Field) -> Iterator[str]:
    """A string or bytes."""
    indent = ""
    if field.is_nullable:
        null = "00" if definition.is_flexible else "ffff" if field.kind == "string" else "ffffffff"
        yield "if value is None:"
        yield f"    put({bytes.fromhex(null)!r})"
        yield "else:"
        indent = "    "
    if field.kind == "string":
        yield indent + "value = value.encode()"
    yield indent + "size = len(value)"
    if definition.is_flexible:
        yield indent + "put(COUNTS[size] if size < 127 else write_uvarint(size + 1))"
    else:
        yield indent + f"put({_packer('>h' if field.kind == 'string' else '>i')}(size))"
    yield indent + "put(value)"


def _array(definition: MessageDefinition, field: Field) -> Iterator[str]:
    indent = ""
    if field.is_nullable:
        yield "if value is None:"
        yield "    put(b'\\x00')" if definition.is_flexible else "    put(b'\\xff\\xff\\xff\\xff')"
        yield "else:"
        indent = "    "
    yield indent + "size = len(value)"
    is_packed = field.kind in FIXED and field.kind != "uuid"
    if is_packed:
        layout = FIXED[field.kind][0]
        if definition.is_flexible:
            yield indent + "if not size:"
            yield indent + "    put(b'\\x01')"
            yield indent + "elif size == 1:"
            yield indent + f"    put({_packer('>B' + layout)}(2, *value))"
            yield indent + "elif size < 127:"
            yield indent + f"    put(pack(f'>B{{size}}{layout}', size + 1, *value))"
            yield indent + "else:"
            yield indent + "    put(write_uvarint(size + 1))"
            yield indent + f"    put(pack(f'>{{size}}{layout}', *value))"
        else:
            yield indent + f"put(pack(f'>i{{size}}{layout}', size, *value))"
        return
    if definition.is_flexible:
        yield indent + "put(COUNTS[size] if size < 127 else write_uvarint(size + 1))"
    else:
        yield indent + f"put({_packer('>i')}(size))"
    element = field._replace(is_array=False, is_nullable=False, tag=None)
    if field.kind in definition.structs:
        yield indent + "if type(value) is Encoded:"
        yield indent + "    put(value.data)"
        yield indent + "    value = ()"
    yield indent + "for value in value:"
    for line in _value(definition, element):
        yield indent + "    " + line


def _tags(definition: MessageDefinition, name: str, tagged: list[Field]) -> Iterator[str]:
    """The section of tagged fields, without those that have their default."""
    if not tagged:
        yield "put(b'\\x00')"
        return
    yield "tags = []"
    yield "put_outside = put"
    for field in tagged:
        yield f"if {field.name!r} in values:"
        yield f"    value = values[{field.name!r}]"
        yield f"    if {_is_set(definition, name, field)}:"
        yield "        parts = []"
        yield "        put = parts.append"
        for line in _value(definition, field):
            yield "        " + line
        yield "        data = b''.join(parts)"
        if field.kind in definition.structs and not field.is_array:
            yield f"        if data != default_bytes_{field.kind}:"
            yield f"            tags.append(tag_bytes({field.tag}, data))"
        else:
            yield f"        tags.append(tag_bytes({field.tag}, data))"
    yield "put_outside(write_uvarint(len(tags)))"
    yield "if tags:"
    yield "    put_outside(b''.join(tags))"


def _is_set(definition: MessageDefinition, name: str, field: Field) -> str:
    """Whether `value` differs from the default."""
    if field.kind in definition.structs and not field.is_array:
        return "value is not None"  # a struct is compared when it is encoded
    if field.is_array:
        if not field.is_nullable:
            return "value"
        return "value is not None" if field.default is None else "value is None or value"
    return f"value != default_{name}_{field.name}"
