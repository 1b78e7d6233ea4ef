"""Generates Python source that decodes one message in one version.

Responsibilities: turns a definition into the source of functions, one for each struct; handles no
values. In the generated source, a count is compared with the remaining bytes before anything is
allocated for it, and is deducted from the element budget (`primitives.elements`); everything else
is bounded by the buffer. The functions raise FrameInvalid, struct.error, IndexError or ValueError.

Consecutive fields of fixed size are decoded by one call of `struct`: a message of hundreds of
elements would otherwise spend most of its time in calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.kafka.wire.definitions import FIXED, layout_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.kafka.wire.definitions import Field, MessageDefinition


def least_bytes(definition: MessageDefinition, name: str) -> int:
    """The size of the smallest struct of this name, without its tagged fields."""
    size = int(definition.is_flexible)
    for field in definition.structs[name]:
        if field.is_present and field.tag is None:
            size += _least(definition, field)
    return size


def _least(definition: MessageDefinition, field: Field) -> int:
    if field.is_array:
        return 1 if definition.is_flexible else 4
    if field.kind in FIXED:
        return FIXED[field.kind][1]
    if field.kind in definition.structs:
        return 1 if field.is_nullable else least_bytes(definition, field.kind)
    return 1 if definition.is_flexible else 2 if field.kind == "string" else 4


def reader_source(definition: MessageDefinition, name: str) -> str:
    """`def read_<name>(data, at, end) -> (object, position after it)`."""
    fields = definition.structs[name]
    lines = [f"def read_{name}(data, at, end):"]
    run: list[tuple[int, Field]] = []
    for number, field in enumerate(fields):
        if not field.is_present or field.tag is not None:
            continue
        if field.kind in FIXED and not field.is_array:
            run.append((number, field))
            continue
        lines += _run(run)
        run = []
        lines += _indented(_value(definition, field, f"v{number}"))
    lines += _run(run)
    if definition.is_flexible:
        lines += _indented(_tags(definition, name))
    given = ", ".join(f"v{number}" for number, field in enumerate(fields) if field.is_present)
    lines.append(f"    return new_{name}({given}), at")
    return "\n".join(lines)


def _indented(lines: Iterator[str], by: int = 1) -> list[str]:
    return ["    " * by + line for line in lines]


def _run(run: list[tuple[int, Field]]) -> list[str]:
    """Fields of fixed size, decoded together."""
    if not run:
        return []
    layout = ">" + "".join(FIXED[field.kind][0] for _number, field in run)
    size = sum(FIXED[field.kind][1] for _number, field in run)
    names = "".join(f"v{number}, " for number, _field in run)
    lines = [f"    ({names}) = unpack_{layout_name(layout)}(data, at)", f"    at += {size}"]
    lines += [
        f"    v{number} = None if v{number} == NO_ID else UUID(bytes=v{number})"
        for number, field in run
        if field.kind == "uuid"
    ]
    return lines


def _uvarint(name: str) -> Iterator[str]:
    yield f"{name} = data[at]"
    yield "at += 1"
    yield f"if {name} > 127:"
    yield f"    {name}, at = read_uvarint(data, at - 1)"


def _value(definition: MessageDefinition, field: Field, target: str) -> Iterator[str]:
    if field.is_array:
        yield from _array(definition, field, target)
    elif field.kind in definition.structs:
        if field.is_nullable and field.tag is None:
            yield "at += 1"
            yield "if data[at - 1] > 127:"
            yield f"    {target} = None"
            yield "else:"
            yield f"    {target}, at = read_{field.kind}(data, at, end)"
        else:
            yield f"{target}, at = read_{field.kind}(data, at, end)"
    elif field.kind in FIXED:  # tagged: the others are decoded in runs
        yield f"({target},) = unpack_{layout_name(FIXED[field.kind][0])}(data, at)"
        yield f"at += {FIXED[field.kind][1]}"
        if field.kind == "uuid":
            yield f"{target} = None if {target} == NO_ID else UUID(bytes={target})"
    else:
        yield from _sized(definition, field, target)


def _sized(definition: MessageDefinition, field: Field, target: str) -> Iterator[str]:
    """A string or bytes."""
    if definition.is_flexible:
        yield from _uvarint("size")
        yield "size -= 1"
    elif field.kind == "string":
        yield "(size,) = unpack_h(data, at)"
        yield "at += 2"
    else:
        yield "(size,) = unpack_i(data, at)"
        yield "at += 4"
    yield "if size >= 0:"
    yield "    stop = at + size"
    yield "    if stop > end:"
    yield f"        reaches_past({field.name!r})"
    yield f"    {target} = data[at:stop]{'.decode()' if field.kind == 'string' else ''}"
    yield "    at = stop"
    yield "else:"
    yield f"    {target} = None" if field.is_nullable else f"    is_null({field.name!r})"


def _array(definition: MessageDefinition, field: Field, target: str) -> Iterator[str]:
    if definition.is_flexible:
        yield from _uvarint("count")
        yield "count -= 1"
    else:
        yield "(count,) = unpack_i(data, at)"
        yield "at += 4"
    element = field._replace(is_array=False, is_nullable=False, tag=None)
    yield "if count > 0:"
    yield f"    if count * {_least(definition, element)} > end - at:"
    yield f"        does_not_fit({field.name!r}, count)"
    yield "    take(count)"
    if field.kind in FIXED and field.kind != "uuid":
        layout, size = FIXED[field.kind]
        yield f"    {target} = unpack(f'>{{count}}{layout}', data, at)"
        yield f"    at += count * {size}"
    else:
        yield f"    {target} = []"
        yield f"    add = {target}.append"
        yield "    for _ in range(count):"
        yield from _indented(_value(definition, element, "one"), 2)
        yield "        add(one)"
        yield f"    {target} = tuple({target})"
    yield "elif count == 0:"
    yield f"    {target} = ()"
    yield "else:"
    yield f"    {target} = None" if field.is_nullable else f"    is_null({field.name!r})"


def _tags(definition: MessageDefinition, name: str) -> Iterator[str]:
    """The section of tagged fields: unknown ones are skipped."""
    tagged = [
        (number, field)
        for number, field in enumerate(definition.structs[name])
        if field.is_present and field.tag is not None
    ]
    for number, field in tagged:
        yield f"v{number} = default_{name}_{field.name}"
    yield "if data[at]:"
    yield "    tags, at = read_tag_count(data, at)"
    yield "    for _ in range(tags):"
    yield "        tag, at = read_uvarint(data, at)"
    yield "        size, at = read_uvarint(data, at)"
    yield "        tag_end = at + size"
    yield "        if tag_end > end:"
    yield "            reaches_past('a tagged field')"
    word = "if"
    for number, field in tagged:
        yield f"        {word} tag == {field.tag}:"
        yield from _indented(_value(definition, field, f"v{number}"), 3)
        word = "elif"
    if tagged:
        yield "        else:"
        yield "            at = tag_end"
        yield "        if at != tag_end:"
        yield "            reaches_past('a tagged field')"
    else:
        yield "        at = tag_end"
    yield "else:"
    yield "    at += 1"
