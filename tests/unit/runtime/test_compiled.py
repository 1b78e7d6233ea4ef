"""When the compiled core is used, and when the plain modules are: no mixture, no old code."""

from __future__ import annotations

import sys

import pytest

from headrace.records import batch
from headrace.runtime import compiled


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A folder that looks like a build of the sources as they are, and that is insisted on."""
    if compiled.is_used():
        pytest.skip("this run is on the compiled core already")
    (tmp_path / compiled.MANIFEST).write_text(compiled.digest())
    monkeypatch.setenv(compiled.SWITCH, str(tmp_path))
    return tmp_path


def test_every_module_of_the_core_is_there():
    assert all(path.is_file() for path in compiled.sources())


def test_a_core_of_other_sources_is_refused(built):
    (built / compiled.MANIFEST).write_text(compiled.digest()[::-1])
    with pytest.raises(compiled.CoreUnusableError, match="other sources: make fast"):
        compiled.use()


def test_an_edit_of_any_source_changes_the_digest(tmp_path, monkeypatch):
    before = compiled.digest()
    copies = []
    for number, path in enumerate(compiled.sources()):
        copy = tmp_path / f"{number}.py"
        copy.write_bytes(path.read_bytes())
        copies.append(copy)
    monkeypatch.setattr(compiled, "sources", lambda: copies)
    assert compiled.digest() == before
    copies[-1].write_bytes(copies[-1].read_bytes() + b"\n")
    assert compiled.digest() != before


def test_plain_and_compiled_modules_are_not_mixed(built):
    assert batch.__name__ in sys.modules
    finders = list(sys.meta_path)
    with pytest.raises(compiled.CoreUnusableError, match="imported already"):
        compiled.use()
    assert sys.meta_path == finders


def test_without_a_build_the_plain_modules_work_and_say_how_to_get_one(built, monkeypatch):
    (built / compiled.MANIFEST).unlink()
    with pytest.raises(compiled.CoreUnusableError, match="make fast"):
        compiled.use()
    monkeypatch.delenv(compiled.SWITCH)
    monkeypatch.setattr(compiled, "folder", lambda: built)
    assert compiled.use() == "pure Python (no compiled core: make fast builds one)"


def test_the_switch_keeps_to_the_plain_modules(built, monkeypatch):
    monkeypatch.setenv(compiled.SWITCH, "0")
    assert compiled.use().startswith("pure Python")
    assert not compiled.is_used()
