"""What codecs raise for a value that they cannot read."""

from __future__ import annotations


class Undecodable(Exception):
    """A value is not what its schema says; the message says where."""
