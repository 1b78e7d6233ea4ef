"""Builds the compiled hot core (see headrace/runtime/compiled.py): `make fast`.

Needs a C compiler and what the tests need (mypy brings mypyc). On any failure it says so in one
line and leaves the plain modules to do the work; `--must` makes that an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from headrace.runtime import compiled  # noqa: E402

SETUP = """
from mypyc.build import mypycify
from setuptools import setup
setup(
    name={group!r},
    packages=[],
    ext_modules=mypycify(
        ["--config-file={config}", *{sources!r}],
        opt_level={level!r}, debug_level="0", group_name={group!r}, target_dir="c",
    ),
)
"""


def build(into: Path, level: str) -> None:
    """Build the core into the folder `into`. Raises subprocess.CalledProcessError, OSError."""
    digest = compiled.digest()
    with tempfile.TemporaryDirectory(prefix="headrace-core-") as text:
        work = Path(text)
        sources = [str(path) for path in compiled.sources()]
        script = SETUP.format(
            group=compiled.GROUP, config=ROOT / "pyproject.toml", sources=sources, level=level
        )
        (work / "setup.py").write_text(script)
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "built"],
            cwd=work,
            env={**os.environ, "MYPYPATH": str(ROOT / "src"), "CFLAGS": "-g0"},
            check=True,
            capture_output=True,
            text=True,
        )
        if compiled.digest() != digest:
            raise OSError("a source changed meanwhile")
        made = into.with_name(into.name + ".new")
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(work / "built", made)
        (made / compiled.MANIFEST).write_text(digest)
        shutil.rmtree(into, ignore_errors=True)
        made.rename(into)


def main() -> None:
    """Build it, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--must", action="store_true", help="fail where it cannot be built")
    parser.add_argument("--into", type=Path, default=compiled.folder())
    parser.add_argument("--level", default="2", help="the C compiler's optimization, 0 to 3")
    options = parser.parse_args()
    noted = options.into / compiled.MANIFEST
    if noted.exists() and noted.read_text() == compiled.digest():
        return
    print("fast: compiling the hot core (a minute or two)")
    try:
        build(options.into, options.level)
    except (subprocess.CalledProcessError, OSError) as error:
        told = (getattr(error, "stdout", None) or "") + (getattr(error, "stderr", None) or "")
        wrong = [line for line in told.splitlines() if "rror:" in line]
        said = (wrong[-1] if wrong else str(error))[:300]
        print(f"fast: not compiled, pure Python does the work ({said})", file=sys.stderr)
        sys.exit(1 if options.must else 0)
    print(f"fast: ready in {options.into}")


if __name__ == "__main__":
    main()
