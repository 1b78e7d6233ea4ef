"""The rig lives in `headrace.verify`, so that users can run it; tests find it here, too."""

from headrace.verify.scenario import abandon, open_store

__all__ = ["abandon", "open_store"]
