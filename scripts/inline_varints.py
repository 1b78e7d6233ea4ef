"""Writes out the varints that the loops over records decode without a call.

    python scripts/inline_varints.py

A call costs 0.1 us for each field of a record, and a function cannot be inlined in Python. A line
`# inline: name, at = read_varint(data, at)` is followed by the code for numbers of one and two
bytes, and by the call for all others. Add such a line and run this; do not edit what follows it.
A test requires that the checked-in modules are what this writes.
"""

from __future__ import annotations

import re
from pathlib import Path

RECORDS = Path(__file__).resolve().parents[1] / "src" / "headrace" / "records"
TEMPLATE = """\
byte = {data}[{at}]
if byte < 128:
    {name}, {end} = (byte >> 1) ^ -(byte & 1), {at} + 1
elif (high := {data}[{at} + 1]) < 128:
    {name}, {end} = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), {at} + 2
else:
    {call}
"""
MARKED = re.compile(
    r"^(?P<indent> *)# inline: "
    r"(?P<call>(?P<name>\w+), (?P<end>\w+) = read_varint\((?P<data>\w+), (?P<at>\w+)[^)\n]*\))\n"
    r"(?:(?P=indent)byte = .*\n(?:.*\n){5}(?P=indent) {4}(?P=call)\n)?",  # what it wrote before
    re.MULTILINE,
)


def expanded(source: str) -> str:
    """`source` with the code after each marked line written anew."""

    def code_for(found: re.Match[str]) -> str:
        indent = found["indent"]
        lines = TEMPLATE.format_map(found.groupdict()).splitlines()
        return (
            "\n".join([f"{indent}# inline: {found['call']}", *(indent + line for line in lines)])
            + "\n"
        )

    return MARKED.sub(code_for, source)


def main() -> None:
    """Write the modules in which something changes."""
    for path in sorted(RECORDS.glob("*.py")):
        source = path.read_text()
        if (written := expanded(source)) != source:
            path.write_text(written)


if __name__ == "__main__":
    main()
