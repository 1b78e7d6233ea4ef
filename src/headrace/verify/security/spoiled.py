"""A broker with a planted hole: `python -m headrace.verify.security.spoiled BUG serve ...`.

Rules of the room: for self-proof alone; the installed command has no way to plant anything.
"""

from __future__ import annotations

import runpy
import sys

from headrace.verify.security.bugs import chosen

if __name__ == "__main__":
    (bug,) = chosen(sys.argv.pop(1))
    bug.plant(setattr)
    runpy.run_module("headrace.cli.main", run_name="__main__")
