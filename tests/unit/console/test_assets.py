"""The console's files: what is served, how it is cached, and that every text has its words."""

from __future__ import annotations

import gzip
import json
import pkgutil
import re
from importlib import import_module
from importlib.resources import files

import pytest
from starlette.applications import Starlette
from tests.unit.http.http_rig import scope

from headrace import broker, http, schemas
from headrace.broker.coordinators.group_config import GROUP_DEFINITIONS
from headrace.broker.security.acls import REASONS
from headrace.broker.services.broker_settings import BROKER_ID, FIXED
from headrace.broker.services.group_diagnosis import SENTENCES
from headrace.broker.settings.table import SETTINGS
from headrace.broker.topics.topic_config import DEFINITIONS
from headrace.console.assets import load_assets
from headrace.errors import HeadraceError
from headrace.http.console import POLICY, console_routes
from headrace.http.problems import next_steps
from headrace.http.verdict import PROBLEMS

STATIC = files("headrace.console") / "static"
OWN = [path for path in load_assets().by_path if not path.startswith("vendor/")]
STRING = r'"((?:[^"\\]|\\.)*)"'


def text(path: str) -> str:
    return load_assets().by_path[path].data.decode()


def ask(path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    import asyncio

    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asked = scope("GET", path)
    asked["headers"] += [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    asyncio.run(Starlette(routes=console_routes())(asked, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:])


def test_the_index_is_asked_for_again_and_names_files_that_never_change():
    status, headers, body = ask("/")
    assert (status, headers["cache-control"]) == (200, "no-cache")
    assert ask("/", if_none_match=headers["etag"])[0] == 304
    named = re.findall(r'(?:src|href)="(console/[^"]+)"', body.decode())
    assert len(named) >= 3
    for path in named:
        status, headers, _ = ask(f"/{path}")
        assert status == 200, path
        assert "immutable" in headers["cache-control"]
        assert headers["content-security-policy"] == POLICY


def test_a_file_is_served_compressed_to_clients_that_accept_it():
    path = f"/console/{load_assets().version}/main.js"
    _, plain_headers, plain = ask(path)
    _, headers, packed = ask(path, accept_encoding="br, gzip")
    assert "content-encoding" not in plain_headers
    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(packed) == plain


@pytest.mark.parametrize("path", ["../assets.py", "%2e%2e/assets.py", "", "vendor", "index.html"])
def test_nothing_but_the_files_is_served(path):
    assert ask(f"/console/{load_assets().version}/{path}")[0] == 404
    assert ask("/console/0123456789abcdef/main.js")[0] == 404


def imports(path: str, pattern: str) -> set[str]:
    """The files that a module imports in this way."""
    found = set()
    for target in re.findall(rf"{pattern}\s*{STRING}", text(path)):
        parts = path.split("/")[:-1]
        for part in target.split("/"):
            if part == "..":
                parts.pop()
            elif part != ".":
                parts.append(part)
        found.add("/".join(parts))
    return found


def test_every_import_leads_to_a_file():
    known = load_assets().by_path
    for path in OWN:
        if path.endswith(".js"):
            assert imports(path, r"(?:from|import\(?)") <= {*known}, path


def test_the_index_asks_at_once_for_all_that_the_first_module_imports():
    """Else each level of imports waits for the one before it."""
    needed, new = {"main.js"}, ["main.js"]
    while new:
        path = new.pop()
        further = set() if path.startswith("vendor/") else imports(path, "from") - needed
        needed |= further
        new += further
    asked = re.findall(r'="console/@VERSION@/([^"]+\.js)"', (STATIC / "index.html").read_text())
    assert sorted(asked) == sorted(needed)


def test_every_text_has_its_words_in_the_table_and_the_same_gaps():
    table = dict(re.findall(rf"^  {STRING}: {STRING},$", text("zh.js"), re.MULTILINE))
    used = {one for path in OWN for one in re.findall(rf"\bt\({STRING}", text(path))}
    assert len(used) > 50
    assert used <= {*table}, "add these to zh.js"
    assert {*table} <= used, "these are not used: take them out of zh.js"
    for english, chinese in table.items():
        gaps = [sorted(re.findall(r"\{\w+\}", one)) for one in (english, chinese)]
        assert gaps[0] == gaps[1], english


def said_in_chinese(kind: str, path: str = "zh_broker.js") -> dict[str, list[str]]:
    """Code -> what the table in this file has for it."""
    said = rf"(?ms)^export const {kind} = {{$(.*?)^}};$"
    (block,) = re.findall(said, text(path))
    pairs = re.findall(rf"{STRING}: (\[[^\]]*\]|{STRING})", block)
    return {code: re.findall(STRING, found) for code, found, _ in pairs}


def test_every_code_of_a_broker_has_a_chinese_sentence_with_the_same_gaps():
    reasons = {code: (sentence,) for code, sentence in REASONS.items()}
    for kind, english in (("findings", SENTENCES), ("problems", PROBLEMS), ("reasons", reasons)):
        chinese = said_in_chinese(kind)
        assert {*chinese} == {*english}, kind
        for code, sentences in english.items():
            for one, other in zip(sentences, chinese[code], strict=True):
                gaps = [sorted(re.findall(r"\{\w+\}", each)) for each in (one, other)]
                assert gaps[0] == gaps[1], code
    assert {*said_in_chinese("steps")} == next_steps()


def test_every_setting_that_the_console_shows_has_a_chinese_description():
    """Also those of brokers that need a restart, or never change."""
    known = {*DEFINITIONS, *GROUP_DEFINITIONS, *SETTINGS, *FIXED, BROKER_ID}
    assert {*said_in_chinese("settings", "zh_settings.js")} == known


def test_every_kind_of_refusal_has_a_chinese_name():
    for room in (broker, http, schemas):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            import_module(module.name)
    known, kinds = {HeadraceError}, [HeadraceError]
    while kinds:
        new = {*kinds.pop().__subclasses__()} - known
        known |= new
        kinds += new
    rooms = ("headrace.errors", "headrace.broker.", "headrace.http.", "headrace.schemas.")
    names = {one.__name__ for one in known if one.__module__.startswith(rooms)}
    assert names - {*said_in_chinese("errors")} == set()


SAID = r"(?:label|title|placeholder|text|name|note|kind|problem|verb|detail)"
NAMES = re.compile(
    r"headrace |https?:|[a-z.]+=|User:|Ctrl K"
    r"|(?:JSON|Kafka|ZooKeeper|HTTP|Python|Headrace|MessagePack|CloudEvent)$"
)


def test_no_text_is_written_past_the_table():
    """What a template or an attribute says in English is said by `t`, but for names."""
    for path in OWN:
        if not path.endswith(".js") or path.startswith("zh"):
            continue
        source = re.sub(r"^\s*//.*$|\s// .*$", "", text(path), flags=re.MULTILINE)
        plain = re.findall(rf"\b{SAID}[=:] ?{STRING}", source)
        plain += re.findall(rf"new (?:Error|Problem)\((?:\d+, )?{STRING}", source)
        plain += re.findall(r">([^<>${}`=;()]*[A-Za-z]{2,}[^<>${}`=;()]*)</", source)
        for one in plain:
            said = one.strip()
            assert not re.search("[A-Za-z]{2,} |[A-Z][a-z]", said) or NAMES.match(said), (
                path,
                said,
            )


def test_no_own_file_makes_markup_of_text_or_code_of_words():
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|style="
    for path in OWN:
        assert not re.search(f"{banned}|dangerouslySet", text(path)), path


def test_vendored_files_come_with_their_licences_and_versions():
    licences = text("vendor/LICENCES.txt")
    script = (files("headrace") / "../../scripts/console_vendor.py").read_text()
    pinned = re.findall(r'^    "([\w@/.-]+)": \(\s+"([\d.]+)"', script, re.MULTILINE)
    assert len(pinned) == 5
    for name, version in pinned:
        assert f"--- {name} {version} (" in licences


def test_the_index_has_no_script_of_its_own():
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=", page)
    assert json.dumps(POLICY).count("unsafe") == 0
