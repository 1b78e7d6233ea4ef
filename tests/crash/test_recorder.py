"""The recorder of real processes: what it says adds up to the files, and it says what it cannot."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace_verify import native
from headrace_verify.crash.exploration import NEW_DISK
from headrace_verify.crash.recorder import RecordReader, RecordUnsound, compile_recorder, recording

EVERYTHING = """
import ctypes, os, sqlite3, sys
root = sys.argv[1]
os.mkdir(root + "/data")
fd = os.open(root + "/data/a", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"hello", 3)
os.pwritev(fd, [b"one", b"two"], 10)
ctypes.CDLL(None).headrace_record_note(b'["acknowledged", 7]', 19)
os.fdatasync(fd)
os.ftruncate(fd, 12)
os.posix_fallocate(fd, 0, 100)
os.lseek(fd, 50, 0)
os.write(fd, b"in the middle")
os.close(fd)
folder = os.open(root + "/data", os.O_RDONLY | os.O_DIRECTORY)
os.fsync(folder)
os.close(folder)
os.rename(root + "/data/a", root + "/data/b")
with open(root + "/data/c", "ab") as file:
    file.write(b"appended")
with open(root + "/data/c", "ab") as file:
    file.write(b" twice")
with open(root + "/data/b", "wb") as file:
    file.write(b"anew")
os.unlink(root + "/data/c")
db = sqlite3.connect(root + "/data/d.sqlite", isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("CREATE TABLE t (x)")
for number in range(50):
    db.execute("INSERT INTO t VALUES (?)", (str(number) * 99,))
db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
db.execute("INSERT INTO t VALUES ('last')")
os._exit(0)
"""


@pytest.fixture(scope="module")
def shared_object(tmp_path_factory):
    built = compile_recorder(tmp_path_factory.mktemp("recorder"))
    if isinstance(built, str):
        pytest.skip(built)
    return built


def record(shared_object, place, program):
    root = place / "root"
    root.mkdir()
    command = [sys.executable, "-c", program, str(root)]
    environment = recording(shared_object, root, place / "record")
    subprocess.run(command, env=environment, check=True, timeout=90)
    return RecordReader(root, NEW_DISK), (place / "record").read_bytes()


def test_recorded_operations_add_up_to_the_files_including_those_of_sqlite(shared_object, tmp_path):
    reader, data = record(shared_object, tmp_path, EVERYTHING)
    operations = reader.read(data)
    assert reader.differences() == []
    assert {operation[0] for operation in operations} >= {
        *("folder", "link", "write", "truncate", "rename", "unlink", "acknowledged"),
        *("sync_start", "sync_end", "sync_folder_start", "sync_folder_end"),
    }
    assert set(reader.names["data"]) == {"b", "d.sqlite", "d.sqlite-wal", "d.sqlite-shm"}
    write, note, sync = (
        next(at for at, operation in enumerate(operations) if operation[0] == kind)
        for kind in ("write", "acknowledged", "sync_start")
    )
    assert write < note < sync, "notes stand where they were made"


def test_a_change_that_went_past_the_recorder_is_noticed(shared_object, tmp_path):
    reader, data = record(shared_object, tmp_path, EVERYTHING)
    reader.read(data)
    (tmp_path / "root" / "data" / "b").write_bytes(b"behind its back")
    assert reader.differences() == ["data/b"]


@pytest.mark.parametrize(
    "call",
    [
        "os.link(root + '/a', root + '/b')",
        "os.truncate(root + '/a', 1)",
        "os.dup(os.open(root + '/a', os.O_RDWR))",
        "mmap.mmap(os.open(root + '/a', os.O_RDWR), 4)",
    ],
)
def test_operations_that_cannot_be_recorded_are_refused(shared_object, tmp_path, call):
    program = (
        f"import mmap, os, sys; root = sys.argv[1]; open(root + '/a', 'w').write('text'); {call}"
    )
    reader, data = record(shared_object, tmp_path, program)
    with pytest.raises(RecordUnsound):
        reader.read(data)


def test_without_a_compiler_the_attack_is_skipped_and_says_so(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda _name: None)
    result = CliRunner().invoke(
        cli, ["verify", "crash", "--only", "power-files", "--runs", "1", "--json"]
    )
    report = json.loads(result.stdout)
    (attack,) = report["attacks"]
    assert attack["verdict"] == "SKIPPED"
    assert "no C compiler" in attack["skipped"][0]
    assert (report["verdict"], result.exit_code) == ("INCONCLUSIVE", 6), "nothing was checked"
