"""Downloads: trust and proxies as pip has them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from tests.cluster.certificates import Authority
from tests.unit.runtime.web_server import serving

from headrace.java.download import DownloadCorrupt, DownloadFailed, Downloads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = b"the file" * 100_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
VARIABLES = (
    *("PIP_CERT", "PIP_PROXY", "PIP_CONFIG_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"),
    *("ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"),
)


class _Private:
    """A server whose authority only this test knows."""

    def __init__(self, url: str, authority: Path) -> None:
        self.url = url
        self.authority = authority


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Private]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    authority = Authority(tmp_path, "private")
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file.jar").write_bytes(CONTENT)
    with serving(folder, authority.sign("server")) as url:
        yield _Private(f"{url}/file.jar", authority.certificate)


def _fetch(url: str, folder: Path, sha256: str = SHA256) -> list[tuple[int, int | None]]:
    told: list[tuple[int, int | None]] = []
    target = folder / "fetched.jar"
    Downloads().fetch(url, target, sha256, lambda count, size: told.append((count, size)))
    assert target.read_bytes() == CONTENT
    return told


def test_a_private_authority_is_not_trusted_unless_named(private: _Private, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"is not trusted.*PIP_CERT"):
        _fetch(private.url, tmp_path)


@pytest.mark.parametrize(
    "name", ["PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"]
)
def test_an_authority_that_a_variable_names_is_trusted(
    private: _Private, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(private.authority))
    told = _fetch(private.url, tmp_path)
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_an_authority_of_pips_own_settings_is_trusted(
    private: _Private, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\ncert = {private.authority}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    _fetch(private.url, tmp_path)


def test_a_bundle_that_cannot_be_read_is_named(
    private: _Private, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle.pem").write_text("no certificate")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "bundle.pem"))
    with pytest.raises(DownloadFailed, match=r"REQUESTS_CA_BUNDLE names .*bundle\.pem"):
        _fetch(private.url, tmp_path)


@pytest.mark.parametrize("name", ["PIP_PROXY", "http_proxy"])
def test_a_proxy_is_asked(
    private: _Private, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A proxy gets the whole address; this one serves what lies below its own folder."""
    assert private.authority.exists()
    folder = tmp_path / "proxy"
    (folder / "http:" / "far.example" / "files").mkdir(parents=True)
    (folder / "http:" / "far.example" / "files" / "file.jar").write_bytes(CONTENT)
    with serving(folder) as url:
        monkeypatch.setenv(name, url)
        _fetch("http://far.example/files/file.jar", tmp_path)


def test_other_bytes_are_not_put_into_place(
    private: _Private, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CERT", str(private.authority))
    with pytest.raises(DownloadCorrupt, match="is discarded"):
        _fetch(private.url, tmp_path, "0" * 64)
    assert not (tmp_path / "fetched.jar").exists()
    assert not list(tmp_path.glob(".fetch-*"))
