"""An S3 server of one bucket that misbehaves as told: what a real one does rarely, or never alone.

Reads alone, of what is in `files`, without a look at signatures.
"""

from __future__ import annotations

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

BUCKET = "bucket"


class ObjectServer:
    """On a free port of the loopback. Closed by `with`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.refused: set[str] = set()
        """Names that are answered by 403."""
        self.stalled: set[str] = set()
        """Names whose bytes do not come before `released`."""
        self.released = threading.Event()
        self.waiting = threading.Event()
        """Set when a request waits for that."""
        self.requests: Counter[str] = Counter()
        self.bytes_max = 0
        """The largest range that was asked for."""
        of = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                of.answer(self)

            def do_GET(self) -> None:
                of.answer(self)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        """What a client needs in its environment."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "a-secret-of-nobody",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request for an object."""
        name = request.path.removeprefix(f"/{BUCKET}/")
        self.requests[name] += 1
        if name in self.refused or name not in self.files:
            request.send_response(403 if name in self.refused else 404)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        data, code = self.files[name], 200
        if (wanted := request.headers["Range"]) is not None:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            shown = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
            data, code = data[first : last + 1], 206
            self.bytes_max = max(self.bytes_max, len(data))
        request.send_response(code)
        if code == 206:
            request.send_header("Content-Range", shown)
        request.send_header("Content-Length", str(len(data)))
        request.send_header("Last-Modified", "Sat, 28 Nov 2026 10:00:00 GMT")
        request.send_header("ETag", '"1"')
        request.end_headers()
        if request.command == "GET":
            if name in self.stalled:
                self.waiting.set()
                self.released.wait()
            request.wfile.write(data)
