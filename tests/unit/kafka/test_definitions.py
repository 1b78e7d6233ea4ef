"""The checked-in definitions are Kafka's, and cover what this broker speaks."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from headrace.kafka.apis import APIS
from headrace.kafka.wire.definitions import REQUEST, RESPONSE, NoSuchMessage, keys, load

ROOT = Path(__file__).parents[3]
WIRE = ROOT / "src" / "headrace" / "kafka" / "wire"


def jar() -> Path | None:
    about = (WIRE / "messages.jsonl").read_text().splitlines()[0]
    version = re.search(r"Apache Kafka (\d+\.\d+\.\d+)", about)
    assert version is not None
    folder = Path("~/.cache/headrace").expanduser()
    return next(folder.glob(f"*/kafka-clients-{version[1]}.jar"), None)


def test_they_are_what_the_script_derives_from_the_client_jar(tmp_path, monkeypatch):
    found = jar()
    if found is None:
        pytest.skip("Kafka's client jar is not here")
    spec = importlib.util.spec_from_file_location(
        "kafka_messages", ROOT / "scripts" / "kafka_messages.py"
    )
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "OUT", tmp_path)
    script.main(found)
    for name in ("messages.jsonl", "messages.pyi"):
        assert (tmp_path / name).read_text() == (WIRE / name).read_text(), name


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_the_table_of_apis_agrees_with_them(api):
    for version in range(api.version_min, api.version_max + 1):
        request = load(api.key, version, REQUEST)
        assert request.name == f"{api.name}Request"
        assert request.is_flexible == (version >= api.flexible_from)
        assert load(api.key, version, RESPONSE).is_flexible == request.is_flexible


def test_every_api_has_requests_and_responses_of_the_same_versions():
    requests = {key: versions for key, kind, versions in keys() if kind == REQUEST}
    responses = {key: versions for key, kind, versions in keys() if kind == RESPONSE}
    assert requests == responses
    assert len(requests) >= 85


def test_a_message_or_version_that_kafka_does_not_define_is_an_error():
    with pytest.raises(NoSuchMessage, match="no request of API 9999"):
        load(9999, 0, REQUEST)
    with pytest.raises(NoSuchMessage, match="has versions 0-13, not 14"):
        load(3, 14, REQUEST)


def test_a_field_that_a_version_lacks_has_its_default():
    fields = {field.name: field for field in load(3, 1, REQUEST).structs["MetadataRequest"]}
    assert not fields["allow_auto_topic_creation"].is_present
    assert fields["allow_auto_topic_creation"].default is True
