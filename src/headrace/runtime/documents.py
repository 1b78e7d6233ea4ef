"""Small documents from a file or a web server, such as the keys of an identity provider.

Invariants: blocking, so for threads. A document is bounded in size and time; redirects are not
followed, so that only the server that was configured is asked.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headrace.errors import ConfigInvalid

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
TIMEOUT_S: Final = 10
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """See HTTPRedirectHandler: None answers with the redirect itself, an error."""


def check_document_url(url: str) -> None:
    """Raise ConfigInvalid unless `url` is https, http on this machine, or a file."""
    try:
        parts = urlsplit(url)
        is_own = parts.hostname in _LOOPBACK
    except ValueError as error:
        raise ConfigInvalid(f"not a URL ({error})") from error
    is_web = parts.scheme == "https" or (parts.scheme == "http" and is_own)
    is_file = parts.scheme == "file" and parts.netloc in {"", "localhost"} and bool(parts.path)
    if not is_file and not (is_web and parts.hostname and parts.username is None):
        raise ConfigInvalid(
            "expected https://HOST/PATH, file:///PATH, or http:// for this machine alone"
        )


def read_document(url: str) -> bytes:
    """The document. Raises OSError, ConfigInvalid."""
    check_document_url(url)
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
    else:
        opener = urllib.request.build_opener(
            _NoRedirect,
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        )
        try:
            with opener.open(url, timeout=TIMEOUT_S) as answer:
                data = answer.read(DOCUMENT_BYTES_MAX + 1)
        except (urllib.error.URLError, ValueError) as error:
            raise OSError(f"{parts.hostname} does not answer with a document ({error})") from error
    if len(data) > DOCUMENT_BYTES_MAX:
        raise OSError(f"the document has more than {DOCUMENT_BYTES_MAX} bytes")
    return data
