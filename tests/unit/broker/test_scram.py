"""SCRAM, PLAIN and OAUTHBEARER messages: the exchange of RFC 7677, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING

import pytest

from headrace.broker.security import oauthbearer, plain
from headrace.errors import AuthenticationFailed, CredentialInvalid
from headrace.runtime import scram
from headrace.runtime.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SHA_256,
    ScramClient,
    ScramCredential,
    ScramLogin,
    absent_credential,
    new_credential,
    salt_text,
    salted_password,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = b"s" * 32
Found = tuple[ScramCredential, bool]


def users(mechanism: str, **passwords: str) -> Callable[[str], Found]:
    """The credentials of these users; others do not exist."""
    known = {
        name: new_credential(mechanism, password, salt_text(2**129 + sum(name.encode())))
        for name, password in passwords.items()
    }

    def find(user: str, is_token: bool) -> Found:
        if user in known and not is_token:
            return known[user], True
        return absent_credential(mechanism, SECRET, user), False

    return find


def test_the_exchange_of_rfc_7677_is_reproduced():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = new_credential(SHA_256, "pencil", salt, 4096)
    login = ScramLogin(
        SHA_256, lambda _user, _is_token: (credential, True), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = login.first(client.first())
    assert first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.final(first)
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    answer = login.final(final)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(answer)


class Repeating(ScramClient):
    """Changes the nonce of its final message; the proof is over what it sends."""

    def __init__(self, mechanism: str, changed: Callable[[str], str]) -> None:
        super().__init__(mechanism, "alice", "password", "abc")
        self._changed = changed

    def final(self, answer: bytes) -> bytes:
        salt, iterations = (part[2:] for part in answer.decode().split(",")[1:3])
        salted = salted_password(
            self._mechanism, self._password, base64.b64decode(salt), int(iterations)
        )
        name = HASHES[self._mechanism]
        key = hmac.digest(salted, b"Client Key", name)
        without_proof = f"c=biws,r={self._changed(answer.decode().split(',')[0][2:])}"
        signed = f"{self._first},{answer.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
        return f"{without_proof},p={proof.decode()}".encode()


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_nonce_is_repeated_as_a_whole_or_as_old_librdkafkas_do(mechanism):
    find = users(mechanism, alice="password")

    def log_in(changed: Callable[[str], str]) -> bytes:
        client = Repeating(mechanism, changed)
        login = ScramLogin(mechanism, find, "server")
        return login.final(client.final(login.first(client.first())))

    for good in (lambda nonce: nonce, lambda nonce: "abc" + nonce):
        assert log_in(good).startswith(b"v=")
    for bad in (
        lambda _nonce: "server",
        lambda _nonce: "abc",
        lambda _nonce: "abcanother",
        lambda nonce: "abcabc" + nonce,
        lambda nonce: "abd" + nonce,
        lambda nonce: nonce + "x",
        lambda nonce: nonce * 2,
    ):
        with pytest.raises(AuthenticationFailed, match="nonce"):
            log_in(bad)


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "ä ö", "=2C"])
def test_every_name_and_password_logs_in_and_another_password_does_not(mechanism, name):
    find = users(mechanism, **{name: "pä ss,=word"})
    client = ScramClient(mechanism, name, "pä ss,=word", "abc")
    login = ScramLogin(mechanism, find, "server")
    client.check(login.final(client.final(login.first(client.first()))))
    assert login.user == name
    wrong = ScramClient(mechanism, name, "pä ss,=worD", "abc")
    login = ScramLogin(mechanism, find, "server")
    final = wrong.final(login.first(wrong.first()))
    with pytest.raises(AuthenticationFailed):
        login.final(final)


def test_a_user_that_does_not_exist_answers_as_one_that_does():
    """The same salt each time and on each broker, of the same form, and a failure at the end."""
    find = users(SHA_256, alice="secret")
    answers = []
    for name in ("alice", "bob", "bob", "carol"):
        client = ScramClient(SHA_256, name, "guess", "abc")
        login = ScramLogin(SHA_256, find, "server")
        answers.append(login.first(client.first()))
        with pytest.raises(AuthenticationFailed):
            login.final(client.final(answers[-1]))
    alice, bob, again, carol = answers
    assert bob == again
    assert len({alice, bob, carol}) == 3
    assert len({len(answer) for answer in answers}) == 1
    assert {answer.rpartition(b",i=")[2] for answer in answers} == {b"4096"}


@pytest.mark.parametrize(
    "message",
    [
        b"y,,n=alice,r=abc",  # a client that thinks the server has no channel binding
        b"p=tls-exporter,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",  # as somebody else
        b"n,,n=alice,r=abc,token-auth=true",
        b"n,,n=alice,r=abc,m=x",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=abc",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=alice",
        b"n,,n=alice,r=a\x00c",
        b"n,,n=alice,r=" + b"a" * 2_000,
        b"n,,n=alice,r=" + b"a" * 100_000,
        b"\xff",
        b"",
    ],
)
def test_a_malformed_first_message_is_refused(message):
    with pytest.raises(AuthenticationFailed):
        ScramLogin(SHA_256, users(SHA_256, alice="x"), "server").first(message)


def test_an_authorization_id_that_is_the_users_name_is_accepted():
    login = ScramLogin(SHA_256, users(SHA_256, alice="x"), "server")
    assert login.first(b"n,a=alice,n=alice,r=abc").startswith(b"r=abcserver,")


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),  # y,, : a downgrade
        lambda final: final.replace(b"r=abcserver", b"r=abcother"),
        lambda final: final.replace(b"r=abcserver", b"r=abc"),
        lambda final: final[:-4] + b"AAA=",
        lambda final: final.partition(b",p=")[0] + b",p=",
        lambda final: final.partition(b",p=")[0] + b",p=AAAA",
        lambda final: final.partition(b",p=")[0],
        lambda final: final + b",x",
        lambda _final: b"\xff",
    ],
)
def test_a_final_message_that_was_changed_is_refused(change):
    login = ScramLogin(SHA_256, users(SHA_256, alice="x"), "server")
    client = ScramClient(SHA_256, "alice", "x", "abc")
    final = client.final(login.first(client.first()))
    with pytest.raises(AuthenticationFailed):
        login.final(change(final))


def test_a_recorded_login_cannot_be_played_again():
    find = users(SHA_256, alice="x")
    client = ScramClient(SHA_256, "alice", "x", "abc")
    login = ScramLogin(SHA_256, find, "server")
    final = client.final(login.first(client.first()))
    login.final(final)
    later = ScramLogin(SHA_256, find, "another")
    later.first(client.first())
    with pytest.raises(AuthenticationFailed):
        later.final(final)


@pytest.mark.parametrize("iterations", [0, 1, ITERATIONS_MIN - 1, ITERATIONS_MAX + 1, 10**9])
def test_iterations_are_bounded_in_both_roles(iterations):
    salt = base64.b64encode(b"salt").decode()
    client = ScramClient(SHA_256, "alice", "x", "abc")
    with pytest.raises(AuthenticationFailed):
        client.final(f"r=abcserver,s={salt},i={iterations}".encode())
    with pytest.raises(CredentialInvalid):
        scram.credential_of(SHA_256, b"x" * 32, b"salt", iterations)


def test_a_client_does_not_trust_a_server_that_does_not_know_the_password():
    login = ScramLogin(SHA_256, users(SHA_256, alice="x"), "server")
    client = ScramClient(SHA_256, "alice", "x", "abc")
    login.final(client.final(login.first(client.first())))
    for answer in (b"v=AAAA", b"e=other-error", b"", b"\xff"):
        with pytest.raises(AuthenticationFailed):
            client.check(answer)
    client = ScramClient(SHA_256, "alice", "x", "abc")
    with pytest.raises(AuthenticationFailed):
        client.final(b"r=other,s=AAAA,i=4096")


def test_plain_messages_are_read_strictly():
    assert plain.read_plain(plain.write_plain("alice", "pä ss")) == ("alice", "pä ss")
    assert plain.read_plain(b"alice\0alice\0x") == ("alice", "x")
    for message in (b"", b"\0\0", b"\0alice\0", b"\0\0x", b"bob\0alice\0x", b"\0a\0b\0c", b"\xff"):
        with pytest.raises(AuthenticationFailed):
            plain.read_plain(message)
    with pytest.raises(AuthenticationFailed):
        plain.read_plain(b"\0a\0" + b"x" * 10_000)
    assert "x" not in repr(plain.NamedPassword("alice", "xxx"))


def test_bearer_messages_are_read_strictly():
    read = oauthbearer.read_bearer
    assert read(b"n,,\x01auth=Bearer a.b.c\x01\x01") == ("a.b.c", "")
    message = b"n,a=al=2Cice,\x01host=h\x01auth=bearer a.b.c\x01port=1\x01\x01"
    assert read(message) == ("a.b.c", "al,ice")
    for message in (
        b"",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer " + b"a" * 20_000 + b"\x01\x01",
    ):
        with pytest.raises(AuthenticationFailed):
            read(message)
