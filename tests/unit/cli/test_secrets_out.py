"""What may be a secret does not leave the machine."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.secrets_out import REMOVED, without_secrets

CANARY = "CaNaRy42"
NAMES = (
    "ssl.key.password", "sasl.password", "HEADRACE_SSL_KEY_PASSWORD", "client_secret", "api-key",
    "zookeeper-credential", "sasl.jaas.config", "ssl.keystore.key", "access_token", "privateKey",
)  # fmt: skip
FORMS = ("{n}={v}", "{n} = '{v}'", '{n} = "{v}"', '"{n}": "{v}"', "{n}: {v}", '{n} = """\n{v}\n"""')


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_the_value_of_a_secret_is_removed_in_every_form(name, form):
    text = f"before = 1\n{form.format(n=name, v=CANARY)}\nafter = 2\n"
    shown = without_secrets(text)
    assert CANARY not in shown
    assert REMOVED in shown
    assert shown.startswith("before = 1\n")
    assert shown.endswith("after = 2\n")


@pytest.mark.parametrize(
    "text",
    [
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
        json.dumps(f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----"),
        f"-----BEGIN ENCRYPTED PRIVATE KEY-----\n{CANARY}",
        f"postgresql://user:{CANARY}@db/1",
        f"Authorization: Basic {CANARY}",
        f"got bearer {CANARY}xyz",
        f"mysql --password {CANARY} --user x",
        f"Set-Cookie: session={CANARY}; Path=/",
        f"pwd={CANARY}",
        f"n=alice,salt={CANARY}",
        f"eyJhbGciOiJub25lIn0.{CANARY}.{CANARY}",
    ],
)
def test_secrets_are_known_by_their_form(text):
    assert CANARY not in without_secrets(text)


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=300))
def test_any_text_passes_and_nothing_is_removed_twice(text):
    once = without_secrets(text)
    assert without_secrets(once) == once


def test_text_without_secrets_is_unchanged():
    text = 'listeners = \'SASL_SSL://a:9093\'\nlinger.ms=5\n{"topic": "keys", "offset": 3}\n'
    assert without_secrets(text) == text


@pytest.mark.parametrize("unit", ["x", "password", "token=", '"', "://", "a@", "-----BEGIN "])
def test_the_time_is_linear_in_the_length_of_the_text(unit):
    begun_s = time.process_time()
    without_secrets(unit * (1_000_000 // len(unit)))
    assert time.process_time() - begun_s < 20
