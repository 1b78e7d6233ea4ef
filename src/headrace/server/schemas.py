"""Opens what the HTTP interface decodes values with.

Invariants: where schemas come from is the operator's choice alone. Nothing is connected to before
a client asks for decoded values: an unavailable registry must not keep a broker from starting.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.services.decoded_values import DecodedValues
from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from headrace.runtime.clock import Clock
    from headrace.server.settings import Settings

_URL: Final = "headrace.schema.registry.url"
_CREDENTIAL: Final = "headrace.schema.registry.credential.file"
_FOLDER: Final = "headrace.schema.folder"
_TIMEOUT_S: Final = 2.0
"""Of a registry, while a client waits."""
_CREDENTIAL_LENGTH_MAX: Final = 4_096


def decoded_values(settings: Settings, clock: Clock) -> DecodedValues | None:
    """None: neither a registry nor a folder is set. Raises RequestInvalid."""
    url, credential, folder = map(settings.given.get, (_URL, _CREDENTIAL, _FOLDER))
    if folder and not Path(folder).is_dir():
        raise RequestInvalid(
            f"{_FOLDER}: there is no folder {folder!r}; nothing was started. Create it, or remove"
            " the setting"
        )
    if credential and not url:
        raise RequestInvalid(f"{_CREDENTIAL} needs {_URL}; nothing was started. Set both")
    if not url and not folder:
        return None
    # Imported here: most brokers need no client of a registry, whose imports take time.
    from headrace.schemas.decoding import ValueDecoder
    from headrace.schemas.registry import RegistryAccess

    access = None
    if url:
        if not url.startswith(("http://", "https://")) or "@" in url:
            raise RequestInvalid(
                f"{_URL} must be http://HOST:PORT or https://HOST:PORT, without a user or a"
                f" password; nothing was started. Use {_CREDENTIAL} for these"
            )
        user, password = _login(credential) if credential else ("", "")
        access = RegistryAccess(url.rstrip("/"), user, password, _TIMEOUT_S)
    return DecodedValues(ValueDecoder(access, folder or None, clock))


def _login(path: str) -> tuple[str, str]:
    """(user, password) of a file. Raises RequestInvalid."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_CREDENTIAL_LENGTH_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestInvalid(
            f"{_CREDENTIAL} {path!r} cannot be read; nothing was started. It is a file with"
            " USER:PASSWORD"
        ) from error
    user, colon, password = text.partition(":")
    if not colon or not user:
        raise RequestInvalid(
            f"{_CREDENTIAL} {path!r} does not hold USER:PASSWORD; nothing was started. Write both"
            " on one line"
        )
    return user, password
