"""Settings of values by schemas: what starts a broker, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import RequestInvalid
from headrace.runtime.clock import SystemClock
from headrace.server.schemas import decoded_values
from headrace.server.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

URL = "headrace.schema.registry.url"
CREDENTIAL = "headrace.schema.registry.credential.file"
FOLDER = "headrace.schema.folder"


def test_a_broker_decodes_values_if_a_registry_or_a_folder_is_set(tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text("me:hid:den\n")
    found = [
        decoded_values(Settings(tmp_path, given=given), SystemClock()) is not None
        for given in (
            {},
            {FOLDER: str(tmp_path)},
            {URL: "http://127.0.0.1:8081/", CREDENTIAL: str(login)},
        )
    ]
    assert found == [False, True, True]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({URL: "127.0.0.1:8081"}, "must be http://HOST:PORT"),
        ({URL: "file:///etc/passwd"}, "must be http://HOST:PORT"),
        ({URL: "http://me:hidden@127.0.0.1"}, "without a user"),
        ({FOLDER: "/no/such"}, "there is no folder"),
        ({CREDENTIAL: "login"}, "needs headrace.schema.registry.url"),
        ({URL: "http://h", CREDENTIAL: "/no/such"}, "cannot be read"),
    ],
)
def test_a_setting_that_cannot_hold_is_refused_at_the_start(
    given: dict[str, str], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestInvalid, match=reason) as caught:
        decoded_values(Settings(tmp_path, given=given), SystemClock())
    assert "hidden" not in str(caught.value)


def test_a_credential_of_another_form_is_refused_without_showing_it(tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text("hidden")
    with pytest.raises(RequestInvalid, match="does not hold USER:PASSWORD") as caught:
        decoded_values(
            Settings(tmp_path, given={URL: "http://h", CREDENTIAL: str(login)}), SystemClock()
        )
    assert "hidden" not in str(caught.value)
