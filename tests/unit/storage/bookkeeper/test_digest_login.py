"""DIGEST-MD5, by the example of RFC 2831 and against what a bookie may send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RequestInvalid
from headrace.storage.bookkeeper import digest_login
from headrace.storage.bookkeeper.digest_login import DigestLogin, auth_frame, auth_payload
from headrace.storage.bookkeeper.wire import MalformedFrame

CHALLENGE = (
    b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,'
    b"charset=utf-8"
)
"""Section 4 of RFC 2831, as are the answers."""


def test_the_example_of_the_rfc(monkeypatch):
    monkeypatch.setattr(digest_login, "_DIGEST_URI", "imap/elwood.innosoft.com")
    login = DigestLogin("chris:secret", "OA6MHXh6VqTrRk")
    answer = login.answer(CHALLENGE)
    assert b"response=d388dad90d4bbd760a152321f2143af7" in answer
    assert b"secret" not in answer
    assert login.is_proven(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")
    assert not login.is_proven(b"rspauth=ea40f60335c427b5527b84dbabcdfffe")
    assert not login.is_proven(b"")


def test_nothing_proves_a_bookie_before_a_challenge():
    assert not DigestLogin("user:password", "n").is_proven(b"rspauth=")


@pytest.mark.parametrize("text", ["", "user", ":word", "user:", "us\ner:word", 'u"x:word', "ü:w"])
def test_an_invalid_credential_is_refused_without_being_shown(text):
    with pytest.raises(RequestInvalid) as caught:
        DigestLogin(text, "n")
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    "challenge", [b"", b'nonce="a"', b"nonce=", CHALLENGE.replace(b'"auth"', b'"auth-conf"')]
)
def test_another_challenge_is_malformed(challenge):
    with pytest.raises(MalformedFrame):
        DigestLogin("user:password", "n").answer(challenge)


@given(st.binary(max_size=200))
def test_any_bytes_are_answered_or_malformed(data):
    for read in (DigestLogin("user:password", "n").answer, auth_payload):
        try:
            read(data)
        except MalformedFrame:
            pass


@given(st.binary(max_size=200))
def test_the_payload_of_a_frame(payload):
    assert auth_payload(auth_frame(payload)[4:]) == payload
