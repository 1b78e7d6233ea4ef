"""What `headrace dump` does not show."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from headrace.administration.stored_users import open_users
from headrace.broker.security.users import CredentialChange
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.metadata.sqlite_file import METADATA
from headrace.metadata.user_facts import ensure_broker_secret, user_key
from headrace.runtime.clock import SystemClock
from headrace.runtime.scram import SHA_256, new_credential, salt_text


def test_a_dump_of_the_metadata_hides_credentials(tmp_path):
    async def scenario() -> None:
        async with open_users(tmp_path / "data") as users:
            credential = new_credential(SHA_256, "secret", salt_text(1))
            await users.change([CredentialChange("alice", SHA_256, credential)])
        store = await SqliteMetadataStore.open(tmp_path / "data" / METADATA, SystemClock())
        await ensure_broker_secret(store, b"s" * 32)
        await store.put(user_key("damaged"), b"canary", -1)
        await store.close()

    asyncio.run(scenario())
    out = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "dump", "metadata", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert "/users/" in out
    assert "/cluster/broker-secret" in out
    for hidden in ("stored_key", "c3Nzc3", "canary"):
        assert hidden not in out
