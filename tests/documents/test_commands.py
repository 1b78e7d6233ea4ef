"""What the documents say to type can be typed; what they import is there."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
import pytest
from tests.documents.commands import (
    PROGRAM,
    ROOT,
    Code,
    Command,
    codes,
    commands,
    helped,
    parse,
    words,
)

from headrace.cli.cluster_options import CLUSTER_NAMES
from headrace.cli.config_file import read_file
from headrace.cli.serve import serve

if TYPE_CHECKING:
    from pathlib import Path

MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALL = sorted({*commands(), *helped()})


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that read files find them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records.jsonl").touch()


def test_there_are_commands_to_look_at() -> None:
    assert len(ALL) > 100
    assert len(list(codes())) > 5


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_command_can_be_typed(command: Command) -> None:
    program, *arguments = words(command.text)
    if PROGRAM.search(program):
        _check_headrace(command, arguments)
    elif program == "make":
        _check_make(command, arguments)
    elif program == "pip":
        for name in re.findall(r"headrace\[([\w,]+)\]", command.text):
            assert set(name.split(",")) <= set(PROJECT["optional-dependencies"])
    else:
        assert arguments[:2] == ["-m", "headrace"]


def _check_headrace(command: Command, arguments: list[str]) -> None:
    try:
        parse(arguments)
    except click.exceptions.Exit:  # --help
        return
    except (click.exceptions.NoArgsIsHelpError, click.MissingParameter) as error:
        if not command.is_sentence:
            pytest.fail(f"a reader would have to guess the rest: {error}")
    except click.BadParameter as error:
        # A file of the reader's own, or a word in capitals that stands for one.
        if "does not exist" not in error.message and not re.search(r"\b[A-Z]+\b", command.text):
            pytest.fail(error.message)


def _check_make(command: Command, arguments: list[str]) -> None:
    for argument in arguments:
        name, is_variable, value = argument.partition("=")
        if not is_variable:
            assert re.search(rf"^{re.escape(name)}:", MAKEFILE, re.MULTILINE), name
            continue
        assert f"$({name})" in MAKEFILE or name == "PYTHON"
        program = ROOT / "benchmarks" / f"{value.partition(' ')[0]}.py"
        if name == "BENCH" and program.is_file():
            options = [word for word in words(value) if word.startswith("--")]
            assert all(f'"{option}"' in program.read_text() for option in options), value
        elif name in {"BENCH", "VERIFY", "DEMO"}:
            below = {"BENCH": ["bench"], "VERIFY": ["verify", "crash"], "DEMO": ["demo"]}[name]
            _check_headrace(command, [*below, *words(value)])


@pytest.mark.parametrize("code", list(codes()), ids=str)
def test_code_compiles_and_imports_what_there_is(code: Code) -> None:
    for node in ast.walk(ast.parse(code.text)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            module = importlib.import_module(node.module)
            for name in node.names:
                is_there = hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}")
                assert is_there, f"{node.module} has no {name.name}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                importlib.import_module(name.name)


def test_the_examples_of_a_configuration_file_can_be_used(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "CONFIGURATION.md").read_text()
    path = tmp_path / "example.toml"
    found = []
    for example in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        path.write_text(example)
        found.append(read_file(path, click.Context(serve), "serve", CLUSTER_NAMES))
    alone, clustered = found
    assert alone["partitions"] == 6
    assert "zookeeper" not in alone, "the first one works as it is copied, with no other server"
    assert clustered["quorum"] == "3,3,2"
