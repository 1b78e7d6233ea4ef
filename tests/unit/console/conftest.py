"""Runs the console's modules by Node.js, without a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import as_file, files

import pytest

STUBS = """
globalThis.document = { documentElement: {}, createElement: () => ({}), addEventListener() {} };
globalThis.window = globalThis;
globalThis.location = { pathname: "/", search: "", hash: "", origin: "http://broker" };
globalThis.history = { replaceState() {}, pushState() {} };
globalThis.addEventListener = () => {};
globalThis.localStorage = { getItem: () => null, setItem() {} };
globalThis.sessionStorage = localStorage;
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
"""


@pytest.fixture(scope="module")
def run_script(tmp_path_factory):
    """Run a module beside the console's files, and return what it prints as JSON."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    folder = tmp_path_factory.mktemp("console")
    with as_file(files("headrace.console") / "static") as static:
        shutil.copytree(static, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "stubs.js").write_text(STUBS)

    def run(script: str, *given: object) -> object:
        names = ", ".join(f"given{number}" for number in range(len(given)))
        head = f'import "./stubs.js";\nconst [{names}] = {json.dumps(given)};\n'
        (folder / "script.js").write_text(head + script)
        done = subprocess.run(
            ["node", "script.js"], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
