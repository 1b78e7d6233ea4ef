"""Two backups at once into one prefix: one is complete, the other refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.s3_server import S3Server

from headrace.administration.backup_place import (
    BROKER,
    CLAIM,
    FolderPlace,
    ObjectPlace,
    copy_verified,
    digest_of,
    read_manifest,
    write_file,
    write_manifest,
)
from headrace.errors import DataCorrupt, RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["folder", "s3"])
def url(request, tmp_path, monkeypatch) -> Iterator[str]:
    if request.param == "folder":
        yield f"file://{tmp_path}/objects"
        return
    server = S3Server(tmp_path).start()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    try:
        yield f"{server.url}/monday"
    finally:
        server.stop()


def prepared(folder: Path, data: bytes) -> tuple[Path, dict[str, list]]:
    folder.mkdir()
    write_file(folder / "one", data)
    write_manifest(folder, BROKER, "1", 1, {"one": digest_of(data)})
    return folder, read_manifest(FolderPlace(folder), BROKER)


def test_a_backup_does_not_touch_what_another_one_writes(url, tmp_path, monkeypatch) -> None:
    first, second = prepared(tmp_path / "a", b"first"), prepared(tmp_path / "b", b"second")
    place = ObjectPlace(url)
    digest = ObjectPlace._digest
    refused = []

    def meanwhile(self: ObjectPlace, name: str, take) -> list:
        if not refused:
            refused.append(name)
            other = ObjectPlace(url)
            with pytest.raises(RequestInvalid, match="is not empty"):
                other.check_empty()
            with pytest.raises(RequestInvalid, match="another backup is being written"):
                other.upload(*second)  # as after a check when nothing was there yet
        return digest(self, name, take)

    monkeypatch.setattr(ObjectPlace, "_digest", meanwhile)
    place.upload(*first)
    assert refused
    with pytest.raises(RequestInvalid, match="is not empty"):
        place.upload(*second)  # and as after one when the other was complete
    copy_verified(place, read_manifest(place, BROKER), tmp_path / "copy")
    assert (tmp_path / "copy" / "one").read_bytes() == b"first"
    with pytest.raises(FileNotFoundError):
        place.read(CLAIM, 100)


def test_a_failure_leaves_no_claim(url, tmp_path) -> None:
    folder, files = prepared(tmp_path / "a", b"first")
    place = ObjectPlace(url)
    with pytest.raises(DataCorrupt):
        place.upload(folder, {"one": digest_of(b"other")})
    place.check_empty()
    place.upload(folder, files)
