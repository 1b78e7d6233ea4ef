"""The README names the APIs of Kafka's clients that a broker does not have."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.kafka.apis import APIS
from headrace.kafka.wire.definitions import OWN_KEYS_FROM, keys

README = Path(__file__).parents[2] / "README.md"
BETWEEN_SERVERS = {52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 84, 85}
"""Requests that only Kafka's own brokers and controllers send to each other."""


def test_the_readme_names_the_apis_that_are_missing():
    (row,) = re.findall(r"^\| Kafka APIs that are missing \|.*$", README.read_text(), re.MULTILINE)
    named = {int(number) for number in re.findall(r"\b[0-9]+\b", row)}
    of_clients = {key for key, _kind, _versions in keys() if key < OWN_KEYS_FROM}
    assert named == of_clients - BETWEEN_SERVERS - set(APIS)
