"""The compiled core: hot modules built with mypyc and used while their sources are unchanged.

`make fast` (`scripts/build_core.py`) builds the core into a folder beside the installed packages,
where a wheel with compiled code brings it.
It is used only if the digest in its manifest matches the current one, which covers the core's
sources, every module whose constants mypyc may have inlined, the interpreter and the compilers.
An edited module therefore always takes effect. Without a matching build, the pure Python modules
do the same work.

Invariants: knows modules and files by name, not their contents. A meta path finder puts the
extension modules before the plain ones, all or none: compiled modules call each other directly,
bypassing Python name lookup, so none of them may already be imported as a plain module.
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
    "grpc/hpack",
    "grpc/requests",
    "grpc/outflow",
    "grpc/frame_reader",
    "grpc/connection",
    "grpc/calls",
    "records/batch",
    "records/varints",
    "records/bodies",
    "records/partitioner",
    "pipeline/row_encoding",
    "records/keys",
    "records/columnar",
    "records/keys_and_values",
    "records/rewriting",
    "records/skipping",
    "records/survivors",
    "records/validation",
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
    "log/compaction/rounds",
    "log/offset_index",
    "log/producer_encoding",
    "log/producer_state",
    "log/traffic",
    "log/visibility",
    "log/waiters",
    "log/segment",
    "log/log_state",
    "log/reading",
    "log/partition_log",
    "broker/services/appends",
    "broker/services/long_poll",
    "kafka/wire/primitives",
    "kafka/wire/produce",
    "kafka/wire/fetch",
    "broker/services/connection_memory",
    "kafka/request_figures",
    "kafka/request_frames",
    "kafka/connection",
    "kafka/handlers/produce",
    "kafka/handlers/fetch",
    "kafka/dispatch",
)
"""The modules on the produce and fetch paths and of gRPC calls, as paths below the package."""
GROUP = "headrace_core"
"""mypyc's group name: the code of all modules is in one extension module, `<GROUP>__mypyc`."""
SWITCH = "HEADRACE_COMPILED"
"""Environment variable: 0 uses the pure Python modules; 1 requires the compiled core; the path of
a folder filled by `scripts/build_core.py --into` requires that build."""
MANIFEST = "manifest.json"

_PACKAGE = Path(__file__).resolve().parents[1]


class CoreUnusableError(Exception):
    """The compiled core is required but cannot be used; the message says why."""


def folder() -> Path:
    """The folder of the compiled core: beside the installed packages, unless SWITCH names one."""
    named = os.environ.get(SWITCH, "")
    return Path(named) if "/" in named else Path(sysconfig.get_path("platlib")) / GROUP


def sources() -> list[Path]:
    """The source files of the core's modules."""
    return [source(name) for name in CORE]


class Manifest(NamedTuple):
    """The inputs of a build."""

    digest: str
    toolchain: str
    """The compilers and their options, as text."""
    modules: tuple[str, ...]
    """Every module the build depends on: CORE, and modules whose constants it may have inlined."""


def digest(modules: Sequence[str], toolchain: str) -> str:
    """Hexadecimal digest of everything a build of these modules depends on. Raises OSError."""
    text = f"{sys.implementation.cache_tag} {sys.platform} {toolchain} {' '.join(CORE)}"
    found = hashlib.sha256(text.encode())
    for name in modules:
        content = source(name).read_bytes()
        found.update(f"{name} {len(content)} ".encode() + content)
    return found.hexdigest()


def source(name: str) -> Path:
    """The source file of a module or package, given as a path below the package."""
    path = _PACKAGE / f"{name}.py"
    return path if path.exists() else _PACKAGE / name / "__init__.py"


def write_manifest(built: Path, modules: Sequence[str], toolchain: str) -> None:
    """Record the inputs of the build in a folder."""
    manifest = Manifest(digest(modules, toolchain), toolchain, tuple(modules))
    (built / MANIFEST).write_text(json.dumps(manifest._asdict(), indent=1))


def read_manifest(built: Path) -> Manifest | None:
    """The inputs of the build in a folder; None if there is no build."""
    try:
        found = json.loads((built / MANIFEST).read_text())
        return Manifest(found["digest"], found["toolchain"], tuple(found["modules"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_fresh(built: Path) -> bool:
    """Whether the folder holds a build of the current sources."""
    found = read_manifest(built)
    if found is None or not set(CORE) <= set(found.modules):
        return False
    try:
        return digest(found.modules, found.toolchain) == found.digest
    except OSError:  # a module was removed
        return False


def use() -> str:
    """Use the compiled core if possible; returns a description of what is used.

    Call this before importing any module of the core. Raises CoreUnusableError if SWITCH
    requires the core and it cannot be used.
    """
    switch = os.environ.get(SWITCH, "")
    if switch not in {"", "0", "1"} and "/" not in switch:
        raise CoreUnusableError(f"{switch!r} is not 0, 1 or the path of a folder")
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
    """Why the core in `built` cannot be used; None if it can."""
    if read_manifest(built) is None:
        return f"no compiled core: {_remedy('build')}"
    if not is_fresh(built):
        return f"the compiled core does not match the sources: {_remedy('rebuild')}"
    for name in CORE:
        if _module_name(name) in sys.modules:
            return f"{_module_name(name)} is already imported"
    return None


def _remedy(verb: str) -> str:
    """What brings the core: a checkout compiles it, an installed package holds it or does not."""
    if (_PACKAGE.parents[1] / "scripts" / "build_core.py").exists():
        return f"run make fast to {verb} it"
    return "the wheels for CPython on Linux hold it, this installation does not"


def _module_name(name: str) -> str:
    return "headrace." + name.replace("/", ".")


class _CoreFinder(MetaPathFinder):
    """Finds the core's modules in its folder, and nothing else."""

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
