"""Fuzz targets in a process of their own: `python -m headrace_verify.fuzz.process NAMES BUG ...`.

Invariants: NAMES are the targets, with commas between; BUG is planted, "" is none; libFuzzer's own
arguments follow. The broker's modules are imported here first, instrumented; atheris ends the
process. An input's first byte chooses its target among all (`target_of`), since a start takes
seconds, and serves all; an input of a target that is not among NAMES is skipped.
"""

from __future__ import annotations

import logging
import sys
import warnings


def main() -> None:
    """Fuzz until the number of runs is reached, or a fault is found."""
    import atheris

    warnings.simplefilter("ignore")
    logging.disable()
    with atheris.instrument_imports(include=["headrace"]):
        from headrace_verify.fuzz.bugs import plant
        from headrace_verify.fuzz.targets import TARGETS, target_of
    plant(sys.argv[2])
    names = frozenset(sys.argv[1].split(","))

    def run(data: bytes) -> None:
        if data and (name := target_of(data)) in names:
            TARGETS[name](data[1:])

    atheris.Setup([sys.argv[0], *sys.argv[3:]], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
