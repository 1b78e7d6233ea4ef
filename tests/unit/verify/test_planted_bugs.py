"""A planted bug changes what the broker runs: a patch of a name that is not read plants none."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from pathlib import Path
from types import CodeType, ModuleType

import pytest

import headrace
from headrace_verify.crash import bugs as planted
from headrace_verify.task import patched, replace_existing

MODES = ("crash", "blackbox", "fuzz", "security", "simulation", "soak", "upgrade", "wire")
ALL = [
    pytest.param(bug, id=f"{mode}: {bug.name}")
    for mode in MODES
    for bug in importlib.import_module(f"headrace_verify.{mode}.bugs").BUGS
]


def _names_in(code: CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


@functools.cache
def _read_in(module: ModuleType) -> set[str]:
    """The names that the functions of a module look up when they run."""
    code = compile(inspect.getsource(module), module.__name__, "exec")
    return set().union(*(_names_in(one) for one in code.co_consts if isinstance(one, CodeType)))


@functools.cache
def _sources() -> list[str]:
    return [path.read_text() for path in Path(headrace.__file__).parent.rglob("*.py")]


def _is_read_elsewhere(module: ModuleType, name: str) -> bool:
    """As an attribute of the module, by whatever name it was imported."""
    alias = module.__name__.rpartition(".")[2]
    return any(alias in text and re.search(rf"\b[a-z_]+\.{name}\b", text) for text in _sources())


@pytest.mark.parametrize("bug", ALL)
def test_names_patched_by_a_planted_bug_exist_and_are_used(bug):
    places = []

    def look(target, name, value):
        getattr(target, name)
        places.append((target, name))

    bug.plant(look)
    assert places
    for target, name in places:
        if isinstance(target, ModuleType):
            is_read = name in _read_in(target) or _is_read_elsewhere(target, name)
            assert is_read, f"nobody reads {target.__name__}.{name}"


def test_a_name_that_is_not_there_cannot_be_patched():
    with pytest.raises(AttributeError):
        replace_existing(planted, "Starlette", None)
    with pytest.raises(AttributeError), patched(planted, "Starlette", None):
        pass
