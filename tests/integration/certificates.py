"""Certificates in files, for brokers and clients that speak TLS."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.runtime.new_certificates import Authority, Pem

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK = ("localhost", "127.0.0.1")


class Certificates:
    """A folder with a CA, the certificate of a broker, and those of clients."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority = self._authority("ca")
        self.ca = self.write("ca.pem", self.authority.certificate)
        self.broker = folder / "broker.pem"
        self.write_broker(self.authority.sign("broker", LOOPBACK))

    def _authority(self, name: str) -> Authority:
        return Authority(name, time.time_ns() // 1_000_000)

    def write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def write_broker(self, pem: Pem) -> None:
        """Replace the broker's key and certificate, as tools do it: in one step."""
        new = self.write("broker.new", pem.key + pem.certificate)
        new.replace(self.broker)

    def client(self, name: str, *, days: int = 30, is_foreign: bool = False) -> dict[str, str]:
        """librdkafka's settings of a client with a certificate of its own."""
        authority = self._authority("foreign") if is_foreign else self.authority
        pem = authority.sign(name, days=days)
        return {
            **self.anonymous(),
            "ssl.certificate.location": str(self.write(f"{name}.pem", pem.certificate)),
            "ssl.key.location": str(self.write(f"{name}.key", pem.key)),
        }

    def anonymous(self) -> dict[str, str]:
        """librdkafka's settings of a client without a certificate."""
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.ca)}

    def options(self, client_auth: str = "none") -> list[str]:
        """Those of `headrace serve`."""
        return [
            *("--ssl-keystore-location", str(self.broker)),
            *("--ssl-truststore-location", str(self.ca), "--ssl-client-auth", client_auth),
        ]
