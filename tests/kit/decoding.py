"""Counts records that are decoded, in each turn of the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from headrace.records import codec

if TYPE_CHECKING:
    from collections.abc import Awaitable

    import pytest


async def decoded_per_turn(
    call: Awaitable[Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, list[int]]:
    """What `call` returns, and how many records were decoded on the loop in each of its turns."""
    turns, decode, here = [0], codec._decode_records, threading.get_ident()

    def counting(*arguments: Any) -> Any:
        found = decode(*arguments)
        if threading.get_ident() == here:
            turns[-1] += len(found[0])
        return found

    async def turn() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append(0)

    turning = asyncio.create_task(turn())
    with monkeypatch.context() as patched:
        patched.setattr(codec, "_decode_records", counting)
        try:
            return await call, turns
        finally:
            turning.cancel()
