"""Errors of schemas and registries.

Invariants: no message holds a login.
"""

from __future__ import annotations

from headrace.errors import Rejected, Retriable


class SchemaUnusable(Rejected):
    """A schema cannot be parsed, is of an unsupported kind, or the registry refuses it."""


class RegistryUnavailable(Retriable):
    """The schema registry did not answer."""
