"""`headrace user rotate --if-changed`, as a container runs it at each start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError

from headrace.administration.stored_users import open_users
from headrace.broker.security.users import NAME_BYTES_MAX, RESERVED_PREFIX
from headrace.cli.failures import CommandFailed, from_kafka
from headrace.cli.main import cli
from headrace.cli.user_places import StoredUsers
from headrace.records.tenant_names import CLOSE, OPEN
from headrace.runtime.scram import HASHES, ScramCredential

if TYPE_CHECKING:
    from pathlib import Path


def stored(data_dir: Path) -> list[ScramCredential | None]:
    async def read() -> list[ScramCredential | None]:
        async with open_users(data_dir) as users:
            return [users.credential("admin", mechanism) for mechanism in HASHES]

    return asyncio.run(read())


def user(command: str, data_dir: Path, password: str, *more: str) -> str:
    arguments = ["user", command, "admin", "--data-dir", str(data_dir), "--password-file", "-"]
    done = CliRunner().invoke(cli, [*arguments, *more], input=f"{password}\n")
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("password", "more", "is_same"),
    [
        ("first", (), True),
        ("other", (), False),
        ("first", ("--iterations", "8192"), False),
        ("first", ("--mechanism", "SCRAM-SHA-256"), False),
    ],
)
def test_a_password_is_set_again_only_if_something_differs(
    tmp_path, password, more, is_same
) -> None:
    user("add", tmp_path, "first")
    before = stored(tmp_path)
    told = user("rotate", tmp_path, password, "--if-changed", *more)
    assert (stored(tmp_path) == before, "unchanged" in told) == (is_same, is_same)
    user("rotate", tmp_path, "first")
    assert stored(tmp_path) != before, "with a new salt"


def test_a_generated_password_that_may_have_been_set_is_not_lost(tmp_path, monkeypatch) -> None:
    """The change was stored, and its answer was lost."""
    set_password = StoredUsers.set_password

    def unanswered(place: StoredUsers, *arguments: Any) -> None:
        set_password(place, *arguments)
        raise CommandFailed("no answer")

    user("add", tmp_path, "first")
    monkeypatch.setattr(StoredUsers, "set_password", unanswered)
    arguments = ["user", "rotate", "admin", "--data-dir", str(tmp_path), "--generate"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 1
    password = done.stderr.partition("if it was set all the same: ")[2].split()[0]
    assert StoredUsers(tmp_path).is_password("admin", password)


@pytest.mark.parametrize(("code", "is_shown"), [(93, False), (31, False), (7, True), (-185, True)])
def test_a_generated_password_that_was_refused_is_not_shown(
    tmp_path, monkeypatch, code, is_shown
) -> None:
    """An unacceptable user, no right; and no answer in time, of the broker and of the client."""

    def failing(*_arguments: Any) -> None:
        raise from_kafka(KafkaError(code), "change a user")

    user("add", tmp_path, "first")
    monkeypatch.setattr(StoredUsers, "set_password", failing)
    arguments = ["user", "rotate", "admin", "--data-dir", str(tmp_path), "--generate"]
    done = CliRunner().invoke(cli, arguments)
    assert (done.exit_code > 0, "set all the same" in done.stderr) == (True, is_shown)
    monkeypatch.undo()
    arguments = ["user", "add", "x" * 101, "--data-dir", str(tmp_path), "--generate"]
    done = CliRunner().invoke(cli, arguments)
    assert (done.exit_code > 0, "set all the same" in done.stderr) == (True, False)


def test_a_broker_does_not_show_what_it_stores(tmp_path) -> None:
    from headrace.cli.session import CliSession
    from headrace.cli.user_places import BrokerUsers

    with pytest.raises(CommandFailed, match="nothing was changed"):
        BrokerUsers(CliSession(None)).is_password("admin", "first")


def test_a_refused_name_comes_with_the_rule_for_names() -> None:
    failed = from_kafka(KafkaError(KafkaError.UNACCEPTABLE_CREDENTIAL), "change user 'x«y'")
    assert failed.is_refusal
    assert str(NAME_BYTES_MAX) in failed.next_step
    for part in (RESERVED_PREFIX, OPEN, CLOSE):
        assert part in failed.next_step
    assert "broker's log" not in failed.next_step
