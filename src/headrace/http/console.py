"""Serves the console's files at `/` and `/console/{version}/`.

Invariants: files alone, no state: what its pages show and do goes through `/v1`, with the rights of
their viewer. The pages load nothing from elsewhere, run no inline script, and may not be
framed: the policy says so to the browser.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse, Response

from headrace.console.assets import load_assets
from headrace.http.problems import PathRoute

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.console.assets import Asset

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
}
FOREVER: Final = "public, max-age=31536000, immutable"
ASK_AGAIN: Final = "no-cache"
"""The index, which names the version: a browser asks whether it has changed."""


async def _index(request: Request) -> Response:
    assets = await asyncio.to_thread(load_assets)
    return _response(request, assets.page, ASK_AGAIN)


async def _file(request: Request) -> Response:
    assets = await asyncio.to_thread(load_assets)
    found = assets.by_path.get(request.path_params["path"])
    if found is None or request.path_params["version"] != assets.version:
        return PlainTextResponse("no such file: load / again\n", 404)
    return _response(request, found, FOREVER)


def _response(request: Request, asset: Asset, caching: str) -> Response:
    headers = {**_HEADERS, "Cache-Control": caching, "ETag": asset.etag}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    data = asset.data
    if "gzip" in request.headers.get("accept-encoding", ""):
        data = asset.compressed
        headers["Content-Encoding"] = "gzip"
    return Response(data, headers=headers, media_type=asset.media_type)


def console_routes() -> list[PathRoute]:
    """The routes of the console."""
    return [PathRoute("/", _index), PathRoute("/console/{version}/{path:path}", _file)]
