"""Schemas of Avro, parsed once in each process."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from headrace.schemas.errors import SchemaUnusable


@lru_cache(maxsize=1_024)
def parsed(text: str) -> Any:
    """A schema as fastavro has it: names in full. Raises SchemaUnusable, ImportError."""
    from fastavro import parse_schema

    try:
        return parse_schema(json.loads(text))
    except Exception as error:  # of several libraries, without a common kind
        raise SchemaUnusable(f"The Avro schema cannot be parsed: {error}") from error
