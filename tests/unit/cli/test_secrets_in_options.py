"""Credentials in an option are refused, and not said again."""

from __future__ import annotations

import pytest

from headrace.cli.cluster_options import cluster_settings
from headrace.cli.failures import CommandFailed
from headrace.cli.output import cell_text


def test_credentials_of_zookeeper_are_not_taken_and_not_repeated():
    with pytest.raises(CommandFailed) as refused:
        cluster_settings("user:canary@zk1:2181", "/headrace", 6000, (3, 3, 2), None)
    assert "canary" not in refused.value.message
    assert "--zookeeper-credential-file" in refused.value.message


def test_a_cell_of_a_table_stays_on_its_line():
    assert cell_text("a\nforged  row\x1b[31m") == r"a\nforged  row\x1b[31m"
