"""A real S3 server for the tests: VersityGW over a folder, on a free port of the loopback.

Invariants: the binary is what `scripts/go-tool.sh` builds when a test first asks for it (a
minute of Go, once), or what HEADRACE_S3_SERVER names; where there is none, a test is skipped
and says so. Its credentials are nobody's.
"""

from __future__ import annotations

import fcntl
import functools
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.dev_cluster.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
ACCESS_KEY, SECRET_KEY = "headrace-test", "not-a-secret-of-anybody"
BUCKET = "bucket"


def binary() -> str:
    """The path of the server; skips the test where there is none."""
    named = os.environ.get("HEADRACE_S3_SERVER")
    found = Path(named) if named else built()
    if found is None or not found.exists():
        pytest.skip("no S3 server here: sh scripts/go-tool.sh versitygw builds one (it needs Go)")
    return str(found)


@functools.cache
def built() -> Path | None:
    """What the script has built, now or earlier. One process builds, others wait for it."""
    folder = ROOT / ".cache" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "versitygw.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["sh", "scripts/go-tool.sh", "versitygw"], cwd=ROOT, check=True)
    return max(folder.glob("versitygw-v*"), default=None)


class S3Server:
    """One server with one bucket. Its port stays the same from one start to the next."""

    def __init__(self, folder: Path) -> None:
        self._binary = binary()
        self.root = folder / "s3"
        (self.root / BUCKET).mkdir(parents=True)
        self._log = folder / "s3.log"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What `--objects` takes."""
        return f"s3://{BUCKET}/some/prefix"

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What a client of it needs in its environment; `port` of something in between."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> S3Server:
        """Start it and wait until it takes connections."""
        with open(self._log, "ab") as out:
            self.process = subprocess.Popen(
                [self._binary, "--quiet", "--port", f"127.0.0.1:{self.port}", "posix", self.root],
                env={**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise AssertionError(self._log.read_text()[-2000:]) from None
                time.sleep(0.02)
            else:
                return self

    def stop(self) -> None:
        """End it; what it holds stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def objects(self) -> list[Path]:
        """The objects, as files."""
        while True:
            try:
                found = list((self.root / BUCKET).rglob("*.ledger"))
            except FileNotFoundError:  # the server removed a folder while we were looking
                continue
            return sorted(path for path in found if ".sgwtmp" not in path.parts)


class Proxy:
    """Passes connections on to a port; while it stalls, bytes wait. `watch` gets
    what passes."""

    def __init__(self, port: int, watch: Callable[[bytes], object] = bool) -> None:
        self._target = port
        self._watch = watch
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def stall(self) -> None:
        """From now on connections are accepted, and get no answer."""
        self._flows.clear()

    def resume(self) -> None:
        """What waited goes on."""
        self._flows.set()

    def close(self) -> None:
        """End all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)  # close() alone would not wake the thread
        self._accepting.join()
        self._listener.close()
        self._flows.set()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(near)
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server has ended
                near.close()
                continue
            self._open.append(far)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._flows.wait()
                self._watch(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # an end was closed


if __name__ == "__main__":
    built()
