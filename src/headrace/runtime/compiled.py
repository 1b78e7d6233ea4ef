"""The compiled hot core: the same modules as machine code, where they were built and still agree.

Invariants: knows names of modules and files, not what is in them. The core is built by `make fast`
(`scripts/build_core.py`, mypyc) into a folder beside the installed packages. It is used only where
the digest in its manifest is that of now: of every source it was made of, of every module whose
constants mypyc may have copied into it, of the interpreter, and of the compilers that made it. So
an edited module is what runs. Without a build, and after every change of a source, the plain
modules do the same work.
How it works: the folder's extension modules are found before the plain ones. All of them or none:
compiled modules call each other past Python's names, so none may be there as a plain one already.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import sysconfig
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

CORE = (
    "runtime/completion",
    "runtime/histogram",
    "records/batch",
    "records/varints",
    "records/keys",
    "records/keys_and_values",
    "records/rewriting",
    "records/skipping",
    "storage/bookkeeper/quorum",
    "storage/bookkeeper/wire",
    "storage/bookkeeper/entries",
    "storage/bookkeeper/entry_cache",
    "storage/bookkeeper/entry_builder",
    "storage/bookkeeper/bookie_connection",
    "storage/bookkeeper/ledger_handle",
    "storage/bookkeeper/writing_ledger",
    "storage/files/format",
    "storage/files/group",
    "storage/files/segment_write_buffer",
    "storage/files/segments",
    "storage/files/write_ahead_log",
    "storage/files/wal_sync",
    "storage/files/group_commit",
    "storage/files/store",
    "log/aborted_index",
    "log/compaction",
    "log/offset_index",
    "log/producer_state",
    "log/visibility",
    "log/waiters",
    "log/segment",
    "log/reading",
    "log/partition_log",
    "broker/services/appends",
    "broker/services/long_poll",
    "kafka/wire/primitives",
    "kafka/wire/produce",
    "kafka/wire/fetch",
    "kafka/connection",
    "kafka/handlers/produce",
    "kafka/handlers/fetch",
    "kafka/dispatch",
)
"""What a produce and a fetch go through, as paths below the package."""
GROUP = "headrace_core"
"""mypyc's name for them together: their code is in one extension module, `<GROUP>__mypyc`."""
SWITCH = "HEADRACE_COMPILED"
"""Environment: 0 keeps to the plain modules; 1 insists on the compiled ones, and so does the path
of a folder that `scripts/build_core.py --into` has filled."""
MANIFEST = "manifest.json"

_PACKAGE = Path(__file__).resolve().parents[1]


class CoreUnusableError(Exception):
    """The compiled core was insisted on, and cannot be used; says why."""


def folder() -> Path:
    """Where the compiled core lies: among the installed packages, unless SWITCH names a folder."""
    named = os.environ.get(SWITCH, "")
    return Path(named) if "/" in named else Path(sysconfig.get_path("platlib")) / GROUP


def sources() -> list[Path]:
    """The modules of the core, as they are now."""
    return [source(name) for name in CORE]


class Manifest(NamedTuple):
    """What a build was made of."""

    digest: str
    toolchain: str
    """The compilers and their options, in words."""
    modules: tuple[str, ...]
    """Every module it depends on: those of CORE, and those whose constants it may hold."""


def digest(modules: Sequence[str], toolchain: str) -> str:
    """What a build of these modules depends on, as one hexadecimal number. Raises OSError."""
    text = f"{sys.implementation.cache_tag} {sys.platform} {toolchain} {' '.join(CORE)}"
    found = hashlib.sha256(text.encode())
    for name in modules:
        content = source(name).read_bytes()
        found.update(f"{name} {len(content)} ".encode() + content)
    return found.hexdigest()


def source(name: str) -> Path:
    """The file of a module or a package, given as a path below the package."""
    path = _PACKAGE / f"{name}.py"
    return path if path.exists() else _PACKAGE / name / "__init__.py"


def write_manifest(built: Path, modules: Sequence[str], toolchain: str) -> None:
    """Note what the build in a folder was made of."""
    manifest = Manifest(digest(modules, toolchain), toolchain, tuple(modules))
    (built / MANIFEST).write_text(json.dumps(manifest._asdict(), indent=1))


def read_manifest(built: Path) -> Manifest | None:
    """What the build in a folder was made of; None without a build."""
    try:
        found = json.loads((built / MANIFEST).read_text())
        return Manifest(found["digest"], found["toolchain"], tuple(found["modules"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_fresh(built: Path) -> bool:
    """Whether the folder holds a build of the sources as they are now."""
    found = read_manifest(built)
    if found is None or not set(CORE) <= set(found.modules):
        return False
    try:
        return digest(found.modules, found.toolchain) == found.digest
    except OSError:  # a module was removed
        return False


def use() -> str:
    """Use the compiled core from now on, where that can be; what is used, in words.

    To be called before any module of the core is imported. Raises CoreUnusableError if SWITCH
    insists and it cannot be used.
    """
    switch = os.environ.get(SWITCH, "")
    if switch not in {"", "0", "1"} and "/" not in switch:
        raise CoreUnusableError(f"{switch!r} is none of 0, 1 and the path of a folder")
    if switch == "0":
        return f"pure Python ({SWITCH}=0)"
    if is_used():
        return "compiled core"
    reason = _why_not(folder())
    if reason is None:
        sys.meta_path.insert(0, _CoreFinder(folder()))
        return "compiled core"
    if switch:
        raise CoreUnusableError(reason)
    return f"pure Python ({reason})"


def is_used() -> bool:
    """Whether imports find the compiled core."""
    return any(isinstance(finder, _CoreFinder) for finder in sys.meta_path)


def _why_not(built: Path) -> str | None:
    """Why the core in `built` cannot be used, None if it can."""
    if read_manifest(built) is None:
        return "no compiled core: make fast builds one"
    if not is_fresh(built):
        return "the compiled core is of other sources: make fast builds it anew"
    for name in CORE:
        if _module_name(name) in sys.modules:
            return f"{_module_name(name)} is imported already"
    return None


def _module_name(name: str) -> str:
    return "headrace." + name.replace("/", ".")


class _CoreFinder(MetaPathFinder):
    """Finds the core's modules in its folder, and no others."""

    def __init__(self, built: Path) -> None:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        self._files = {_module_name(name): built / f"headrace/{name}{suffix}" for name in CORE}
        self._files[f"{GROUP}__mypyc"] = built / f"{GROUP}__mypyc{suffix}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See MetaPathFinder."""
        file = self._files.get(fullname)
        if file is None:
            return None
        loader = importlib.machinery.ExtensionFileLoader(fullname, str(file))
        return importlib.util.spec_from_file_location(fullname, str(file), loader=loader)
