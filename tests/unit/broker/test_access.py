"""The errors of missing rights say which, and what an operator runs to give them."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner

from headrace.broker.security.access import unauthorized
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.cli.acl import acl


def step(principal: str, operation: Operation, kind: ResourceType, name: str) -> str:
    session = ClientSession("KAFKA", "10.0.0.7", Principal(principal))
    text = str(unauthorized(session, operation, kind, name))
    return text.partition("(")[2].rpartition(")")[0]


@pytest.mark.parametrize(
    ("kind", "name", "operation"),
    [
        (ResourceType.TOPIC, "orders", Operation.WRITE),
        (ResourceType.GROUP, "my group; rm -rf", Operation.READ),
        (ResourceType.TRANSACTIONAL_ID, "it's", Operation.DESCRIBE),
        (ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALTER_CONFIGS),
    ],
)
def test_the_command_of_the_error_is_one_that_gives_the_right(monkeypatch, kind, name, operation):
    words = shlex.split(step("CN=ops team,O=acme", operation, kind, name))
    assert words[:3] == ["headrace", "acl", "add"]
    given: dict[str, object] = {}
    monkeypatch.setattr(acl.commands["add"], "callback", lambda **said: given.update(said))
    done = CliRunner().invoke(acl, words[2:], standalone_mode=False)
    assert done.exception is None
    assert given["principal"] == "User:CN=ops team,O=acme"
    assert [one.upper() for one in given["operation"]] == [operation.name]
    of = given["cluster"] if kind == ResourceType.CLUSTER else given[kind.name.lower()]
    assert of == (True if kind == ResourceType.CLUSTER else (name,))


def test_names_that_an_operator_writes_in_another_way_are_in_no_command():
    for who, name in (("«acme»ann", "t"), ("ann", "«acme»t"), ("ann", "n" * 300)):
        assert step(who, Operation.READ, ResourceType.TOPIC, name) == "headrace acl add"
    assert step("ann", Operation.CREATE_TOKENS, ResourceType.USER, "User:bob") == "headrace acl add"
