"""`headrace verify upgrade`: golden sets, older commits, and its self-proof."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace.errors import RequestInvalid
from headrace_verify.upgrade import archive, older
from headrace_verify.upgrade.beside import check_beside
from headrace_verify.upgrade.bugs import BUGS, find
from headrace_verify.upgrade.run import Plan, run_upgrade

ROOT = Path(__file__).resolve().parents[2]


def test_data_written_by_every_version_opens_and_is_correct(tmp_path):
    arguments = ["verify", "upgrade", "--quick", "--json", "--report", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["violations"] == []
    assert sum(one["checked"] for one in report["checks"]) > 150
    assert result.exit_code == 0


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.name} ({bug.found_by[0]})")
def test_every_planted_bug_is_found(bug):
    assert find(bug), f"nobody noticed: {bug.name}"


def checked(commit):
    outcome = run_upgrade(Plan((commit,), what=()), lambda _fraction, _name: None)
    return outcome.violations, outcome.findings[-1]


@pytest.mark.long
def test_a_folder_that_an_older_commit_has_written_opens_and_is_right():
    found = older.commits(2)
    if not found:
        pytest.skip("there is no git here, or no history")
    violations, last = checked(found[-1])
    assert violations == []
    assert last.checked > 10


@pytest.mark.long
def test_folders_of_many_older_commits_open_and_are_right():
    found = older.commits(12)
    if not found:
        pytest.skip("there is no git here, or no history")
    results = [checked(commit) for commit in found]
    assert [what for violations, _ in results for what in violations] == []
    assert sum(not last.skipped for _, last in results) > len(results) / 2


@pytest.mark.long
def test_brokers_of_two_versions_run_beside_each_other(tmp_path):
    found = check_beside(tmp_path)
    if found.skipped:
        pytest.skip(str(found.skipped))
    assert found.wrong == []
    assert found.checked > 30


def test_the_set_of_a_released_version_is_never_written_again(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"1")
    path = archive.pack(tmp_path / "source", "9.9.9", tmp_path, {})
    released = {"9.9.9": archive.digest(path)}
    before = path.read_bytes()
    assert archive.changed_or_missing(tmp_path, released) == []
    with pytest.raises(RequestInvalid, match=r"9\.9\.9 is released"):
        archive.pack(tmp_path / "source", "9.9.9", tmp_path, released)
    assert path.read_bytes() == before
    path.write_bytes(before + b"\0")
    assert archive.changed_or_missing(tmp_path, released) == [
        "the golden set of the released version 9.9.9 was changed"
    ]
    path.unlink()
    assert archive.changed_or_missing(tmp_path, released) == [
        "the golden set of the released version 9.9.9 is missing"
    ]


def test_same_files_give_the_same_archive(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name / "in").mkdir(parents=True)
        (tmp_path / name / "in" / "file").write_bytes(b"bytes")
    paths = [archive.pack(tmp_path / name, name, tmp_path) for name in ("one", "other")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    archive.unpack(paths[0], tmp_path / "back")
    assert (tmp_path / "back" / "in" / "file").read_bytes() == b"bytes"


def test_a_version_without_a_set_fails_the_run(tmp_path):
    outcome = run_upgrade(Plan(golden=tmp_path), lambda _fraction, _name: None)
    assert outcome.is_violated
    assert any("--write-golden" in one for one in outcome.violations)


def test_every_released_version_is_listed_with_its_digest():
    versions = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions
    released = set(versions) - {"Unreleased"}
    assert released == set(archive.RELEASED)
    assert set(archive.RELEASED) <= set(archive.names())
