"""Named blobs in S3, Google Cloud Storage, Azure or a folder, using `obstore`.

Invariants: knows names and bytes, not ledgers. One URL gives the location; credentials come from
the environment only, in the variables used by each cloud's own tools. URLs and messages never
contain secrets: causes are reduced to one line, without query strings (Azure and S3 put signatures
there) and without the values of secret variables.

A call retries with back-off and ends in bounded time. A failure raises StorageUnavailable with the
field `is_objects`, and `is_missing` if there is no such blob.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import obstore

from headrace.errors import RequestInvalid, StorageUnavailable
from headrace.runtime.disk import READ_ONLY, SystemDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence

    from headrace.runtime.disk import Disk
    from headrace.storage.ledger import Buffer

T = TypeVar("T")

SCHEMES = ("s3", "gs", "az", "file")
PART_BYTES = 8 << 20
"""Part size of a multipart upload. S3 accepts 10,000 parts, so up to 78 GiB per object."""
PARTS_AT_ONCE = 2
"""Parts in flight per upload, which needs memory for three parts."""
LISTED_AT_ONCE = 1000

_SECRET_NAMES = re.compile(r"^(AWS|AZURE|GOOGLE)_.*(KEY|SECRET|TOKEN|SAS|PASSWORD)", re.IGNORECASE)
_XML = re.compile(r"<\?xml.*?<Code>(\w+)</Code>.*")
_QUERY = re.compile(r"\?[^\s\"')]+")
_CAUSE_CHARACTERS_MAX = 300


class BlobInfo(NamedTuple):
    """A blob, as listed."""

    name: str
    size_bytes: int
    modified_ms: int


class BlobLimits(NamedTuple):
    """Time-outs and retries of a call."""

    timeout_ms: int = 30_000
    """For one attempt, including the transfer: an 8 MiB part needs at least 280 KB/s."""
    connect_timeout_ms: int = 5_000
    retries_max: int = 4
    retry_for_ms: int = 60_000
    """No attempt starts after this time."""


class BlobStore:
    """All blobs under one URL."""

    def __init__(self, store: Any, shown: str, folder: Path | None, limits: BlobLimits) -> None:
        self._store = store
        self._folder = folder
        self._call_s = (limits.timeout_ms + limits.retry_for_ms) / 1000 + 5
        self.shown = shown
        """The URL for display; contains no secrets."""

    @classmethod
    def open(cls, url: str, limits: BlobLimits | None = None) -> BlobStore:
        """The store at `s3://bucket/prefix`, `gs://`, `az://container/prefix`, `file:///folder`.

        Sends no request (`probe` does). Raises RequestInvalid.
        """
        limits = limits or BlobLimits()
        split = _checked(url)
        shown = f"{split.scheme}://{split.netloc}{split.path}".rstrip("/")
        try:
            if split.scheme == "file":
                folder = Path(split.path)
                folder.mkdir(parents=True, exist_ok=True)
                store: Any = obstore.store.LocalStore(folder)
                return cls(store, shown, folder, limits)
            store = obstore.store.from_url(
                shown,
                client_options=_client_options(limits),
                retry_config={
                    "max_retries": limits.retries_max,
                    "retry_timeout": timedelta(milliseconds=limits.retry_for_ms),
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=100),
                        "max_backoff": timedelta(seconds=5),
                        "base": 2,
                    },
                },
            )
        except (obstore.exceptions.BaseError, ValueError, OSError) as error:
            raise RequestInvalid(
                f"cannot use object storage at {shown} ({_cause(error)}): check the URL and the"
                " cloud's settings in the environment (docs/TIERING.md)"
            ) from None
        return cls(store, shown, None, limits)

    def blocking(self) -> BlockingBlobs:
        """The same blobs, without an event loop."""
        return BlockingBlobs(self._store, self.shown, self._folder)

    def path_of(self, name: str) -> str | None:
        """The path of the blob's file, if the store is a local folder."""
        return None if self._folder is None else str(self._folder / name)

    async def put(self, name: str, parts: AsyncIterator[Buffer]) -> int:
        """Write a blob from its parts, in order; returns its size.

        Atomic; replaces an existing blob. Raises StorageUnavailable, and whatever `parts` raises;
        an unfinished upload may then be left behind.
        """
        await self._forget_unfinished(name)
        writer = obstore.open_writer_async(
            self._store, name, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        size = 0
        async for part in parts:
            await self._call(writer.write(part), "writing", name)
            size += len(part)
        await self._call(writer.close(), "writing", name)
        if self._folder is not None:
            synced = self._in_thread(sync_file, self._folder / name, self._folder)
            await self._call(synced, "syncing", name)
        return size

    async def get(self, name: str, start: int, size: int) -> memoryview:
        """Exactly `size` bytes at `start`. Raises StorageUnavailable, also past the end."""
        if size == 0:
            return memoryview(b"")
        found = await self._call(
            obstore.get_range_async(self._store, name, start=start, length=size), "reading", name
        )
        data = memoryview(found)
        if len(data) != size:
            raise StorageUnavailable(
                f"{self.shown}: {name} has {len(data)} bytes at {start} instead of {size}: it was"
                " truncated or replaced; restore it from an older version",
                is_missing=True,
                is_objects=True,
            )
        return data

    async def size(self, name: str) -> int:
        """The size of a blob in bytes. Raises StorageUnavailable."""
        found = await self._call(obstore.head_async(self._store, name), "asking for", name)
        return int(found["size"])

    async def delete(self, name: str) -> None:
        """Delete a blob, if it exists. Raises StorageUnavailable."""
        try:
            await self._call(obstore.delete_async(self._store, name), "deleting", name)
        except StorageUnavailable as error:
            if not error.fields.get("is_missing"):
                raise

    async def folders(self) -> Sequence[str]:
        """What the names of blobs begin with, before the first slash. Raises StorageUnavailable."""
        listed = obstore.list_with_delimiter_async(self._store)
        return sorted((await self._call(listed, "listing", "folders"))["common_prefixes"])

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """All blobs under the folder `prefix`. Raises StorageUnavailable."""
        stream = aiter(obstore.list(self._store, prefix=prefix, chunk_size=LISTED_AT_ONCE))
        while True:
            batch: Iterable[Any] | None = await self._call(anext(stream, None), "listing", prefix)
            if batch is None:
                return
            for item in batch:
                modified_ms = round(item["last_modified"].timestamp() * 1000)
                yield BlobInfo(item["path"], int(item["size"]), modified_ms)

    async def probe(self, name: str) -> None:
        """Check that blobs can be written, read and deleted. Raises StorageUnavailable."""
        text = b"headrace was here to see whether it may write, read and delete"

        async def parts() -> AsyncIterator[Buffer]:
            yield text

        await self.put(name, parts())
        if bytes(await self.get(name, 0, len(text))) != text:
            raise StorageUnavailable(
                f"{self.shown}: a blob read back differs from what was written: check whether"
                " another program writes there, or a cache is in between",
                is_objects=True,
            )
        await self.delete(name)

    # --- internal ----------------------------------------------------------------------------

    async def _call(self, call: Awaitable[T], what: str, name: str) -> T:
        with _translated(self.shown, what, name):
            async with asyncio.timeout(self._call_s):
                return await call

    async def _forget_unfinished(self, name: str) -> None:
        """Remove the remains of an interrupted upload to a folder.

        In a cloud, this takes a lifecycle rule: obstore cannot list uploads.
        """
        folder = self._folder
        if folder is None:
            return

        def remove() -> None:
            path = folder / name
            for left in path.parent.glob(path.name + "#*"):
                left.unlink(missing_ok=True)

        await self._call(self._in_thread(remove), "cleaning up before", name)

    async def _in_thread(self, function: Any, *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


@contextmanager
def _translated(shown: str, what: str, name: str) -> Iterator[None]:
    """Raises StorageUnavailable for failures of `obstore`."""
    try:
        yield
    except FileNotFoundError as error:
        raise StorageUnavailable(
            f"{shown}: {what} {name} failed: there is no such object ({_cause(error)}); check that"
            " the URL names the storage it was written to, or restore it",
            is_missing=True,
            is_objects=True,
        ) from None
    except (obstore.exceptions.BaseError, ValueError, OSError) as error:
        # An asyncio time-out is an OSError. The message contains the sanitized cause.
        raise StorageUnavailable(
            f"{shown}: {what} {name} failed ({_cause(error)}): check that it can be reached, and"
            " the credentials in the environment",
            is_objects=True,
        ) from None


class BlockingBlobs:
    """The blobs of a store, for a program that copies them one after another and ends.

    A coroutine of `obstore` is completed by a thread of its own, which aborts a process that exits
    at that moment; calls that block are not.
    """

    def __init__(self, store: Any, shown: str, folder: Path | None) -> None:
        """Use `BlobStore.blocking`."""
        self._store = store
        self._folder = folder
        self.shown = shown

    def put(self, name: str, parts: Iterable[bytes]) -> None:
        """As BlobStore.put."""
        with _translated(self.shown, "writing", name):
            writer = obstore.open_writer(
                self._store, name, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
        for part in parts:
            with _translated(self.shown, "writing", name):
                writer.write(part)
        with _translated(self.shown, "writing", name):
            writer.close()
            if self._folder is not None:
                sync_file(self._folder / name, self._folder)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small blob unless there is one: False, and nothing is changed. A retry after a
        lost answer may find its own. Raises StorageUnavailable."""
        with _translated(self.shown, "creating", name):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def get(self, name: str, start: int, size: int) -> bytes:
        """At most `size` bytes at `start`. Raises StorageUnavailable."""
        if size == 0:
            return b""
        with _translated(self.shown, "reading", name):
            return bytes(obstore.get_range(self._store, name, start=start, length=size))

    def size(self, name: str) -> int:
        """The size of a blob in bytes. Raises StorageUnavailable."""
        with _translated(self.shown, "asking for", name):
            return int(obstore.head(self._store, name)["size"])

    def delete(self, name: str) -> None:
        """Delete a blob. Raises StorageUnavailable."""
        with _translated(self.shown, "deleting", name):
            obstore.delete(self._store, name)

    def first(self, besides: str = "") -> str | None:
        """The name of any other blob, None if there are none. Raises StorageUnavailable."""
        with _translated(self.shown, "listing", ""):
            for batch in obstore.list(self._store, chunk_size=2):
                for item in batch:
                    if item["path"] != besides:
                        return str(item["path"])
        return None


def _checked(url: str) -> Any:
    """Split a URL. Raises RequestInvalid, which reveals only its scheme."""
    try:
        split = urlsplit(url)
    except ValueError:
        split = urlsplit("")
    if split.scheme not in SCHEMES:
        raise RequestInvalid(
            f"unknown kind of object storage {split.scheme[:20]!r}: write s3://bucket/prefix,"
            " gs://bucket/prefix, az://container/prefix or file:///folder"
        )
    if "@" in split.netloc or split.query or split.fragment:
        raise RequestInvalid(
            f"the URL of object storage ({split.scheme}://...) contains more than a bucket and a"
            " prefix: pass credentials in the environment, where they do not appear in process"
            " listings"
        )
    is_file = split.scheme == "file"
    if is_file == bool(split.netloc) or (is_file and not split.path.strip("/")):
        raise RequestInvalid(
            "object storage needs a bucket (s3://bucket/prefix) or an absolute folder"
            " (file:///srv/headrace)"
        )
    return split


def sync_file(path: Path, top: Path, disk: Disk | None = None) -> None:
    """Sync a file that others wrote, and the folders above it up to `top`."""
    disk = disk or SystemDisk()
    fd = disk.open(str(path), READ_ONLY)
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    for parent in path.parents:
        disk.sync_folder(str(parent))
        if parent == top:
            break


def _client_options(limits: BlobLimits) -> Any:
    is_plain_allowed = any(
        os.environ.get(name, "").lower() in {"true", "1"}
        for name in ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP")
    )
    return {
        "timeout": timedelta(milliseconds=limits.timeout_ms),
        "connect_timeout": timedelta(milliseconds=limits.connect_timeout_ms),
        "allow_http": is_plain_allowed,
    }


def _cause(error: BaseException) -> str:
    """The cause of an error in one line, without secrets."""
    text = str(error).strip().split("\n\n")[0].replace("\n", " ") or type(error).__name__
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET_NAMES.match(name):
            text = text.replace(value, "***")
    text = _XML.sub(r"\1", text)
    return _QUERY.sub("?...", text)[:_CAUSE_CHARACTERS_MAX]
