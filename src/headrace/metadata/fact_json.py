"""The JSON encoding of stored facts: an object with `v`, the version of its schema.

Invariants: knows JSON and dataclasses, no particular fact. Decoding is strict about the fields
that are read and preserves the others.
"""

from __future__ import annotations

import json
from dataclasses import fields as dataclass_fields
from typing import Any
from uuid import UUID

from headrace.errors import DataCorrupt, FormatUnsupported

FACT_VERSION = 1
INT64_MAX = (1 << 63) - 1
Json = dict[str, Any]


class FactReader:
    """Reads the known fields from one decoded JSON object, strictly."""

    __slots__ = ("_fields", "_what")

    def __init__(self, what: str, fields: Any) -> None:
        self._what = what
        if not isinstance(fields, dict):
            raise self.corrupt("is not a JSON object")
        self._fields: Json = fields

    @classmethod
    def parse(cls, what: str, value: bytes, version_max: int = 0) -> FactReader:
        """The reader of a whole stored value, after checking its `v`.

        `version_max`: of a kind of facts that has had later versions than FACT_VERSION.
        """
        version_max = max(version_max, FACT_VERSION)
        try:
            reader = cls(what, json.loads(value))
        except (ValueError, RecursionError) as error:
            raise DataCorrupt(
                f"the stored {what} is not JSON ({error}): restore the metadata from a backup",
                fact=what,
            ) from error
        version = reader.integer("v", 1)
        if version > version_max:
            raise FormatUnsupported(
                f"the stored {what} has version {version}, this version of Headrace supports up to"
                f" {version_max}: start a newer one",
                fact=what,
                version=version,
            )
        return reader

    def corrupt(self, problem: str) -> DataCorrupt:
        """A DataCorrupt about this object."""
        return DataCorrupt(
            f"the stored {self._what} {problem}: restore the metadata from a backup",
            fact=self._what,
        )

    def take(self, name: str) -> Any:
        """A required field."""
        if name not in self._fields:
            raise self.corrupt(f"lacks {name!r}")
        return self._fields.pop(name)

    def integer(self, name: str, least: int) -> int:
        """A required integer of at least `least`."""
        value = self.take(name)
        if type(value) is not int or not least <= value <= INT64_MAX:
            raise self.corrupt(f"has {name!r} {value!r}, not an integer from {least}")
        return value

    def integer_or_none(self, name: str, least: int) -> int | None:
        """An integer of at least `least`; null and absent are None."""
        if self._fields.get(name) is None:
            self._fields.pop(name, None)
            return None
        return self.integer(name, least)

    def text(self, name: str) -> str:
        """A required string."""
        value = self.take(name)
        if not isinstance(value, str):
            raise self.corrupt(f"has {name!r} {value!r}, not a string")
        return value

    def text_or_none(self, name: str) -> str | None:
        """A string; null and absent are None."""
        if self._fields.get(name) is None:
            self._fields.pop(name, None)
            return None
        return self.text(name)

    def uuid(self, name: str, what: str = "id") -> UUID:
        """A UUID in hexadecimal; `what` is its name in error messages."""
        text = self.text(name)
        try:
            return UUID(hex=text)
        except ValueError as error:
            raise self.corrupt(f"has an invalid {what} {text!r}") from error

    def texts(self, name: str) -> dict[str, str]:
        """An object of strings."""
        value = self.take(name)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self.corrupt(f"has {name!r} {value!r}, not an object of strings")
        return value

    def texts_or_empty(self, name: str) -> dict[str, str]:
        """An object of texts that earlier versions did not write."""
        return self.texts(name) if name in self._fields else {}

    def objects(self, name: str, what: str) -> list[FactReader]:
        """A list of objects."""
        value = self.take(name)
        if not isinstance(value, list):
            raise self.corrupt(f"has {name!r} {value!r}, not a list")
        return [FactReader(what, item) for item in value]

    def objects_or_none(self, name: str, what: str) -> list[FactReader] | None:
        """A list of objects; null and absent are None."""
        if self._fields.get(name) is None:
            self._fields.pop(name, None)
            return None
        return self.objects(name, what)

    def rest(self) -> Json:
        """The fields that were not read."""
        return self._fields


def shown_fields(fact: Any) -> Json:
    """A fact's fields by name, as JSON values. Field names are therefore stored, too."""
    shown: Json = {}
    for item in dataclass_fields(fact):
        value = getattr(fact, item.name)
        if isinstance(value, UUID):
            value = value.hex
        elif isinstance(value, list):
            value = [shown_fields(item) for item in value]
        if value is not None and item.name != "unknown":
            shown[item.name] = value
    return shown | dict(fact.unknown)


def encode_fact(fields: Json, version: int = FACT_VERSION) -> bytes:
    """The stored bytes of a fact, given its fields."""
    return json.dumps({"v": version, **fields}, separators=(",", ":")).encode()
