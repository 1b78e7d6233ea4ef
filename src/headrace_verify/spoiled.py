"""A broker with a planted bug: `python -m headrace_verify.spoiled MODE BUG serve ...`.

Invariants: for self-tests only; the installed command cannot plant bugs.
"""

from __future__ import annotations

import importlib
import runpy
import sys

from headrace_verify.self_proof import choose
from headrace_verify.task import replace_existing

if __name__ == "__main__":
    bugs = importlib.import_module(f"headrace_verify.{sys.argv.pop(1)}.bugs")
    (bug,) = choose(bugs.BUGS, sys.argv.pop(1))
    bug.plant(replace_existing)
    runpy.run_module("headrace.cli.main", run_name="__main__")
