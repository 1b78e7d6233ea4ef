"""JSON values that a JSON Schema validates.

Invariants: a value is validated against the whole schema, which must be whole: nothing that it
refers to is fetched, since whoever registers a schema would choose what this machine connects to.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.schemas.errors import SchemaUnusable
from headrace.schemas.undecodable import Undecodable


class JsonSchema:
    """One schema."""

    def __init__(self, text: str) -> None:
        """Raises SchemaUnusable, ImportError."""
        import jsonschema_rs

        try:
            self.root = json.loads(text)
            self._validator = jsonschema_rs.validator_for(self.root, retriever=_refuse)
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise SchemaUnusable(f"The JSON Schema cannot be used: {str(error)[:300]}") from error

    def read(self, payload: bytes) -> Any:
        """A valid value. Raises Undecodable, which names the place in it."""
        import jsonschema_rs

        try:
            value = json.loads(payload)
            self._validator.validate(value)
        except (ValueError, RecursionError) as error:
            if isinstance(error, jsonschema_rs.ValidationError):
                place = "/".join(map(str, error.instance_path)) or "the value"
                raise Undecodable(f"{place}: {error.message[:200]}") from error
            raise Undecodable(f"it is not valid JSON: {str(error)[:200]}") from error
        return value

    def validate(self, value: Any) -> None:
        """Raises ValueError if the schema does not allow `value`."""
        self._validator.validate(value)


def _refuse(uri: str) -> Any:
    raise ValueError(f"it refers to {uri[:100]}, which is not part of it")
