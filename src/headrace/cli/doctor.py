"""`headrace doctor`: a bundle of facts for a bug report, without secrets and without records.

Invariants: reads only. A part that cannot be had does not stop the others: the bundle says why it
is missing. Every text passes `without_secrets`; settings that brokers call sensitive have no value.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
import time
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from headrace.cli.config_requests import BROKER, Resource, broker_addresses, describe
from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.group_listing import list_groups
from headrace.cli.info import gather
from headrace.cli.output import AS_JSON, print_json, print_table, tell
from headrace.cli.secrets_out import without_secrets
from headrace.cli.variables import PREFIX
from headrace.cli.web import HTTP, Web
from headrace.runtime import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.cli.session import CliSession

LOG_BYTES_MAX: Final = 1 << 20
"""Of the end of each log file."""
FILES_MAX: Final = 10_000
"""Of a data directory that are listed."""
PAGES: Final = ("healthz", "readyz", "metrics", "v1/cluster")


class Part(NamedTuple):
    """One file of the bundle."""

    name: str
    make: Callable[[], Any]
    """Its text, or what is written as JSON."""


@click.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Default: headrace-doctor-TIME.tar.gz in this directory.",
)
@click.option(
    "--log",
    "logs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help=f"A broker's log file; its last {LOG_BYTES_MAX >> 20} MiB is included. Repeatable.",
)
@click.option(
    "--config-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The configuration file of a broker.",
)
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A broker's data directory: names and sizes of its files are included.",
)
@HTTP
@AS_JSON
@click.pass_obj
def doctor(session: CliSession, /, output: Path | None, as_json: bool, **options: Any) -> None:
    """Collect facts for a bug report in one file, without secrets and without records.

    Topic, group and host names are included. Look through the file before you send it.

    \b
    Examples:
      headrace doctor
      headrace doctor --log /var/log/headrace.log --config-file /etc/headrace.toml
    """
    moment = datetime.now(UTC)
    path = output or Path(f"headrace-doctor-{moment:%Y%m%dT%H%M%SZ}.tar.gz")
    found = [(part.name, *_text_of(part)) for part in _parts(session, options)]
    try:
        _write(path, found, moment.timestamp())
    except OSError as error:
        raise CommandFailed(
            f"cannot write {path}: {error.strerror}", "Specify another file with --output", FAILED
        ) from None
    rows: list[dict[str, Any]] = [
        {"file": name, "bytes": len(text.encode()), "problem": problem}
        for name, text, problem in found
    ]
    if as_json:
        print_json({"bundle": str(path.absolute()), "files": rows})
        return
    print_table(["file", "bytes", "problem"], [[*row.values()] for row in rows])
    tell(f"wrote {path}: look through it before you send it")


def _parts(session: CliSession, options: dict[str, Any]) -> Iterator[Part]:
    yield Part("about.json", _about)
    yield Part("environment.txt", _environment)
    yield Part("cluster.json", lambda: gather(session))
    yield Part("topics.json", lambda: _topics(session))
    yield Part("groups.json", lambda: [one._asdict() for one in list_groups(session)])
    yield Part("settings.json", lambda: _settings(session))
    for page in PAGES:
        name = f"http/{page.replace('/', '-')}.txt"
        yield Part(name, partial(_page, session, page))
    for number, log in enumerate(options["logs"]):
        yield Part(f"logs/{number}-{log.name}.txt", partial(_end_of, log))
    if (config := options["config_file"]) is not None:
        yield Part("config.toml", lambda: config.read_text(errors="replace"))
    if (folder := options["data_dir"]) is not None:
        yield Part("files.txt", lambda: _files(folder))


def _text_of(part: Part) -> tuple[str, str]:
    """The text without secrets, and why it is missing."""
    try:
        found = part.make()
    except CommandFailed as failure:
        return "", without_secrets(failure.format_message())
    except (OSError, ValueError) as error:
        return "", without_secrets(str(error))
    text = found if isinstance(found, str) else json.dumps(found, indent=2, default=str) + "\n"
    return without_secrets(text), ""


def _write(path: Path, found: list[tuple[str, str, str]], moment_s: float) -> None:
    """Raises OSError."""
    name = path.name.removesuffix(".tar.gz")
    with (
        open(path, "xb", opener=partial(os.open, mode=0o600)) as stream,
        tarfile.open(fileobj=stream, mode="w:gz") as bundle,
    ):
        for file, text, problem in found:
            data = (f"(missing: {problem})\n" if problem else text).encode()
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size, entry.mtime, entry.mode = len(data), int(moment_s), 0o600
            bundle.addfile(entry, io.BytesIO(data))


def _about() -> dict[str, Any]:
    packages = {one.metadata["Name"]: one.version for one in distributions()}
    return {
        "time": datetime.now(UTC).isoformat(),
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "compiled_core": compiled.is_fresh(compiled.folder()),
        "packages": dict(sorted(packages.items())),
    }


def _environment() -> str:
    ours = sorted(name for name in os.environ if name.startswith(PREFIX))
    return "".join(f"{name}={os.environ[name]}\n" for name in ours)


def _topics(session: CliSession) -> list[dict[str, Any]]:
    topics = session.cluster_metadata().topics
    return [
        {
            "topic": name,
            "partitions": [
                {"partition": p.id, "leader": p.leader, "replicas": p.replicas, "isrs": p.isrs}
                for p in topics[name].partitions.values()
            ],
        }
        for name in sorted(topics)
    ]


def _settings(session: CliSession) -> dict[str, Any]:
    """Of each broker, those that are not defaults."""
    found: dict[str, Any] = {}
    for number in broker_addresses(session):
        try:
            settings = describe(session, Resource(BROKER, str(number)))
        except CommandFailed as failure:
            found[str(number)] = {"missing": failure.format_message()}
            continue
        found[str(number)] = {
            one.name: {"value": None if one.is_sensitive else one.value, "source": one.source}
            for one in settings
            if one.source != "default"
        }
    return found


def _page(session: CliSession, page: str) -> str:
    """Raises CommandFailed."""
    status, text = Web(session).fetch("GET", f"/{page}")
    return f"status {status}\n{text.decode(errors='replace')}"


def _end_of(log: Path) -> str:
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - LOG_BYTES_MAX, 0))
        return stream.read().decode(errors="replace")


def _files(folder: Path) -> str:
    lines: list[str] = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            if len(lines) == FILES_MAX:
                return "".join([*lines, "and more\n"])
            path = Path(place, file)
            facts = path.stat(follow_symlinks=False)
            changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(facts.st_mtime))
            lines.append(f"{facts.st_size:>16,}  {changed}  {path.relative_to(folder)}\n")
    return "".join(lines)
