"""What was asked for and cannot be had is refused: options without an effect are usage errors."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli

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
    ],
)
def test_an_option_without_effect_is_refused(arguments, text):
    done = CliRunner().invoke(cli, ["-b", "127.0.0.1:1", *arguments])
    assert done.exit_code == 2, done.output
    assert text in " ".join(done.output.split())
