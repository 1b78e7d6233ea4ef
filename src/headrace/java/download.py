"""HTTP downloads with the certificates and proxies that pip uses on this machine.

Invariants: where `pip install` works, this works. Trusted certificates are the system's and those
in the bundles named by SSL_CERT_FILE, PIP_CERT (or pip's `cert` setting), REQUESTS_CA_BUNDLE and
CURL_CA_BUNDLE. Proxies come from pip's `proxy` setting, or from HTTPS_PROXY, HTTP_PROXY and
NO_PROXY. A file is moved into place only if its SHA-256 matches.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib
import importlib.util
import os
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import Fatal, Retriable

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[int, int | None], None]

TIMEOUT_S = 60
ATTEMPTS = 3
BLOCK_BYTES = 1 << 18
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables of Python and curl that name CA bundles."""
_SETTING = re.compile(r"^(:env:|install|global|download)\.(cert|client-cert|proxy)='(.*)'$")
_WEIGHT = {"global": 0, "install": 1, "download": 1, ":env:": 2}
_SCHEMES = ("https://", "http://", "file://")


class DownloadFailed(Retriable):
    """The download failed."""


class DownloadCorrupt(Fatal):
    """The file's SHA-256 is not the pinned one."""


class Downloads:
    """Downloads files; reads pip's configuration once."""

    def __init__(self) -> None:
        settings = pip_settings()
        proxies = urllib.request.getproxies()
        if "proxy" in settings:
            proxies |= {"http": settings["proxy"], "https": settings["proxy"]}
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPSHandler(context=trust(settings)),
        )

    def fetch(self, url: str, target: Path, sha256: str, progress: Progress) -> None:
        """Download `url` to `target`. `progress` gets (bytes so far, total bytes or None).

        Raises DownloadFailed, DownloadCorrupt.
        """
        assert url.startswith(_SCHEMES), "only this scheme is opened"
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
            made = Path(folder) / target.name
            actual = self._read_at_last(url, made, progress)
            if actual != sha256:
                raise DownloadCorrupt(
                    f"{target.name} has SHA-256 {actual}, expected {sha256}: the file is"
                    f" discarded. Check what is served at {url}",
                    file=target.name,
                )
            made.replace(target)

    def _read_at_last(self, url: str, made: Path, progress: Progress) -> str:
        """`_read`, retried if that may help. Raises DownloadFailed."""
        attempts_left = ATTEMPTS
        while True:
            attempts_left -= 1
            try:
                return self._read(url, made, progress)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                if not attempts_left or not _may_pass(error):
                    raise DownloadFailed(f"{url}: {_reason(error)}") from error

    def _read(self, url: str, made: Path, progress: Progress) -> str:
        """Read it completely; returns its SHA-256. Raises OSError, HTTPException."""
        found = hashlib.sha256()
        answer: Any = self._opener.open(url, timeout=TIMEOUT_S)
        with answer, made.open("wb") as stream:
            text = answer.headers.get("Content-Length")
            size = int(text) if text is not None and text.isdigit() else None
            count = 0
            while block := answer.read(BLOCK_BYTES):
                stream.write(block)
                found.update(block)
                count += len(block)
                progress(count, size)
        if size is not None and count != size:
            raise http.client.IncompleteRead(b"", size - count)
        return found.hexdigest()


def pip_settings() -> dict[str, str]:
    """pip's `cert`, `client-cert` and `proxy`, from its files and the environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    try:
        output = subprocess.run(  # noqa: S603 - our own interpreter
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    found: dict[str, tuple[int, str]] = {}
    for line in output.splitlines():
        matched = _SETTING.match(line.strip())
        if matched:
            section, name, value = matched.groups()
            found[name] = max(found.get(name, (-1, "")), (_WEIGHT[section], value))
    settings = {name: value for name, (_, value) in found.items()}
    if "cert" not in settings and os.environ.get("PIP_CERT"):
        settings["cert"] = os.environ["PIP_CERT"]  # if pip is not installed
    return settings


def trust(settings: dict[str, str]) -> ssl.SSLContext:
    """The TLS context with the trusted CA bundles. Raises DownloadFailed for an unusable bundle."""
    context = ssl.create_default_context()
    named = {"pip's cert setting": settings.get("cert", "")}
    named |= {name: os.environ.get(name, "") for name in BUNDLES}
    for name, value in named.items():
        if not value:
            continue
        path = Path(value)
        try:
            if path.is_dir():
                context.load_verify_locations(capath=value)
            else:
                context.load_verify_locations(cafile=value)
        except (OSError, ssl.SSLError) as error:
            raise DownloadFailed(
                f"{name} names {value}, which holds no readable certificates ({error}):"
                " correct it, then try again"
            ) from error
    if not context.cert_store_stats()["x509_ca"]:  # a bare container
        for module in ("certifi", "pip._vendor.certifi"):
            if _is_there(module):
                context.load_verify_locations(cafile=importlib.import_module(module).where())
                break
    if settings.get("client-cert"):
        context.load_cert_chain(settings["client-cert"])
    return context


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _may_pass(error: BaseException) -> bool:
    """Return whether another attempt may succeed."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= 500 or error.code == 429
    reason = getattr(error, "reason", error)
    return not isinstance(reason, ssl.SSLCertVerificationError)


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate is not trusted ({reason.verify_message}). Set the CA"
            " bundle as for pip: PIP_CERT, REQUESTS_CA_BUNDLE or SSL_CERT_FILE, or `pip"
            " config set global.cert FILE`"
        )
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    return str(reason) or type(reason).__name__
