"""Where a page of a list begins, as clients pass it back.

Invariants: knows no list. A token is the key of the last item of the page before, in base64 that
addresses can hold.
"""

from __future__ import annotations

import base64

from headrace.http.problems import Contradiction


def page_token(key: str) -> str:
    """The token of the page that begins after this key."""
    return base64.urlsafe_b64encode(key.encode()).decode()


def key_before(token: str) -> str:
    """The key after which the page begins; "" for the first one. Raises Contradiction."""
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise Contradiction(
            "page_token is not one that this interface returned: begin without one"
        ) from error
