"""Derives the codecs' message definitions from those that Apache Kafka publishes in its client jar.

    python scripts/kafka_messages.py ~/.cache/headrace/jars/kafka-clients-4.3.0.jar

writes `src/headrace/kafka/wire/messages.jsonl` (what codecs are built from at run time, one message
a line) and `src/headrace/kafka/wire/messages.pyi` (the same as types, for mypy). Both are checked
in: neither a broker nor a build needs Java or the jar. `tests/unit/kafka/test_definitions.py`
repeats the derivation where the jar is present.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent.parent / "src" / "headrace" / "kafka" / "wire"
FOLDER = "common/message/"
LICENCE = (
    "Derived from the message definitions of Apache Kafka {version}, Copyright The Apache Software"
    " Foundation, licensed under the Apache License 2.0 (see LICENSE and NOTICE)."
    " Written by scripts/kafka_messages.py: do not edit."
)
PYTHON_TYPES = {
    "bool": "bool", "float64": "float", "string": "str", "bytes": "bytes", "records": "bytes",
    "uuid": "UUID | None",
}  # fmt: skip
INTEGERS = {"int8", "int16", "uint16", "int32", "uint32", "int64"}
NEVER = "none"


def snake(name: str) -> str:
    """`ThrottleTimeMs` -> `throttle_time_ms`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def definitions(jar: Path) -> list[dict[str, Any]]:
    """Kafka's definitions of all requests and responses that have versions, by API key."""
    found: list[dict[str, Any]] = []
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith(FOLDER) and name.endswith(".json"):
                text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                message = json.loads(text)
                if "apiKey" in message and message["validVersions"] != NEVER:
                    found.append(message)
    return sorted(found, key=lambda message: (message["apiKey"], message["type"]))


def default_of(field: dict[str, Any]) -> Any:
    """A field's explicit default as a JSON value."""
    value, kind = field["default"], field["type"]
    if value == "null":
        return None
    if kind in INTEGERS:
        return value if isinstance(value, int) else int(value, 0)
    if kind == "bool":
        return value in {True, "true"}
    if kind == "float64":
        return float(value)
    assert kind == "string", field
    return value


def compact(field: dict[str, Any]) -> dict[str, Any]:
    """What the codecs need to know of a field."""
    out = {"name": snake(field["name"]), "type": field["type"], "versions": field["versions"]}
    if field.get("nullableVersions", NEVER) != NEVER:
        out["nullable"] = field["nullableVersions"]
    if "tag" in field:
        out["tag"] = field["tag"]
        out["tagged"] = field["taggedVersions"]
    if "default" in field:
        out["default"] = default_of(field)
    assert "flexibleVersions" not in field, field
    if "fields" in field:
        out["fields"] = [compact(inner) for inner in field["fields"]]
    return out


def compact_message(message: dict[str, Any]) -> dict[str, Any]:
    """What the codecs need to know of a message."""
    return {
        "key": message["apiKey"],
        "kind": message["type"],
        "name": message["name"],
        "versions": message["validVersions"],
        "flexible": message["flexibleVersions"],
        "fields": [compact(field) for field in message["fields"]],
        "structs": {
            common["name"]: [compact(field) for field in common["fields"]]
            for common in message.get("commonStructs", ())
        },
    }


def data_file(messages: list[dict[str, Any]], version: str) -> str:
    """The text of `messages.jsonl`."""
    lines = [json.dumps({"about": LICENCE.format(version=version)})]
    lines += [json.dumps(message, separators=(",", ":")) for message in messages]
    return "\n".join(lines) + "\n"


def hint(field: dict[str, Any]) -> str:
    """A field's type in Python."""
    kind = field["type"]
    base = kind.removeprefix("[]")
    python = "int" if base in INTEGERS else PYTHON_TYPES.get(base, base)
    if kind.startswith("[]"):
        python = f"tuple[{python}, ...]"
    return f"{python} | None" if "nullable" in field and not python.endswith("None") else python


def classes(message: dict[str, Any]) -> list[str]:
    """The classes of a message, those it holds first."""
    out: list[str] = []
    prefix = message["name"]

    def qualified(kind: str) -> str:
        base = kind.removeprefix("[]")
        is_plain = base in INTEGERS or base in PYTHON_TYPES
        return kind if is_plain else kind.replace(base, f"{prefix}_{base}")

    def add(name: str, fields: list[dict[str, Any]]) -> None:
        for field in fields:
            if "fields" in field:
                add(qualified(field["type"]).removeprefix("[]"), field["fields"])
        lines = [f"class {name}:"]
        lines += [
            f"    {field['name']}: {hint({**field, 'type': qualified(field['type'])})}"
            for field in fields
        ]
        out.append("\n".join(lines if fields else [f"class {name}: ..."]))

    for name, fields in message["structs"].items():
        add(f"{prefix}_{name}", fields)
    add(prefix, message["fields"])
    return out


def stub_file(messages: list[dict[str, Any]], version: str) -> str:
    """The text of `messages.pyi`."""
    head = "\n".join(
        f"# {line.strip()}"
        for line in re.findall(r".{1,96}(?:\s|$)", LICENCE.format(version=version))
    )
    doc = (
        '"""What reads of each message give, for type checkers: not a module at run time.\n\n'
        "A field that the version of a message lacks has its default.\n"
        '"""'
    )
    body = "\n\n".join(text for message in messages for text in classes(message))
    return f"{head}\n{doc}\n\nfrom uuid import UUID\n\n{body}\n"


def main(jar: Path) -> None:
    """Write both files."""
    version = re.search(r"(\d+\.\d+\.\d+)\.jar$", jar.name)
    assert version is not None, "the jar's name ends in its version"
    messages = [compact_message(message) for message in definitions(jar)]
    (OUT / "messages.jsonl").write_text(data_file(messages, version[1]))
    (OUT / "messages.pyi").write_text(stub_file(messages, version[1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]).expanduser())
