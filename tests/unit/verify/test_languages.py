"""What a program in another language says becomes the same history as any client's."""

from __future__ import annotations

import base64
import json
import signal
import sys
import textwrap
import threading
import time

import psutil
import pytest
from tests.waiting import wait_until

from headrace_verify.blackbox import crew
from headrace_verify.blackbox.context import Context, Spec
from headrace_verify.blackbox.crew import Client
from headrace_verify.blackbox.languages import go
from headrace_verify.blackbox.languages.child import ChildExited, consume, produce
from headrace_verify.blackbox.languages.transactional_child import Producers
from headrace_verify.blackbox.payload import value_bytes, value_number
from headrace_verify.history import History, read_history

PATIENCE_S = 60
PRELUDE = """
import base64, json, sys
from headrace_verify.blackbox.payload import value_bytes

def say(what, **fields):
    print(json.dumps({"what": what, **fields}), flush=True)

def hear():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return line.split()
"""
PRODUCER = """
count = 0
while True:
    words = hear()
    if words[0] == "flush":
        say("flushed")
        continue
    _, topic, part, value, data = words
    assert base64.b64decode(data) == value_bytes(int(value))
    count += 1
    if count % 4 == 0:
        say("failed", value=int(value), code=10, error="too large")
    elif count % 4 == 1:
        say("failed", value=int(value), code=7, error="in time?")
    else:
        say("stored", value=int(value), offset=count if count % 4 == 2 else -1)
"""
MEMBER = """
def tell(what, member, generation, parts):
    say(what, member=member, generation=generation, parts=parts)
    assert hear() == ["noted"]

for steps in json.loads(sys.argv[-1]):
    words = hear()
    assert words[0] == steps.pop(0), words
    for step in steps:
        tell(**step) if "parts" in step else say(**step)
while True:
    words = hear()
    say({"poll": "polled", "commit": "committed", "close": "closed"}[words[0]],
        member="m", generation=9, records=[])
"""


class Eager:
    """Chance that commits whatever there is."""

    def random(self):
        return 0.0


def program(text, *arguments):
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(text), *arguments]


def a_context(folder, **changes):
    spec = {"name": "one", "kind": "java-producer", "number": 3, "seed": 1, "bootstrap": "",
            "topics": {"alpha": 2}, "rate_per_s": 500, "group": "g"}  # fmt: skip
    spec = Spec(**spec | changes)
    return Context(spec, History(folder / "history.jsonl", spec.name))


def events(folder):
    return list(read_history(folder / "history.jsonl"))


def run_until(context, folder, action, condition):
    """Run a client until its history fulfils a condition; what it raised."""
    raised = []

    def run():
        try:
            action()
        except ChildExited as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while thread.is_alive() and time.monotonic() < deadline and not condition(events(folder)):
        time.sleep(0.02)
    context.over.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    context.history.close()
    return raised


def test_a_send_has_one_end_and_only_what_is_certain_has_failed(tmp_path):
    context = a_context(tmp_path)
    raised = run_until(
        context,
        tmp_path,
        lambda: produce(context, program(PRODUCER)),
        lambda seen: sum(event["k"] != "invoke" for event in seen) > 40,
    )
    assert not raised
    seen = events(tmp_path)
    assert not [event for event in seen if event["f"] == "note"]
    sent = [event for event in seen if event["k"] == "invoke"]
    ended = {event["value"]: event for event in seen if event["k"] != "invoke"}
    assert len(ended) == len(seen) - len(sent) == len(sent) > 40
    for count, event in enumerate(sent, 1):
        assert event["value"] == value_number(3, count)
        end = ended[event["value"]]
        assert (end["topic"], end["part"]) == (event["topic"], event["part"])
        assert end["t"] >= event["t"]
        assert end["k"] == ("fail", "info", "ok", "ok")[count % 4]
        assert end.get("offset") == {2: count, 3: -1}.get(count % 4)


def test_a_producer_whose_program_ends_gives_up(tmp_path):
    context = a_context(tmp_path)
    quitter = "hear(); hear(); sys.exit(3)"
    (error,) = run_until(
        context, tmp_path, lambda: produce(context, program(quitter)), lambda _: False
    )
    assert "exited with code 3" in str(error)


def test_missing_answers_are_reported(tmp_path):
    context = a_context(tmp_path)
    silent = """
    while True:
        if hear()[0] == "flush":
            say("flushed")
    """
    run_until(context, tmp_path, lambda: produce(context, program(silent)), lambda seen: seen)
    assert [event["what"] for event in events(tmp_path) if event["f"] == "note"] == ["gave up"]


def record(part, offset, data):
    return ["alpha", part, offset, None if data is None else base64.b64encode(data).decode()]


def member_history(folder, *script):
    """The history of a member whose program plays a script, as (kind, operation, event)."""
    context = a_context(folder, kind="java-member")
    context.rng = Eager()
    marker = {"what": "polled", "member": "m", "generation": 9, "error": "the end", "records": []}
    command = program(MEMBER, json.dumps([*script, ["poll", marker]]))
    raised = run_until(
        context,
        folder,
        lambda: consume(context, command),
        lambda seen: any(event.get("error") == "the end" for event in seen),
    )
    assert not raised, raised
    seen = events(folder)
    assert seen[-1]["error"] == "the end", "the program has not played its script to the end"
    return [(event["k"], event["f"], event) for event in seen[:-1]]


def now(what, generation, parts=None, records=None, error=None):
    told = {"what": what, "member": "m", "generation": generation}
    told |= {} if parts is None else {"parts": parts}
    told |= {} if error is None else {"error": error}
    return told | ({"records": records or []} if what == "polled" else {})


VALUE = value_number(7, 1)
MINE = record(1, 5, value_bytes(VALUE))


def test_a_member_notes_what_it_got_before_what_it_read_and_commits_that(tmp_path):
    others = record(0, 8, value_bytes(VALUE))
    seen = member_history(
        tmp_path,
        ["poll", now("assigned", 4, [["alpha", 1]]), now("polled", 4, None, [MINE, others])],
        ["commit", now("committed", 4)],
        ["poll", now("polled", 4, None, [record(1, 6, b"noise"), record(1, 7, None)])],
        ["commit", now("committed", 4)],
    )
    assert [(kind, name) for kind, name, _ in seen] == [
        ("ok", "assign"), ("ok", "poll"), ("invoke", "commit"), ("ok", "commit"),
        ("ok", "poll"), ("invoke", "commit"), ("ok", "commit"),
    ]  # fmt: skip
    got, read, committed = (event for _, _, event in seen[:3])
    assert (got["member"], got["gen"], got["parts"]) == ("m", 4, [["alpha", 1]])
    assert read["recs"] == [[1, 5, VALUE], [0, 8, VALUE]]
    assert read["since"] <= got["t"] <= read["t"]
    assert (committed["member"], committed["gen"]) == ("m", 4)
    assert committed["offs"] == [["alpha", 1, 6]], "what is not its own is not committed"
    assert seen[4][2]["recs"] == [[1, 6, 0], [1, 7, 0]]


def test_a_commit_in_doubt_is_info_and_is_made_again(tmp_path):
    seen = member_history(
        tmp_path,
        ["poll", now("assigned", 4, [["alpha", 1]]), now("polled", 4, None, [MINE])],
        ["commit", now("committed", 4, error="not now")],
        ["poll", now("polled", 4)],
        ["commit", now("committed", 5)],  # it may have been sent with either generation
    )
    ends = [event for kind, name, event in seen if name == "commit" and kind != "invoke"]
    assert [end["k"] for end in ends] == ["info", "info"]
    assert ends[0]["error"] == "not now"
    asked = [event for kind, _, event in seen if kind == "invoke"]
    assert [event["offs"] for event in asked] == [[["alpha", 1, 6]]] * 2


def test_partitions_that_go_are_committed_no_more(tmp_path):
    seen = member_history(
        tmp_path,
        ["poll", now("assigned", 4, [["alpha", 0], ["alpha", 1]]),
         now("polled", 4, None, [MINE, record(0, 2, value_bytes(VALUE))])],
        ["commit", now("revoked", 4, [["alpha", 1]]), now("committed", 4)],
        ["poll", now("lost", -1, [["alpha", 0]]), now("polled", -1, None, [MINE])],
        ["poll", now("polled", -1)],
    )  # fmt: skip
    ends = [event for kind, name, event in seen if name == "commit" and kind != "invoke"]
    assert [end["k"] for end in ends] == ["info"], "a partition went while it was under way"
    gone = [event for _, name, event in seen if name == "revoke"]
    assert [event["parts"] for event in gone] == [[["alpha", 1]], [["alpha", 0]]]
    assert [event.get("lost") for event in gone] == [None, True]


@pytest.mark.skipif(sys.platform == "win32", reason="no groups of processes")
def test_a_program_stands_still_and_dies_with_its_worker(tmp_path):
    command = program("while True:\n    hear()")
    spec = Spec("one", "java-producer", 1, 1, "", {"alpha": 1}, 0, None, {"command": command})
    client = Client(spec, tmp_path)
    try:
        worker = psutil.Process(client.process.pid)
        wait_until(lambda: [one.cmdline()[:3] for one in worker.children()] == [command])
        (child,) = worker.children()
        client.signal(signal.SIGSTOP)
        wait_until(lambda: {one.status() for one in (worker, child)} == {psutil.STATUS_STOPPED})
        client.signal(signal.SIGCONT)
        wait_until(lambda: child.status() != psutil.STATUS_STOPPED)
    finally:
        client.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_language_that_is_not_there_is_left_out_and_named_and_quick_runs_do_not_ask(
    tmp_path, monkeypatch
):
    asked = []

    def find(language):
        asked.append(language)
        return f"no {language} here"

    monkeypatch.setattr(crew, "find_program", find)
    crew.Crew(1, "", tmp_path, is_quick=True)
    assert not asked
    skipped = crew.Crew(1, "", tmp_path, is_quick=False).skipped
    roles = {role.name: role.language for role in crew.ROLES if role.language is not None}
    assert set(roles.values()) == {"java", "go"}
    assert {name: skipped.get(name) for name in roles} == {
        name: f"no {language} here" for name, language in roles.items()
    }


def test_without_a_go_compiler_the_error_names_the_next_step(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(go.GoMissing, match="install one"):
        go.find_command()


def test_a_send_that_fails_twice_ends_once_and_its_producer_goes_on():
    """Java's producer calls the callback and raises as well, if it is in an error state."""
    program = """
while True:
    words = hear()
    if words[0] == "send":
        for _ in range(2):
            say("failed", value=int(words[-2]), code=-1, error="in an error state")
    else:
        say("done")
"""
    with Producers([sys.executable, "-c", PRELUDE + program]) as producers:
        instance = producers.instance(5.0)
        errors = []
        for number in (1, 2):
            instance.send("t", 0, value_bytes(number), lambda error: errors.append(error))
        instance.flush()
        assert errors == ["in an error state"] * 2
