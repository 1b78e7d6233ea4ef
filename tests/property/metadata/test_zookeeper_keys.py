"""Every key has a node of its own in ZooKeeper, and comes back from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RequestInvalid
from headrace.metadata.zookeeper_keys import (
    folder_of_prefix,
    folder_path,
    key_of_path,
    may_match,
    path_of_key,
)

parts = st.text(st.one_of(st.characters(), st.sampled_from("=%./-a\0")), max_size=4)
keys = st.lists(parts, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))


def is_legal(path: str) -> bool:
    """What ZooKeeper's PathUtils asks for, seen from UTF-16."""
    names = path.split("/")[1:]
    refused = any(
        ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F or 0xD800 <= ord(c) <= 0xF8FF or ord(c) >= 0xFFF0
        for c in path
    )
    return not refused and all(name not in {"", ".", ".."} for name in names)


@given(keys)
def test_a_key_comes_back_from_its_path(key):
    path = path_of_key(key)
    assert is_legal(path)
    assert key_of_path(path) == key


@given(keys, keys)
def test_no_two_keys_share_a_node_and_none_lies_below_another(one, other):
    if one != other:
        assert path_of_key(one) != path_of_key(other)
        assert not path_of_key(one).startswith(path_of_key(other) + "/")


@given(keys, st.integers(0, 12))
def test_a_key_is_found_by_each_of_its_prefixes(key, size):
    prefix = key[:size]
    path = path_of_key(key)
    folder = folder_of_prefix(prefix)
    assert path.startswith(folder + "/")
    names = path[len(folder) + 1 :].split("/")
    for count in range(1, len(names) + 1):
        assert may_match(f"{folder}/" + "/".join(names[:count]), prefix)


@given(keys, keys)
def test_a_key_matches_only_its_own_prefixes(key, prefix):
    assert may_match(path_of_key(key), prefix) == key.startswith(prefix)


def test_paths_look_as_the_page_says():
    assert path_of_key("/topics/orders") == "/topics/=orders"
    assert path_of_key("/a") == "/=a"
    assert path_of_key("/a/") == "/a/="
    assert path_of_key("//x") == "/%/=x"
    assert path_of_key("/=a/100%/b") == "/%3Da/100%25/=b"
    assert path_of_key("/../\U0001f600") == "/%2E%2E/=%F0%9F%98%80"
    assert key_of_path(folder_path("/topics")) is None
    for wrong in ("", "a", "a/b"):
        with pytest.raises(RequestInvalid, match="slash"):
            path_of_key(wrong)
