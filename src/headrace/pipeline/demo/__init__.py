"""`make demo`: a year of real flights through the whole product, with counts at each step.

Invariants: uses only ordinary clients and public jobs, so that users can copy each piece.
"""

from headrace.pipeline.demo.run import main, run_demo

__all__ = ["main", "run_demo"]
