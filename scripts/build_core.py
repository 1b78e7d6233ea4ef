"""Builds the compiled hot core (see headrace/runtime/compiled.py): `make fast`.

Needs a C compiler and what the tests need (mypy brings mypyc). On any failure it says so in one
line and leaves the plain modules to do the work; `--must` makes that an error.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from importlib.metadata import version
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


def toolchain(level: str) -> str:
    """The compilers and their options, in words."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    flags = os.environ.get("CFLAGS", "")
    return (
        f"mypyc {version('mypy')}, {done.stdout.partition(chr(10))[0]}, -O{level} {flags}".strip()
    )


def dependencies() -> list[str]:
    """The modules of the core, and those that define what it imports: mypyc copies constants.

    A name that a module only passes on is followed to where it is defined.
    """
    found = dict.fromkeys(compiled.CORE)
    for name in compiled.CORE:
        for module, imported in imports_of(name):
            found.update(dict.fromkeys(defining_modules(module, imported)))
    return sorted(found)


def imports_of(name: str) -> list[tuple[str, str]]:
    """(module, name) of everything that a module of the package imports from the package."""
    pairs = []
    for node in ast.walk(ast.parse(compiled.source(name).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace."):
            module = (node.module or "").removeprefix("headrace.").replace(".", "/")
            pairs += [(module, alias.name) for alias in node.names]
    return pairs


def defining_modules(module: str, name: str) -> list[str]:
    """The module that a name is imported from, and those it came through."""
    chain: list[str] = []
    while module not in chain and compiled.source(module).exists():
        chain.append(module)
        if compiled.source(f"{module}/{name}").exists():  # the name is a module itself
            return [*chain, f"{module}/{name}"]
        further = [where for where, imported in imports_of(module) if imported == name]
        if not further:
            break
        module = further[0]
    return chain


def build(into: Path, level: str) -> None:
    """Build the core into the folder `into`. Raises subprocess.CalledProcessError, OSError."""
    import mypyc

    tools, modules = toolchain(level), dependencies()
    digest = compiled.digest(modules, tools)
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
            env={
                **os.environ,
                "MYPYPATH": str(ROOT / "src"),
                # Without the paths of this machine, so that the same sources give the same bytes;
                # and small: no names for other libraries, no tables for exceptions of C++.
                "CFLAGS": f"-g0 -fvisibility=hidden -fno-asynchronous-unwind-tables"
                f" -ffile-prefix-map={Path(mypyc.__file__).parents[1]}=.",
                "LDFLAGS": f"-s -Wl,-z,noseparate-code {os.environ.get('LDFLAGS', '')}".strip(),
            },
            check=True,
            capture_output=True,
            text=True,
        )
        if compiled.digest(modules, tools) != digest:
            raise OSError("a source changed meanwhile")
        made = into.with_name(into.name + ".new")
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(work / "built", made)
        compiled.write_manifest(made, modules, tools)
        shutil.rmtree(into, ignore_errors=True)
        made.rename(into)


def main() -> None:
    """Build it, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--must", action="store_true", help="fail where it cannot be built")
    parser.add_argument("--into", type=Path, default=compiled.folder())
    parser.add_argument("--level", default="2", help="the C compiler's optimization, 0 to 3")
    options = parser.parse_args()
    noted = compiled.read_manifest(options.into)
    is_same = noted is not None and noted.toolchain == toolchain(options.level)
    if is_same and noted.modules == tuple(dependencies()) and compiled.is_fresh(options.into):
        return
    print("fast: compiling the hot core (a minute or two)")
    try:
        build(options.into, options.level)
    except (subprocess.CalledProcessError, OSError) as error:
        told = (getattr(error, "stdout", None) or "") + (getattr(error, "stderr", None) or "")
        wrong = [line for line in told.splitlines() if "rror:" in line]
        said = (wrong[-1] if wrong else str(error))[:300]
        log = ROOT / ".cache" / "build_core.log"
        if options.must:  # the folder may be one that goes away, as of a build of a package
            print(told, file=sys.stderr)
        with suppress(OSError):
            log.parent.mkdir(exist_ok=True)
            log.write_text(f"{error}\n{told}")
        print(
            f"fast: not compiled, pure Python does the work ({said}); all: {log}", file=sys.stderr
        )
        sys.exit(1 if options.must else 0)
    print(f"fast: ready in {options.into}")


if __name__ == "__main__":
    main()
