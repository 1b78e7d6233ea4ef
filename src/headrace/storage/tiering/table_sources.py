"""Opens the data files of tables: in directories, and in S3.

Invariants: knows paths and bytes, not rows. A file that is missing, or has another size than when
its rows were verified, is an error. A file in S3 is read in ranges, as its reader asks for them;
each request ends in bounded time. Credentials come from the environment only, as for `--objects`.
Runs in threads: a request blocks its own, and no other's turn to decode.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import DataCorrupt, RequestInvalid, StorageUnavailable
from headrace.storage.tiering.blob_store import BlobLimits, BlobStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.storage.tiering.blob_store import BlockingBlobs
    from headrace.storage.tiering.recipe_format import TableFile

READ_BYTES: Final = 1 << 20
"""What is read at a time: a request needs at least 70 KB/s."""
DECODERS_MAX: Final = 2
"""Threads that decode at the same time: each delays the event loop."""
S3_LIMITS: Final = BlobLimits(timeout_ms=15_000, retries_max=2, retry_for_ms=15_000)
_S3: Final = "s3://"


class Turns:
    """Turns of threads to decode. One that waits for bytes gives its turn up meanwhile."""

    def __init__(self, count: int = DECODERS_MAX) -> None:
        self._free = threading.BoundedSemaphore(count)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have a turn."""
        with self._free:
            yield

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Not have the turn, which is taken, for a while."""
        self._free.release()
        try:
            yield
        finally:
            self._free.acquire()


class TableSources:
    """Data files by their paths. The clients of buckets are kept."""

    def __init__(self, limits: BlobLimits = S3_LIMITS) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._buckets: dict[str, BlockingBlobs] = {}
        self._is_closed = False

    def close(self) -> None:
        """End what reads whole files, which would hold up the end of the process."""
        self._is_closed = True

    def open(self, file: TableFile, turns: Turns | None = None) -> Any:
        """The file for pyarrow; `turns`: what its readers take. Raises StorageUnavailable,
        DataCorrupt, OSError, ImportError (see `translated`)."""
        import pyarrow as pa

        if file.path.startswith(_S3):
            blobs, name = self._in_s3(file)
            _check_size(file, blobs.size(name))
            source = Ranges(partial(blobs.get, name), file.size_bytes, turns)
            return pa.PythonFile(source, mode="r")
        from pyarrow import fs

        if "://" in file.path:
            system, path = fs.FileSystem.from_uri(file.path)
        else:
            system, path = fs.LocalFileSystem(), file.path.removeprefix("file:")
        size = system.get_file_info(path).size
        if size is None:
            raise FileNotFoundError(file.path)
        _check_size(file, size)
        return system.open_input_file(path)

    def digest(self, file: TableFile) -> str:
        """The SHA-256 of a file of this size. Raises StorageUnavailable, also once closed, and
        DataCorrupt."""
        digest = sha256()
        with translated(file), self.open(file) as source:
            while data := source.read(READ_BYTES):
                if self._is_closed:
                    raise InterruptedError("the broker is stopping")
                digest.update(data)
        return digest.hexdigest()

    def check_presence(self, file: TableFile) -> None:
        """Look for the file, without reading it. Raises StorageUnavailable, DataCorrupt."""
        with translated(file):
            self.open(file).close()

    def _in_s3(self, file: TableFile) -> tuple[BlockingBlobs, str]:
        bucket, _, name = file.path.removeprefix(_S3).partition("/")
        with self._lock:
            if bucket not in self._buckets:
                self._buckets[bucket] = BlobStore.open(_S3 + bucket, self._limits).blocking()
            return self._buckets[bucket], name


class Ranges:
    """A file as Python's files are, such as one in S3: each read calls `get` (start, size)."""

    closed = False

    def __init__(
        self, get: Callable[[int, int], bytes], size: int, turns: Turns | None = None
    ) -> None:
        self._get = get
        self._size = size
        self._turns = turns
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = self._size - self._at
        count = left if size < 0 else min(size, left)
        if count <= 0:
            return b""
        if self._turns is None:
            found = self._get(self._at, count)
        else:
            with self._turns.given_up():
                found = self._get(self._at, count)
        if len(found) != count:
            raise ValueError(f"it has {len(found)} bytes at {self._at} instead of {count}")
        self._at += count
        return found

    def close(self) -> None:
        self.closed = True


def _check_size(file: TableFile, size: int) -> None:
    if size != file.size_bytes:
        raise unreadable(file, f"it has {size} bytes instead of {file.size_bytes}")


@contextmanager
def translated(file: TableFile) -> Iterator[None]:
    """Raise StorageUnavailable, or DataCorrupt, for what libraries raise of a file."""
    try:
        yield
    except ImportError as error:
        raise StorageUnavailable(
            f"the table's file {file.path} cannot be read without a package that is not installed"
            f" ({error.name}): records that only the table has are not served; install it with"
            " pip install 'headrace[pipeline]', and restart the broker"
        ) from error
    except (OSError, StorageUnavailable, RequestInvalid) as error:
        is_missing = isinstance(error, FileNotFoundError) or (
            isinstance(error, StorageUnavailable) and bool(error.fields.get("is_missing"))
        )
        raise StorageUnavailable(
            f"the table's file {file.path} cannot be read ({error}): records that only the table"
            " has are not served; restore the file, or the snapshot that has it",
            is_missing=is_missing,
            is_objects=True,
        ) from error
    except (ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise unreadable(file, str(error)) from error


def unreadable(file: TableFile, problem: str) -> DataCorrupt:
    """The error for a file with other content than when its rows were verified."""
    return DataCorrupt(
        f"the table's file {file.path} is not what it was ({problem}): records that only the table"
        " has are not served; restore the file from a backup or an older version",
        path=file.path,
    )
