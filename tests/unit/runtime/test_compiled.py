"""When the compiled core is used, and when the plain modules are: no mixture, no old code."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from headrace.records import batch
from headrace.runtime import compiled

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A folder that looks like a build of the sources as they are, and that is insisted on."""
    if compiled.is_used():
        pytest.skip("this run is on the compiled core already")
    compiled.write_manifest(tmp_path, compiled.CORE, "a compiler")
    monkeypatch.setenv(compiled.SWITCH, str(tmp_path))
    return tmp_path


def test_every_module_of_the_core_is_there():
    assert all(path.is_file() for path in compiled.sources())


def test_a_core_of_other_sources_is_refused(built):
    manifest = built / compiled.MANIFEST
    manifest.write_text(manifest.read_text().replace("a compiler", "another compiler"))
    with pytest.raises(compiled.CoreUnusableError, match="does not match the sources"):
        compiled.use()


def test_an_edit_of_any_source_makes_a_build_stale(tmp_path, monkeypatch):
    copies = {}
    for number, name in enumerate(compiled.CORE):
        copies[name] = tmp_path / f"{number}.py"
        copies[name].write_bytes(compiled.source(name).read_bytes())
    monkeypatch.setattr(compiled, "source", copies.__getitem__)
    compiled.write_manifest(tmp_path, compiled.CORE, "a compiler")
    assert compiled.is_fresh(tmp_path)
    copies[compiled.CORE[-1]].write_bytes(copies[compiled.CORE[-1]].read_bytes() + b"\n")
    assert not compiled.is_fresh(tmp_path)


@pytest.mark.skipif(
    shutil.which(sysconfig.get_config_var("CC").split()[0]) is None,
    reason="the compiler that built this Python is not here",
)
def test_a_build_depends_on_every_module_whose_constants_it_imports():
    """mypyc copies the value of a `Final` name into the machine code that uses it."""
    spec = importlib.util.spec_from_file_location("build_core", ROOT / "scripts" / "build_core.py")
    build_core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build_core)
    found = set(build_core.dependencies())
    assert set(compiled.CORE) <= found
    assert {"errors", "records/compression", "storage/ledger", "runtime/disk"} <= found
    tools = build_core.toolchain("2")
    assert "mypyc" in tools
    assert tools != build_core.toolchain("0")


def test_plain_and_compiled_modules_are_not_mixed(built):
    assert batch.__name__ in sys.modules
    finders = list(sys.meta_path)
    with pytest.raises(compiled.CoreUnusableError, match="already imported"):
        compiled.use()
    assert sys.meta_path == finders


def test_without_a_build_the_plain_modules_work_and_say_how_to_get_one(built, monkeypatch):
    (built / compiled.MANIFEST).unlink()
    with pytest.raises(compiled.CoreUnusableError, match="make fast"):
        compiled.use()
    monkeypatch.delenv(compiled.SWITCH)
    monkeypatch.setattr(compiled, "folder", lambda: built)
    assert compiled.use() == "pure Python (no compiled core: run make fast to build it)"


def test_the_switch_keeps_to_the_plain_modules(built, monkeypatch):
    monkeypatch.setenv(compiled.SWITCH, "0")
    assert compiled.use().startswith("pure Python")
    assert not compiled.is_used()
