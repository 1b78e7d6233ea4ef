"""The mapping of keys to ZooKeeper nodes. Do not change: stored.

Invariants: pure text. The key `/topics/orders` is the node `<root>/topics/=orders`: the part before
the last slash names folders, which are container nodes without a value; the rest is the key's own
node, prefixed with `=`. So `/a` and `/a/b` may both be keys, a key can be deleted while longer ones
exist, and an empty value differs from no key. Characters that ZooKeeper rejects, `%`, and ambiguous
ones are percent-encoded as UTF-8; an empty folder name is a single `%`.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from headrace.errors import RequestInvalid

_MARK = "="
# ZooKeeper's PathUtils, in UTF-16 terms: controls, surrogates and everything above, specials.
_REFUSED = re.compile("[%/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def path_of_key(key: str) -> str:
    """The key's node, below the root. Raises RequestInvalid for an invalid key."""
    folders, slash, name = key.rpartition("/")
    if not slash or not key.startswith("/"):
        raise RequestInvalid(f"{key!r} is not a metadata key: it must start with a slash")
    return f"{folder_path(folders)}/{_MARK}{_escape(name)}"


def folder_path(folders: str) -> str:
    """The node of the folders in `/a/b`; "" for none."""
    return "".join(f"/{_folder_name(folder)}" for folder in folders.split("/")[1:])


def key_of_path(path: str) -> str | None:
    """The key of this node; None for a folder."""
    folders, _, name = path.rpartition("/")
    if not name.startswith(_MARK):
        return None
    return f"{folders_of_path(folders)}/{_unescape(name[1:])}"


def folders_of_path(path: str) -> str:
    """The folders of a folder node, as they appear in keys."""
    return "".join(f"/{_unescape(name)}" for name in path.split("/")[1:])


def may_match(child_path: str, prefix: str) -> bool:
    """Whether a node is a key with this prefix, or a folder that may contain such keys."""
    key = key_of_path(child_path)
    if key is not None:
        return key.startswith(prefix)
    inside = folders_of_path(child_path) + "/"
    return inside.startswith(prefix) or prefix.startswith(inside)


def folder_of_prefix(prefix: str) -> str:
    """The node of the folder that contains all keys with this prefix."""
    return folder_path(prefix.rpartition("/")[0])


def _folder_name(name: str) -> str:
    escaped = _escape(name)
    if escaped in {".", ".."}:
        return escaped.replace(".", "%2E")
    if escaped.startswith(_MARK):
        return f"%{ord(_MARK):02X}{escaped[1:]}"
    return escaped or "%"


def _escape(text: str) -> str:
    return _REFUSED.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode(errors="surrogatepass")),
        text,
    )


def _unescape(name: str) -> str:
    if name == "%":
        return ""
    return unquote_to_bytes(name).decode(errors="surrogatepass")
