"""`headrace` and `python -m headrace`: the command line, without a traceback while it loads.

Invariants: imports nothing before SIGINT has its plain effect; what comes later is the command
line's own.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are loaded: end, quietly
    from headrace.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
