"""A Java, and pinned jars."""

import hashlib
import subprocess
from pathlib import Path

import pytest
from tests.unit.runtime.web_server import serving

from headrace.errors import Rejected
from headrace.java import jars
from headrace.java.installation import JavaMissing, find_java_home, probe, wrap


def test_the_wrapper_drops_the_one_module_and_keeps_every_other_argument(tmp_path):
    real = tmp_path / "java"
    real.write_text('#!/bin/sh\nfor each do echo "[$each]"; done\n')
    real.chmod(0o755)
    home = wrap(real, tmp_path / "cache")
    done = subprocess.run(
        [home / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[-cp]", "[a b]", "[]", "[Main]"]


def test_a_java_that_is_none_is_not_taken(tmp_path, monkeypatch):
    fake = tmp_path / "bin" / "java"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'java.home = /x' >&2\n"
                    "echo 'java.specification.version = 25' >&2\n")  # fmt: skip
    fake.chmod(0o755)
    assert probe(fake) == (Path("/x"), 25)
    assert probe(tmp_path / "no-java") is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("headrace.java.installation._home_from_wheel", lambda cache: None)
    with pytest.raises(JavaMissing, match="is Java 25"):
        find_java_home(tmp_path)


def test_a_cached_jar_with_the_right_hash_is_not_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path))
    place = tmp_path / "jars" / "m-1.jar"
    place.parent.mkdir()
    place.write_bytes(b"jar")
    pinned = jars.Jar("o", "m", "1", jars.sha256_of(place))
    assert jars.ensure_jars((pinned,)) == [place]


def test_a_jar_is_read_from_a_line_and_a_wrong_line_is_named():
    assert jars.Jar.parse("o.r.g:m:1 abc\n") == jars.Jar("o.r.g", "m", "1", "abc")
    assert jars.Jar.parse("o.r.g:m:1:tests abc").path == "o/r/g/m/1/m-1-tests.jar"
    with pytest.raises(Rejected, match="o:m"):
        jars.Jar.parse("o:m abc")


@pytest.fixture
def maven(tmp_path, monkeypatch):
    """A Maven repository in a folder, behind a web server."""
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "maven"
    root.mkdir()
    with serving(root) as url:
        monkeypatch.setenv(jars.MAVEN_VARIABLE, url)
        yield root


def published(root, content=b"jar"):
    """A jar of the repository, pinned."""
    folder = root / "o" / "r" / "g" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "m-1.jar").write_bytes(content)
    return jars.Jar("o.r.g", "m", "1", hashlib.sha256(content).hexdigest())


def test_downloaded_jars_are_used_only_with_the_right_hash(maven, tmp_path, capsys):
    right = published(maven)
    wrong = jars.Jar("o.r.g", "m", "1", "0" * 64)
    place = tmp_path / "cache" / "jars" / "m-1.jar"
    with pytest.raises(jars.JarCorrupt, match="is discarded"):
        jars.ensure_jars([wrong])
    assert not place.exists()
    assert jars.ensure_jars([right]) == [place]
    assert place.read_bytes() == b"jar"
    assert "downloading m-1.jar (1 of 1)" in capsys.readouterr().err
    assert [path.name for path in place.parent.iterdir() if path.is_dir()] == []


def test_a_jar_that_does_not_come_is_named_with_the_next_step(maven):
    missing = [jars.Jar("o", "m", "1", "0" * 64), jars.Jar("o", "n", "2", "0" * 64)]
    with pytest.raises(jars.JarUnavailable, match=r"m-1.jar, n-2.jar could .*404.*HEADRACE_MAVEN"):
        jars.ensure_jars(missing)


def test_a_mirror_in_mavens_own_settings_is_asked(tmp_path, monkeypatch):
    monkeypatch.delenv(jars.MAVEN_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jars.repository() == jars.MAVEN_CENTRAL
    settings = tmp_path / ".m2" / "settings.xml"
    settings.parent.mkdir()
    mirror = "<mirror><mirrorOf>{}</mirrorOf><url>https://mirror.example/maven/</url></mirror>"
    xmlns = 'xmlns="http://maven.apache.org/SETTINGS/1.2.0"'
    for of, expected in (
        ("other", jars.MAVEN_CENTRAL),
        ("central", "https://mirror.example/maven"),
    ):
        settings.write_text(f"<settings {xmlns}><mirrors>{mirror.format(of)}</mirrors></settings>")
        assert jars.repository() == expected
    monkeypatch.setenv(jars.MAVEN_VARIABLE, "https://named.example/")
    assert jars.repository() == "https://named.example"
