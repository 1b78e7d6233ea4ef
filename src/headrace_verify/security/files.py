"""Files on disk and network exposure: permissions, links, paths, listeners.

Invariants: examines a real broker from outside; starts others to tamper with their folders.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import Fatal
from headrace_verify.real_broker import RealBroker, die_with_us

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

OTHERS = 0o077
_LISTENING = "0A"
_LOOPBACKS = ("0100007F", "00000000000000000000000001000000")
PRECIOUS = b"precious, and somebody else's\n"


def files_are_their_owners_alone(abuse: Abuse) -> None:
    found = [abuse.broker.data_dir, *abuse.broker.data_dir.rglob("*")]
    abuse.expect(len(found) > 3, "there are no files")
    for path in found:
        mode = path.lstat().st_mode
        abuse.expect(not mode & OTHERS, f"{path.name}: mode {mode & 0o777:o}")


def _open_files(abuse: Abuse) -> list[tuple[Path, str]] | None:
    """Yield (what, descriptor) of all open files of the broker; None if not available."""
    abuse.checked += 1
    try:
        paths = list(Path(f"/proc/{abuse.broker.pid}/fd").iterdir())
    except OSError:
        abuse.skipped.append("open files and listeners: not available without /proc")
        return None
    found = []
    for path in paths:
        with contextlib.suppress(OSError):  # closed since
            found.append((path.readlink(), path.name))
    return found


def nothing_is_written_outside_the_data_folder(abuse: Abuse) -> None:
    opened = _open_files(abuse)
    if opened is None:
        return
    for target, number in opened:
        if not target.is_absolute() or target.parts[1] in {"dev", "proc", "sys"}:
            continue
        try:
            info = Path(f"/proc/{abuse.broker.pid}/fdinfo/{number}").read_text()
        except OSError:
            continue  # closed since
        flags = int(next(line for line in info.splitlines() if "flags" in line).split()[1], 8)
        is_ours = target.is_relative_to(abuse.broker.data_dir) or target == abuse.broker.log_path
        abuse.expect(is_ours or not flags & os.O_ACCMODE, f"{target} is open for writing")


def nobody_beyond_this_machine_is_listened_to(abuse: Abuse) -> None:
    opened = _open_files(abuse)
    if opened is None:
        return
    own = {str(target) for target, _number in opened}
    tables = [Path(f"/proc/{abuse.broker.pid}/net/{name}") for name in ("tcp", "tcp6")]
    lines = [
        line.split()
        for table in tables
        if table.exists()
        for line in table.read_text().splitlines()[1:]
    ]
    ours = [line for line in lines if line[3] == _LISTENING and f"socket:[{line[9]}]" in own]
    abuse.expect(len(ours) >= 2, f"{len(ours)} listeners found: two are expected")
    for line in ours:
        address = line[1].partition(":")[0]
        abuse.expect(address in _LOOPBACKS, f"a listener at {line[1]}")


def a_listener_beyond_loopback_wants_to_be_asked_for(abuse: Abuse) -> None:
    every = (
        ["--kafka", "0.0.0.0:0", "--http", "127.0.0.1:0"],
        ["--kafka", "127.0.0.1:0", "--http", "0.0.0.0:0"],
        ["--kafka", "[::]:0", "--http", "127.0.0.1:0"],
        ["--kafka", "127.0.0.1:0", "--http", "0:0"],
        ["--kafka", "0.0.0.0:0", "--http", "127.0.0.1:0", "--workers", "2"],
    )
    for arguments in every if abuse.is_long else every[:2]:
        with tempfile.TemporaryDirectory(prefix="headrace-security-") as folder:
            command = [*abuse.broker.command(), "serve", "--data-dir", f"{folder}/data", *arguments]
            try:
                done = subprocess.run(  # noqa: S603 - our own command
                    command,
                    capture_output=True,
                    timeout=120,
                    check=False,
                    stdin=subprocess.DEVNULL,
                    preexec_fn=die_with_us(),
                )
            except subprocess.TimeoutExpired:
                abuse.expect(False, f"{arguments}: it has started")
            else:
                is_explained = b"--insecure" in done.stderr
                abuse.expect(done.returncode != 0 and is_explained, f"{arguments}: {done.stderr!r}")


def links_in_place_of_files_lead_nowhere(abuse: Abuse) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-security-") as text:
        folder = Path(text)
        broker = RealBroker(folder / "broker")
        broker.start()
        broker.terminate()
        files = sorted(path for path in broker.data_dir.rglob("*") if path.is_file())
        abuse.expect(len(files) > 3, "a broker has left no files")
        tried = files if abuse.is_long else [broker.data_dir / "metadata.sqlite"]
        for path in tried:
            _replace_by_link(abuse, broker, path, folder / "others")


def _replace_by_link(abuse: Abuse, broker: RealBroker, path: Path, target: Path) -> None:
    """Start it with a link in place of its own file: to that file, to another, to none."""
    if not path.exists():
        return  # the broker is finished with it meanwhile
    own = path.read_bytes()
    for content in (own, PRECIOUS, None):
        path.unlink(missing_ok=True)
        if content is not None:
            target.write_bytes(content)
        path.symlink_to(target)
        try:
            broker.start()
        except Fatal:
            pass  # a rejection is correct
        finally:
            broker.kill()
        kept = target.read_bytes() if target.exists() else None
        abuse.expect(kept == content, f"a link at {path.name} is followed: {str(kept)[:100]}")
        target.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(own)
        path.chmod(0o600)
