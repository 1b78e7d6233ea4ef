"""What a broker says of its super users when it starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.security_protocols import PLAINTEXT, SASL_SSL, SSL
from headrace.server.authentication import warn_of_lockout
from headrace.server.settings import Settings

TOKENS = {"sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER"}


@pytest.mark.parametrize(
    ("protocol", "given", "super_users", "has_password", "is_warned"),
    [
        (SASL_SSL, {}, {"User:admin"}, False, True),
        (SASL_SSL, {}, {"User:admin"}, True, False),
        (SASL_SSL, TOKENS, {"User:admin"}, False, False),
        (SASL_SSL, TOKENS, {}, False, True),
        (PLAINTEXT, {}, {"User:admin"}, True, True),
        (PLAINTEXT, {}, {"User:admin", "User:ANONYMOUS"}, False, False),
        (SSL, {}, {"User:CN=admin"}, False, True),
        (SSL, {"ssl.client.auth": "required"}, {"User:CN=admin"}, False, False),
        (SSL, {"ssl.client.auth": "required"}, {}, False, True),
    ],
)
def test_a_cluster_into_which_no_super_user_can_log_in_is_warned_of_at_start(
    caplog, protocol, given: Any, super_users, has_password, is_warned
):
    settings = Settings(
        Path(), given=given, kafka_listener="C", protocols={"C": protocol}, http_protocol=protocol
    )
    with caplog.at_level(logging.WARNING):
        warn_of_lockout(settings, super_users, has_password=has_password)
    assert [True for one in caplog.messages if "no super user can log in" in one] == (
        [True] if is_warned else []
    )
