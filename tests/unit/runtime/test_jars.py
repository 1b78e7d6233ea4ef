"""A Java, and pinned jars."""

import subprocess
from pathlib import Path

import pytest

from headrace.errors import Rejected
from headrace.runtime import jars
from headrace.runtime.java import JavaMissing, find_java_home, probe, wrap


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
    monkeypatch.setattr("headrace.runtime.java._home_from_wheel", lambda cache: None)
    with pytest.raises(JavaMissing, match="is Java 25"):
        find_java_home(tmp_path)


def test_a_cached_jar_with_the_right_hash_is_not_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path))
    place = tmp_path / "jars" / "m-1.jar"
    place.parent.mkdir()
    place.write_bytes(b"jar")
    pinned = jars.Jar("o", "m", "1", jars.sha256_of(place))
    assert jars.ensure_jars(Path("/no/java"), (pinned,)) == [place]


def test_a_jar_is_read_from_a_line_and_a_wrong_line_is_named():
    assert jars.Jar.parse("o.r.g:m:1 abc\n") == jars.Jar("o.r.g", "m", "1", "abc")
    with pytest.raises(Rejected, match="o:m"):
        jars.Jar.parse("o:m abc")


@pytest.fixture
def ivy(tmp_path, monkeypatch):
    """A stand-in for Java that retrieves what a test says: the real Ivy needs a network."""
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path))
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()

    def brings(*names):
        java.write_text(
            "#!/bin/sh\nfor last do :; done\nfolder=${last%/*}\n"
            + "".join(f'printf {name} > "$folder/{name}"\n' for name in names)
            + "echo no answer >&2\n"
        )
        java.chmod(0o755)
        return tmp_path

    return brings


def test_what_is_fetched_is_used_only_with_the_right_hash(ivy, tmp_path):
    home = ivy("m-1.jar")
    with pytest.raises(jars.JarCorrupt, match="not used"):
        jars.ensure_jars(home, [jars.Jar("o", "m", "1", "0" * 64)])
    assert not (tmp_path / "jars" / "m-1.jar").exists()
    (tmp_path / "same").write_text("m-1.jar")
    pinned = jars.Jar("o", "m", "1", jars.sha256_of(tmp_path / "same"))
    assert jars.ensure_jars(home, [pinned]) == [tmp_path / "jars" / "m-1.jar"]


def test_a_jar_that_does_not_come_is_named_with_the_next_step(ivy):
    home = ivy()
    with pytest.raises(jars.JarUnavailable, match=r"m-1.jar could not be fetched.*no answer"):
        jars.ensure_jars(home, [jars.Jar("o", "m", "1", "0" * 64)])
