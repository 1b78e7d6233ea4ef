"""The three distributions: what is in each, and that the broker's works without the other two.

Each wheel is built from the source distribution, as `python -m build` does, and from the checkout.
Both are installed into empty environments, which find this environment's dependencies by a path
file: editable installs are not seen through it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = {
    "headrace": ROOT,
    "headrace_verify": ROOT / "packages" / "verify",
    "headrace_bench": ROOT / "packages" / "bench",
}
FOREIGN_SOURCES = {".c", ".go", ".h", ".java", ".mod", ".sum"}


def build(kind: str, project: Path, folder: Path) -> Path:
    """Build a `wheel` or an `sdist` in the folder; its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, Path]:
    """The source distributions."""
    return {
        name: build("sdist", project, tmp_path_factory.mktemp("sdist"))
        for name, project in PROJECTS.items()
    }


@pytest.fixture(scope="module", params=["checkout", "sdist"])
def wheels(request, tmp_path_factory, sources) -> dict[str, Path]:
    """The wheels, built from the checkout or from the source distributions."""
    found = {}
    for name, project in PROJECTS.items():
        origin = project
        if request.param == "sdist":
            unpacked = tmp_path_factory.mktemp("unpacked")
            with tarfile.open(sources[name]) as archive:
                archive.extractall(unpacked, filter="data")
            (origin,) = unpacked.iterdir()
        found[name] = build("wheel", origin, tmp_path_factory.mktemp("wheel"))
    return found


def packages_of(name: str) -> set[str]:
    """Spark looks for its data sources in packages of their own names."""
    own = {name, "pyspark_headrace", "pyspark_headrace_journal", "pyspark_headrace_batches"}
    return own if name == "headrace" else {name}


def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


class Environment(NamedTuple):
    """A virtual environment of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, *wheels: Path) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        alone = ["--no-deps", "--no-index", "--disable-pip-version-check"]
        subprocess.run([*command, *alone, *map(str, wheels)], check=True, capture_output=True)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [str(self.folder / "bin" / "headrace"), *arguments]
        return subprocess.run(
            command, env=clean, cwd=self.folder, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheels) -> Environment:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    dependencies = folder / "lib" / version / "site-packages" / "dependencies.pth"
    dependencies.write_text(sysconfig.get_path("purelib") + "\n")
    made = Environment(folder)
    made.install(wheels["headrace"])
    return made


def test_each_source_distribution_holds_files_and_no_other_ones_sources(sources):
    for name, path in sources.items():
        with tarfile.open(path) as archive:
            members = archive.getmembers()
        assert all(member.isfile() for member in members), "links lead nowhere in a wheel's build"
        folders = {Path(*Path(member.name).parts[1:3]) for member in members}
        held = {one for one in folders if one.parts[0] in {"src", "packages"}}
        assert held == {Path("src", package) for package in packages_of(name)}


def test_each_wheel_holds_its_own_tree_and_nothing_else(wheels):
    for name, wheel in wheels.items():
        trees = [ROOT / "src" / package for package in packages_of(name)]
        files = [path for tree in trees for path in tree.rglob("*.py")]
        python = {path.relative_to(ROOT / "src").as_posix() for path in files}
        held = contents(wheel)
        assert {entry.partition("/")[0] for entry in held} == packages_of(name)
        assert {entry for entry in held if entry.endswith(".py")} == python
        assert f"{name}/py.typed" in held


def test_the_brokers_wheel_holds_no_planted_bugs_and_no_sources_in_other_languages(wheels):
    held = [Path(entry) for entry in contents(wheels["headrace"])]
    assert not [path for path in held if path.suffix in FOREIGN_SOURCES]
    assert not [path for path in held if path.stem in {"bugs", "planted", "spoiled"}]


def test_the_attacks_bring_the_sources_that_they_compile_and_the_golden_data(wheels):
    held = {Path(entry).name for entry in contents(wheels["headrace_verify"])}
    assert {"recorder.c", "wall_clock.c", "KafkaClient.java", "main.go", "0.1.0.tar.gz"} <= held
    assert "main.go" in {Path(entry).name for entry in contents(wheels["headrace_bench"])}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_the_three_have_the_version_that_stands_in_one_place(wheels):
    projects = {
        name: tomllib.loads((project / "pyproject.toml").read_text())["project"]
        for name, project in PROJECTS.items()
    }
    assert [name for name, project in projects.items() if "version" in project] == ["headrace"]
    found = {name: metadata_of(wheel) for name, wheel in wheels.items()}
    version = projects["headrace"]["version"]
    assert {name: one["Version"] for name, one in found.items()} == dict.fromkeys(found, version)


def test_the_other_two_require_the_broker_of_their_own_version(wheels):
    version = metadata_of(wheels["headrace"])["Version"]
    for name, required in (("verify", "headrace[cluster]"), ("bench", "headrace")):
        asked = metadata_of(wheels[f"headrace_{name}"]).get_all("Requires-Dist")
        assert f"{required}=={version}" in asked
    asked = metadata_of(wheels["headrace"]).get_all("Requires-Dist")
    assert "headrace-verify; extra == 'verify'" in asked


def test_the_broker_alone_says_which_package_a_missing_command_needs(environment):
    listed = environment.run("--help")
    assert (listed.returncode, listed.stderr) == (0, "")
    for command in ("verify", "bench"):
        missing = environment.run(command, "--list")
        assert missing.returncode == 1
        assert missing.stdout == ""
        assert missing.stderr == (
            f"headrace: `headrace {command}` is a package of its own, headrace-{command}, which is"
            f" not installed: pip install 'headrace[{command}]'.\n"
        )


def test_the_other_two_bring_their_commands(environment, wheels):
    environment.install(wheels["headrace_verify"], wheels["headrace_bench"])
    for arguments in (["verify", "crash", "--list"], ["bench", "--list"]):
        done = environment.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def release():
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_wheels_built_elsewhere_are_compiled_as_those_of_a_release(release):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheels = settings["tool"]["cibuildwheel"]
    oldest = settings["project"]["requires-python"].removeprefix(">=3.")
    assert wheels["environment"] == release.BUILT_WITH
    assert [one.partition("-")[0] for one in wheels["build"]] == [
        f"cp3{minor}" for minor in range(int(oldest), 15)
    ]
    assert {one.partition("-")[2] for one in wheels["build"]} == {"manylinux_*"}
    assert wheels["archs"] == ["x86_64", "aarch64"]
    lock = wheels["before-build"].rpartition("{project}/")[2]
    assert "cibuildwheel==" in (ROOT / lock).read_text()


def test_a_failed_step_of_a_release_names_the_file_with_all_that_was_said(
    release, tmp_path, monkeypatch
):
    monkeypatch.setattr(release, "LOG", tmp_path / "folder" / "failed.log")
    says = "for line in range(99): print('line', line)\nraise SystemExit(3)"
    with pytest.raises(release.ReleaseError, match=r"line 98$") as failure:
        release.run(sys.executable, "-c", says)
    assert str(release.LOG) in str(failure.value)
    assert "line 84" in str(failure.value)
    assert "line 83" not in str(failure.value)
    assert release.LOG.read_text().splitlines() == [f"line {line}" for line in range(99)]


def test_a_bill_of_materials_does_not_say_where_it_was_made(release):
    local = {"type": "distribution", "url": "file:///somewhere/headrace-0.2.0.tar.gz"}
    home = {"type": "website", "url": "https://example.com"}
    components = [
        {"name": "headrace", "externalReferences": [local, home]},
        {"name": "other", "externalReferences": [local]},
        {"name": "third"},
    ]
    kept = json.loads(release.without_files(json.dumps({"components": components})))
    assert kept["components"] == [
        {"name": "headrace", "externalReferences": [home]},
        {"name": "other"},
        {"name": "third"},
    ]
