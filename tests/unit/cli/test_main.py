"""The command line's manners: help, exit codes, words instead of tracebacks, a quick start."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from headrace.cli import failures, main
from headrace.cli.output import (
    cell_text,
    counted,
    duration_text,
    iso_time,
    print_table,
    say,
    size_text,
)
from headrace.cli.session import CliSession, host_and_port
from headrace.errors import HeadraceError
from headrace.runtime.access import Right


def run(*arguments: str, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main.main(list(arguments))
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def every_command(command, path=()):
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            yield from every_command(command.get_command(ctx, name), (*path, name))


COMMANDS = list(every_command(main.cli))


@pytest.mark.parametrize("misspelt", ["consum", "topic creat", "--bootstap"])
def test_a_misspelt_word_is_answered_by_the_right_one(misspelt, capsys):
    code, _, err = run(*misspelt.split(), capsys=capsys)
    assert code == 2
    assert "Did you mean" in err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("topic rm", "delete"),
        ("topic remove", "delete"),
        ("context rm", "remove"),
        ("user create", "add"),
        ("context show", "list"),
        ("group ls", "list"),
        ("search", "find"),
        ("pipeline archive", "run archive"),
        ("replay", "pipeline replay"),
    ],
)
def test_a_command_named_as_in_other_tools_is_answered_by_ours(typed, meant, capsys):
    code, _, err = run(*typed.split(), capsys=capsys)
    assert code == 2
    assert f"Did you mean {meant!r}?" in err


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_every_command_has_help(path, capsys):
    code, out, err = run(*path, "--help", capsys=capsys)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: headrace")
    assert "\\b" not in out


@pytest.mark.parametrize(
    "option",
    [(path, p) for path, c in COMMANDS for p in c.params if isinstance(p, click.Option)],
    ids=lambda option: " ".join((*option[0], option[1].opts[0])),
)
def test_every_long_option_is_spelled_once(option):
    _, parameter = option
    assert any(name.startswith("--") or name == "-X" for name in parameter.opts)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-b", "127.0.0.1:1", "topic", "list"),
        ("topic", "list", "-b", "127.0.0.1:1"),
        ("topic", "list", "--bootstrap", "127.0.0.1:1"),
        ("--bootstrap", "127.0.0.1:2", "group", "describe", "g", "--bootstrap", "127.0.0.1:1"),
        ("info", "--bootstrap", "127.0.0.1:1", "--timeout", "1"),
        ("consume", "t", "-b", "127.0.0.1:1", "-X", "client.id=me"),
    ],
    ids=" ".join,
)
def test_the_cluster_may_be_named_before_a_command_or_after_it(arguments, capsys):
    code, _, err = run(*arguments, capsys=capsys)
    assert code == failures.UNREACHABLE
    assert "cannot connect to 127.0.0.1:1 " in err


def test_options_after_a_command_win_over_options_before_it(monkeypatch):
    seen = []
    monkeypatch.setattr(
        CliSession, "cluster_metadata", lambda self: seen.append(self) or sys.exit(0)
    )
    behind = ("topic", "list", "--timeout", "2", "-X", "client.id=b", "-X", "log_level=1")
    with pytest.raises(SystemExit):
        main.main(["--timeout", "9", "-X", "client.id=a", "-X", "acks=1", *behind])
    (session,) = seen
    assert session.timeout_s == 2
    assert session.client_config == {"client.id": "b", "acks": "1", "log_level": "1"}


@pytest.mark.parametrize("group", ["pipeline", "group", "cluster", "verify"])
def test_no_summary_of_a_command_is_cut(group, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(group, "--help", capsys=capsys)
    listed = out.partition("Commands:")[2].splitlines()
    assert len(listed) > 5
    assert not [line for line in listed if line.endswith("...") or len(line) > 80]


def test_the_help_documents_the_exit_codes(capsys):
    _, out, _ = run("--help", capsys=capsys)
    codes = (
        failures.OK, failures.FAILED, failures.USAGE, failures.NOT_FOUND, failures.UNREACHABLE,
        failures.CONFLICT, failures.UNKNOWN, failures.INTERRUPTED,
    )  # fmt: skip
    documented = [line.split()[0] for line in out.partition("Exit codes:")[2].splitlines()[1:]]
    assert documented == [str(code) for code in codes]


@pytest.mark.parametrize(
    "arguments",
    [
        ("nosuch",),
        ("topic", "nosuch"),
        ("topic", "create"),
        ("topic", "create", "t", "--set", "noequals"),
        ("topic", "alter", "t"),
        ("consume", "t", "--from", "soon"),
        ("consume", "t", "-T", "no field"),
        ("consume", "t", "--format", "template"),
        ("produce", "t", "--acks", "2"),
        ("group", "reset", "g"),
        ("group", "reset", "g", "--to", "latest", "--shift-by", "1"),
        ("-X", "noequals", "info"),
        ("-b", "host:port", "info"),
        ("-b", "http://127.0.0.1:9092", "info"),
        ("completion", "tcsh"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(arguments, capsys):
    code, out, err = run(*arguments, capsys=capsys)
    assert (code, out) == (failures.USAGE, "")
    assert "Traceback" not in err
    assert err


def test_an_address_without_a_listener_is_reported_with_the_next_step(capsys):
    code, out, err = run("-b", "127.0.0.1:1", "topic", "list", capsys=capsys)
    assert (code, out) == (failures.UNREACHABLE, "")
    assert "cannot connect to 127.0.0.1:1 (Connection refused): nothing was sent" in err
    assert "headrace serve" in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kafka.example:19092", ("kafka.example", 19092)),
        ("kafka.example", ("kafka.example", 9092)),
        ("[::1]:1", ("::1", 1)),
        ("[::1]", ("::1", 9092)),
    ],
)
def test_the_port_of_a_broker_may_be_left_out(text, expected):
    assert host_and_port(text) == expected


@pytest.mark.parametrize("text", ["", ":9092", "a b:1", "::1", "h:", "SSL://h:9092", "h:1/x"])
def test_what_is_not_an_address_is_answered_by_examples(text):
    with pytest.raises(failures.CommandFailed, match="is not HOST:PORT") as refused:
        host_and_port(text)
    assert refused.value.exit_code == failures.USAGE
    assert "127.0.0.1:9092" in refused.value.next_step


def test_a_misspelt_topic_or_group_is_answered_by_the_right_one():
    assert "did you mean 'orders'?" in failures.no_topic("order", ["nums", "orders"]).message
    assert "did you mean 'billing'?" in failures.no_group("biling", ["billing"]).message
    assert "did you mean" not in failures.no_topic("order", ["nums"]).message


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("acl add --operation read --topic t", "--principal"),
        ("acl list", "--principal"),
        ("acl remove", "--principal"),
        ("acl explain --operation read --topic t", "--principal"),
        ("connections", "--principal"),
        ("tenant create acme", "--principal"),
        ("tenant set acme", "--add"),
        ("tenant set acme", "--move"),
        ("tenant set acme", "--remove"),
    ],
)
def test_a_principal_without_a_type_is_answered_by_one_that_has_it(command, option, capsys):
    for given in ("bob", ":bob", "User:"):
        code, _, err = run(*command.split(), option, given, capsys=capsys)
        assert code == failures.USAGE
        assert f"{given!r} has no type" in err
        assert f"{option} User:" in err


def test_a_fault_of_ours_is_no_traceback(monkeypatch, capsys):
    def broken(*_args, **_options):
        raise RuntimeError("a fault")

    monkeypatch.setattr(main.cli, "main", broken)
    code, out, err = run("info", capsys=capsys)
    assert (code, out) == (failures.FAILED, "")
    assert "internal error, RuntimeError: a fault" in err
    assert "Traceback" not in err


def error_of(name, text):
    class Error:
        def name(self):
            return name

        def str(self):
            return text

    return Error()


def failure_of(name, text, doing):
    return failures.from_kafka(error_of(name, text), doing)


def test_errors_of_the_kafka_client_become_plain_messages():
    failure = failure_of("NON_EMPTY_GROUP", "Broker: The group is not empty", "delete group 'g'")
    assert failure.exit_code == failures.CONFLICT
    assert failure.message == "delete group 'g': the group still has members"


RIGHTS = (Right("read", "topic", "orders"), Right("read", "group", "billing"))


@pytest.mark.parametrize(
    ("kind", "rights", "step"),
    [
        ("TOPIC", RIGHTS, "acl add --principal User:NAME --operation read --topic orders"),
        ("GROUP", RIGHTS, "acl add --principal User:NAME --operation read --group billing"),
        ("CLUSTER", [Right("alter", "cluster")], "--operation alter --cluster"),
        # Who may write to no topic at all gets no producer id.
        ("CLUSTER", RIGHTS, "--operation read --topic orders"),
        ("TRANSACTIONAL_ID", [Right("write", "transactional-id", "a b")], "-id 'a b'"),
        ("TRANSACTIONAL_ID", RIGHTS, "the broker's log"),
    ],
)
def test_a_missing_right_is_reported_with_the_way_to_get_it(kind, rights, step):
    error = error_of(f"{kind}_AUTHORIZATION_FAILED", "Broker: denied")
    failure = CliSession("127.0.0.1:1").failure(error, "read", *rights)
    assert "no right" in failure.message
    assert step in failure.next_step
    assert "OPERATION" not in failure.next_step


def test_what_an_error_quotes_does_not_reach_the_terminal_as_control_characters(
    monkeypatch, capsys
):
    """A record could otherwise move the cursor, or set the title."""
    value = "\x1b]0;title\x07\r\x9b1m"
    for error in (failures.CommandFailed(value, value), HeadraceError(value)):

        def broken(*_args, error=error, **_options):
            raise error

        monkeypatch.setattr(main.cli, "main", broken)
        code, out, err = run("info", capsys=capsys)
        assert (code, out) == (failures.FAILED, "")
        assert "\\x1b]0;title\\x07\\x0d\\x9b1m" in err
        assert not {*err} & {*value} - {*"]0;title1m"}
    say(value)
    assert capsys.readouterr().err == "\\x1b]0;title\\x07\\x0d\\x9b1m\n"


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"]], ids=" ".join)
def test_a_start_imports_nothing_heavy(arguments):
    program = (
        f"import sys; sys.argv = ['headrace', *{arguments!r}]\n"
        "import headrace.cli.main as m\n"
        "try: m.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'confluent_kafka', 'rich', 'pandas', 'pyspark', 'pyarrow', 'numpy'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(shell, capsys):
    code, out, _ = run("completion", shell, capsys=capsys)
    assert code == 0
    assert "_HEADRACE_COMPLETE" in out


def test_tables_in_a_pipe_are_plain_columns(capsys):
    print_table(["name", "count"], [["a", 1], ["long name", 1234567], ["none", None]])
    assert capsys.readouterr().out.splitlines() == [
        "NAME           COUNT",
        "a                  1",
        "long name  1,234,567",
        "none               -",
    ]


def test_an_empty_list_says_what_is_empty_and_leaves_the_output_empty(capsys):
    print_table(["name"], [], empty="no topics: headrace topic create NAME makes one")
    shown = capsys.readouterr()
    assert not shown.out
    assert "headrace topic create" in shown.err


def test_figures_in_words():
    assert [cell_text(c) for c in (1234, 0.5, None, True)] == ["1,234", "0.500", "-", "yes"]
    assert [size_text(s) for s in (5, 2048, 3 << 30)] == ["5 B", "2.0 KiB", "3.0 GiB"]
    assert [duration_text(s) for s in (1, 600, 7200 * 4, 864_000)] == [
        "1.0 s",
        "10.0 min",
        "8.0 h",
        "10.0 days",
    ]
    assert [counted(n, "record") for n in (0, 1, 2000)] == [
        "0 records",
        "1 record",
        "2,000 records",
    ]
    assert iso_time(1_359_633_600_000) == "2013-01-31T12:00:00.000Z"
    assert iso_time(-(2**63)) == str(-(2**63))
