"""What `make demo` shows: a year of real flights through the whole product, counted at each step.

Invariants: ordinary clients and public jobs only, so each piece can be copied by a user.
"""

from headrace.pipeline.demo.run import main, run_demo

__all__ = ["main", "run_demo"]
