"""The documents build as a site: each page is in its contents, and each link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

from tests.documents.commands import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"((?:https?:)?//[^\"]+)\"")


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    options = "-W", "--keep-going", "-n", "-q", "-b", "html"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for one in ("0.1.9", "latest"):
        (tmp_path / one).mkdir()
        (tmp_path / one / "searchindex.js").touch()
    command = [sys.executable, "-m", "sphinx", *options, "docs", str(tmp_path / version)]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        assert not _LOADED.findall(page.read_text()), page
    versions = f'const VERSIONS = ["{version}", "0.1.9", "latest"];\n'
    assert (tmp_path / "versions.js").read_text() == versions
    assert f"url={version}/index.html" in (tmp_path / "index.html").read_text()
    tmp_path /= version
    assert 'src="../../versions.js"' in (tmp_path / "reference" / "settings.html").read_text()
    assert "headrace topic copy" in (tmp_path / "reference" / "commands.html").read_text()
    assert (tmp_path / "searchindex.js").stat().st_size > 100_000
