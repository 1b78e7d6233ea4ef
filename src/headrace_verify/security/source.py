"""What the source code must not contain: dynamic code, shells; and its dependencies.

Invariants: reads the package's own files, as syntax trees.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
import headrace_verify

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

ROOTS = (Path(headrace.__file__).parent, Path(headrace_verify.__file__).parent)
CODE_FROM_DATA = frozenset(
    (
        "pickle",
        "cPickle",
        "cloudpickle",
        "dill",
        "marshal",
        "shelve",
        "yaml",
        "jsonpickle",
        "joblib",
    )
)
CALLS = frozenset(("eval", "exec", "compile", "__import__"))
CODECS = "headrace/kafka/wire/codecs.py"
"""Compiles the package's own message definitions; no client input goes into it."""
SHELLS = frozenset(("system", "popen", "getoutput", "getstatusoutput", "spawnl", "spawnlp"))
WORKER = "headrace/log/compaction/workers.py"
WORKER_COMMAND = "(sys.executable, '-m', 'headrace.log.compaction.worker_process')"
"""A module of the package, without input on its command line."""
REDRIVES = "headrace/http/redrives.py"
"""The only other subprocess of a broker, through `run_python`: the package's own command, whose
arguments are checked values after `=` and a topic's name after `--`."""
SERVES_CLIENTS = (
    *(
        f"headrace/{package}/"
        for package in (
            "broker", "coordination", "http", "kafka", "log", "metadata", "records", "storage"
        )
    ),
    "headrace/server/assemble.py",
    "headrace/server/lifecycle.py",
    "headrace/server/tiering.py",
)  # fmt: skip
"""No other part starts processes, except tools for operators and the supervisor of workers."""
AUDIT_S = 120


@cache
def _trees() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(root.parent).as_posix(), ast.parse(path.read_text(), str(path)))
        for root in ROOTS
        for path in sorted(root.rglob("*.py"))
    ]


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []


def data_is_never_run_as_code(abuse: Abuse) -> None:
    for name, tree in _trees():
        abuse.checked += 1
        for node in ast.walk(tree):
            for module in _imported(node):
                is_fine = module not in CODE_FROM_DATA
                abuse.expect(is_fine, f"{name}:{getattr(node, 'lineno', 0)} imports {module}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                is_fine = node.func.id not in CALLS or name == CODECS
                abuse.expect(is_fine, f"{name}:{node.lineno} calls {node.func.id}")


def no_shell_is_started_and_processes_by_tools_alone(abuse: Abuse) -> None:
    for name, tree in _trees():
        may_start = not name.startswith(SERVES_CLIENTS)
        for node in ast.walk(tree):
            if "subprocess" in _imported(node):
                abuse.expect(may_start, f"{name} starts processes")
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if isinstance(node.func, ast.Name) and node.func.id == "run_python":
                abuse.expect(name == REDRIVES, f"{name}:{node.lineno} starts processes")
            is_shell = called in SHELLS or called == "create_subprocess_shell"
            for word in node.keywords:
                constant = word.value.value if isinstance(word.value, ast.Constant) else False
                is_shell = is_shell or (word.arg == "shell" and bool(constant))
            if is_shell or called.startswith("create_subprocess"):
                abuse.expect(not is_shell, f"{name}:{node.lineno} starts a shell")
                is_worker = (
                    name == WORKER and ast.unparse(node.args[0]).strip("*") == WORKER_COMMAND
                )
                abuse.expect(may_start or is_worker, f"{name}:{node.lineno} starts processes")


def dependencies_have_no_known_hole(abuse: Abuse) -> None:
    asked = importlib.metadata.requires("headrace") or []
    abuse.expect(len(asked) > 5, "the package names no dependencies")
    if importlib.util.find_spec("pip_audit") is None:
        abuse.skipped.append("audit of dependencies: pip-audit is not installed")
        return
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--local"]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            command, capture_output=True, text=True, timeout=AUDIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        abuse.skipped.append("audit of dependencies: the vulnerability service does not respond")
        return
    if "Found" in done.stderr and "vulnerabilit" in done.stderr:
        abuse.expect(False, f"known vulnerabilities: {done.stdout[:2000]}")
    elif done.returncode:
        abuse.skipped.append("audit of dependencies: the vulnerability service is unreachable")
