"""Whatever a page can ask of a broker has a command line, which `headrace` takes."""

from __future__ import annotations

from urllib.parse import quote

from tests.documents.commands import parse, words
from tests.unit.http.http_rig import on_the_web

from headrace.http.access import ACCESS
from headrace.http.keys import KeyOperations

OF_SESSIONS = {"getSession", "signIn", "signOut"}
"""Who is signed in at this browser: nothing that a page shows of a cluster."""
GIVEN = {
    "topic": "acme/orders", "group": "a group", "partition": "0", "offset": "7",
    "task": "0123456789abcdef0123456789abcdef", "tenant": "acme",
    "broker": "2",
}  # fmt: skip


def test_every_read_of_the_api_has_a_command_that_the_command_line_takes(run_script):
    script = """
      const { commandOf } = await import("./elsewhere.js");
      console.log(JSON.stringify(given0.map((path) => commandOf(path, { limit: 5 }) ?? null)));
    """
    found = []

    @on_the_web
    async def look(web):
        found.extend([*web.operations, *KeyOperations(web.node.services).operations])

    look()
    assert {one.name for one in found} == ACCESS.keys() - OF_SESSIONS
    wanted = [one for one in found if one.method == "GET"]
    paths = [one.path.format_map({name: quote(text, safe="") for name, text in GIVEN.items()})
             for one in wanted]  # fmt: skip
    commands = run_script(script, paths)
    lacking = [one.name for one, command in zip(wanted, commands, strict=True) if command is None]
    assert lacking == []
    for command in commands:
        parse(words(command)[1:])
