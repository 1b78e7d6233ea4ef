"""Makes the console's vendored files from published packages, pinned by version and hash.

    python scripts/console_vendor.py

writes `src/headrace/console/static/vendor/`: Preact, its hooks, signals and htm as one ES module,
uPlot, and their licences. (uPlot's style sheet is part of `console.css`.) The files are checked in:
neither users nor developers need npm; whoever changes a version here does. `npm pack` fetches each
package, and its sha512 is verified before anything of it is used.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

OUT = Path(__file__).parent.parent / "src" / "headrace" / "console" / "static" / "vendor"
PACKAGES = {
    "preact": (
        "11.2.0",
        "/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
    ),
    "@preact/signals": (
        "2.11.4",
        "Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==",
    ),
    "@preact/signals-core": (
        "1.14.5",
        "vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==",
    ),
    "htm": (
        "3.1.1",
        "983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
    ),
    "uplot": (
        "1.6.32",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
    ),
}
ESBUILD = "0.28.2"
"""Only reformats and joins what was verified; its output is read in review as a whole."""
ENTRY = """\
export { h, render, Fragment } from "preact";
export { useEffect, useRef, useState, useMemo } from "preact/hooks";
export { signal, computed, effect, batch } from "@preact/signals";
import { h } from "preact";
import htm from "htm";
export const html = htm.bind(h);
"""


def fetch(name: str, folder: Path) -> None:
    """Put a package into `folder/node_modules`. Exits unless its hash is the pinned one."""
    version, sha512 = PACKAGES[name]
    command = ["npm", "pack", "--silent", "--ignore-scripts", f"{name}@{version}"]
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, check=True, capture_output=True, text=True
    )
    data = (folder / done.stdout.strip().splitlines()[-1]).read_bytes()
    found = base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != sha512:
        sys.exit(f"{name} {version} has the hash {found}, not the pinned one: nothing was written")
    target = folder / "node_modules" / name
    target.mkdir(parents=True)
    with tarfile.open(folder / done.stdout.strip().splitlines()[-1]) as archive:
        archive.extractall(target.parent / f".{target.name}", filter="data")
    target.rmdir()
    (target.parent / f".{target.name}" / "package").rename(target)


def licences(folder: Path) -> str:
    """The licences of all packages, as they come."""
    parts = []
    for name, (version, _hash) in PACKAGES.items():
        package = folder / "node_modules" / name
        found = [path for path in package.iterdir() if path.name.upper().startswith("LICENSE")]
        kind = json.loads((package / "package.json").read_text())["license"]
        text = found[0].read_text() if found else f"Licence: {kind}\n"
        parts.append(f"--- {name} {version} ({kind}) ---\n\n{text.strip()}\n")
    return "\n".join(parts)


def main() -> None:
    """Write the files."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for package in PACKAGES:
            fetch(package, folder)
        (folder / "entry.js").write_text(ENTRY)
        for source, target in (
            ("entry.js", "preact.js"),
            ("node_modules/uplot/dist/uPlot.esm.js", "uplot.js"),
        ):
            command = ["npx", "--yes", f"esbuild@{ESBUILD}", source, "--bundle", "--minify"]
            command += ["--format=esm", "--target=es2022", "--legal-comments=none"]
            command += [f"--outfile={OUT / target}"]
            subprocess.run(command, cwd=folder, check=True)  # noqa: S603
        (OUT / "LICENCES.txt").write_text(licences(folder))


if __name__ == "__main__":
    main()
