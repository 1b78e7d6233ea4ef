"""The documentation as a site: `make docs` builds it from the same pages, with Sphinx.

Invariants: builds without a network. Every warning is an error (`tests/documents/test_site.py`), so
that a link that leads nowhere fails the build. The page of commands is written when it is built.
Each version has a folder of its own; those that were built before stay as they are.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

from headrace.cli.commands_reference import page as commands

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent

project = "Headrace"
author = "the authors of Headrace"
release = version = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"][
    "version"
]
extensions = ["myst_parser"]
myst_heading_anchors = 6  # links such as QUEUES.md#named-sequences
html_theme = "furo"  # light and dark, by the reader's system
html_title = f"Headrace {version}"
html_copy_source = False
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        f"sidebar/{one}.html"
        for one in ("brand", "versions", "search", "scroll-start", "navigation", "scroll-end")
    ]
}
html_show_sphinx = False
suppress_warnings = ["misc.highlighting_failure"]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_lexer("mermaid", TextLexer)  # diagrams stay text: drawing them needs a network
    app.connect("builder-inited", _write_commands)
    app.connect("build-finished", _write_versions)


def _write_commands(_app: Sphinx) -> None:
    (HERE / "reference" / "commands.md").write_text(commands())


def _numbers(version: str) -> list[int]:
    """To sort by; a folder such as `latest` is older than each version."""
    return [int(part) if part.isdigit() else -1 for part in version.split(".")]


def _write_versions(app: Sphinx, error: Exception | None) -> None:
    """Beside the folders of all versions: their list, and a page that leads to the newest."""
    folder = Path(app.outdir)
    if error is not None or folder.name != version:
        return
    built = [one.parent.name for one in folder.parent.glob("*/searchindex.js")]
    built.sort(key=_numbers, reverse=True)
    (folder.parent / "versions.js").write_text(f"const VERSIONS = {json.dumps(built)};\n")
    (folder.parent / "index.html").write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={built[0]}/index.html">\n'
    )
