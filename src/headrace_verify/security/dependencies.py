"""What a broker's dependencies must not have: known vulnerabilities.

Rules of the linters keep dynamic code, shells and processes out of the source (`.importlinter`,
`banned-api` and the S rules of ruff).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

AUDIT_S: Final = 120


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
