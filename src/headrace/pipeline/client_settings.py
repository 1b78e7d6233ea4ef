"""Settings of the client: librdkafka's names, and those of Kafka's Java client for the same things.

Invariants: pure. Spark's Kafka connector takes Java's names; jobs that were written for it keep
them here. A name that neither knows is left to librdkafka, which refuses it. No error shows a
value: it may be a secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.pipeline.errors import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

_RENAMED = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
}
_JAAS = "sasl.jaas.config"
_JAAS_MODULES = ("PlainLoginModule", "ScramLoginModule")
_PEM_STORES = {"ssl.truststore.location": "ssl.ca.location"}
_JAVA_ONLY = {
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location",
    "ssl.keystore.password": "ssl.key.password",
    "ssl.truststore.password": "no password: PEM files of certificates need none",
    "key.deserializer": "nothing: keys and values are columns of bytes",
    "value.deserializer": "nothing: keys and values are columns of bytes",
    "key.serializer": "nothing: keys and values are columns of bytes",
    "value.serializer": "nothing: keys and values are columns of bytes",
    "auto.offset.reset": "startingOffsets and failOnDataLoss",
    "enable.auto.commit": "nothing: positions are in Spark's checkpoint",
    "interceptor.classes": "nothing: they are Java classes",
}
_QUOTED = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def client_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of librdkafka for these. Raises OptionInvalid for those of Java alone."""
    settings: dict[str, str] = {}
    for name, value in given.items():
        if name == _JAAS:
            settings |= _of_jaas(value)
        elif name in _PEM_STORES and given.get("ssl.truststore.type", "").upper() == "PEM":
            settings[_PEM_STORES[name]] = value
        elif name in _PEM_STORES:
            raise _java_only(name, "ssl.ca.location, a PEM file")
        elif name in _JAVA_ONLY:
            raise _java_only(name, _JAVA_ONLY[name])
        elif name not in ("ssl.truststore.type", "ssl.keystore.type"):
            settings[_RENAMED.get(name, name)] = value
    return settings


def _of_jaas(text: str) -> dict[str, str]:
    found = {name: _ESCAPED.sub(r"\1", value) for name, value in _QUOTED.findall(text)}
    if not any(module in text for module in _JAAS_MODULES) or len(found) != 2:
        raise OptionInvalid(
            f"The option kafka.{_JAAS} cannot be used: it names neither PlainLoginModule nor"
            " ScramLoginModule with a quoted username and password. Set kafka.sasl.username and"
            " kafka.sasl.password instead.",
            option=f"kafka.{_JAAS}",
        )
    return {"sasl.username": found["username"], "sasl.password": found["password"]}


def _java_only(name: str, instead: str) -> OptionInvalid:
    return OptionInvalid(
        f"The option kafka.{name} is of Kafka's Java client, and this source uses librdkafka's"
        f" settings. Set instead: {instead}.",
        option=f"kafka.{name}",
    )
