"""What was asked for and cannot be had is refused: options without an effect are usage errors."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli

ARCHIVE = ("pipeline", "run", "archive", "--topic", "t", "--warehouse", "w")
MOVE = ("backlog", "move", "g", "t", "--to", "u")
SETTLE = ("queue", "settle", "orders", "workers", "--ack", "receipt")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("consume", "orders", "--json", "--keys"), "--keys has no effect with --format json"),
        (("consume", "orders", "-f", "raw", "--times"), "--times has no effect"),
        (("consume", "orders", "-f", "raw", "--delimiter", ","), "--delimiter has no effect"),
        (("consume", "orders", "-T", "{key}", "--headers"), "--headers has no effect"),
        (("consume", "orders", "-T", "{key}", "--json"), "--template cannot be combined"),
        ((*SETTLE, "--delay", "5s"), "--delay has no effect without --nack"),
        ((*SETTLE, "--lock", "5s"), "--lock has no effect without --extend"),
        ((*SETTLE, "--reason", "bad"), "--reason has no effect without --dead-letter or --nack"),
        ((*MOVE, "--dry-run", "--rate", "5"), "--rate has no effect with --dry-run"),
        (("dead", "redrive", "d", "--dry-run", "--rate", "5"), "--rate has no effect with"),
        (("dead", "redrive", "d", "--lines", "--json"), "--json has no effect with --lines"),
        (("produce", "t", "-f", "json", "-K", ":"), "--key-separator has no effect with --format"),
        (("produce", "t", "-f", "file", "--empty-is-null"), "--empty-is-null has no effect"),
        (("produce", "t", "--key-from-name"), "--key-from-name has no effect without --format"),
        (("produce", "t", "-K", ":", "-k", "k"), "--key has no effect with --key-separator"),
        (("produce", "t", "-f", "file", "--key-from-name", "-k", "k"), "--key has no effect with"),
        ((*ARCHIVE, "--round-mib", "1"), "--round-mib has no effect without --continuous"),
        ((*ARCHIVE, "--maintain-every", "0"), "--maintain-every has no effect without"),
        (("cluster", "move", "t", "0", "--unpin", "--wait-s", "1"), "--wait-s has no effect with"),
        (("cluster", "drain", "1", "--undo", "--wait-s", "1"), "--wait-s has no effect with"),
        (("cluster", "repair", "--accept-loss"), "--accept-loss has no effect without --yes"),
        (("verify", "simulate", "--replay", "f", "--runs", "2"), "--runs has no effect with"),
        (("verify", "simulate", "--replay", "f", "--json"), "--json has no effect with --replay"),
    ],
)
def test_an_option_without_effect_is_refused(arguments, text):
    done = CliRunner().invoke(cli, ["-b", "127.0.0.1:1", *arguments])
    assert done.exit_code == 2, done.output
    assert text in " ".join(done.output.split())
