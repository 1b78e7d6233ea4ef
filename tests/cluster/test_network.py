"""The network that can be cut leaves no connection open."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest
from tests.cluster.network import Proxy


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("end", ["refuse", "leave"])
async def test_a_connection_accepted_while_the_proxy_stops_listening_is_closed(turns, end):
    """However many turns of the loop it has had to be accepted."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        host, port = target.getsockname()
        proxy = await Proxy(f"{host}:{port}").__aenter__()
        with socket.create_connection(("127.0.0.1", proxy.port)):
            for _ in range(turns):
                await asyncio.sleep(0)
            if end == "refuse":
                await proxy.refuse()
            await proxy.__aexit__()
            for _ in range(5):
                await asyncio.sleep(0)  # until what was aborted is closed
            # An error in a finalizer would only be printed, so the warnings are recorded.
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                gc.collect()
    assert not [one.message for one in found if one.category is ResourceWarning]
