"""What the attack on the interface has created, for itself and for the hooks of schemathesis.

Invariants: apart from the hooks, which import schemathesis, an optional tool.
"""

from typing import Final

KNOWN: Final = {"topic": "attacked", "group": "attacked"}
"""It is not deleted: other requests would find nothing."""
