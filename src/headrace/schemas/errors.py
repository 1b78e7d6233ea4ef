"""Errors of schemas and registries.

Invariants: no message holds a login.
"""

from __future__ import annotations

from headrace.errors import Rejected, Retriable


class SchemaUnusable(Rejected):
    """A schema cannot be parsed, is of an unsupported kind, or the registry refuses it."""


class SchemaHasReferences(SchemaUnusable):
    """A schema refers to others, which is not supported."""


class RegistryRefused(SchemaUnusable):
    """The registry refuses a request for good."""


class SchemasNotConfigured(Rejected):
    """Values are to be decoded, and the broker knows neither a registry nor a folder of schemas."""


class RegistryUnavailable(Retriable):
    """The schema registry did not answer."""
