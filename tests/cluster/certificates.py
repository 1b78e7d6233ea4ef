"""Certificates for tests: two authorities, and what each of them has signed. Made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from headrace.runtime.tls import TlsFiles

if TYPE_CHECKING:
    from pathlib import Path

ROLE = "headrace"


class Identity(NamedTuple):
    """PEM files of one party."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(self.authority, self.certificate, self.key)


class Authority:
    """A CA for tests."""

    def __init__(self, folder: Path, name: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("NO OPENSSL: there is nobody to make certificates")
        self._folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._run(
            *("req", "-x509", "-days", "2", "-subj", f"/CN={name}", "-out", self.certificate),
            *("-addext", "basicConstraints=critical,CA:true", "-keyout", self._key),
            # Python 3.13 checks strictly, as RFC 5280 says.
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        )

    def sign(self, name: str, *, role: str = "", address: str = "127.0.0.1") -> Identity:
        """An identity that this authority vouches for, at `address`."""
        made = self._folder / f"{self.certificate.stem}-{name}.pem"
        key, request = made.with_suffix(".key"), made.with_suffix(".request")
        extensions = made.with_suffix(".extensions")
        extensions.write_text(f"subjectAltName=IP:{address}\nauthorityKeyIdentifier=keyid\n")
        unit = f"/OU=0:{role}" if role else ""
        self._run(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-subj", f"{unit}/CN={name}", "-keyout", key, "-out", request),
        )
        self._run(
            *("x509", "-req", "-days", "2", "-in", request, "-out", made),
            *("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial"),
            *("-extfile", extensions),
        )
        return Identity(self.certificate, made, key)

    def _run(self, *arguments: object) -> None:
        command = ["openssl", *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
