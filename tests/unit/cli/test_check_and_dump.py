"""`headrace check` and `headrace dump` on the golden data: words, JSON lines, exit codes."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from headrace.cli import main
from headrace.coordination.groups import state_records as groups
from headrace.coordination.shares import state_records as shares
from headrace.coordination.transactions import state_records as transactions
from headrace.inspection.decoders import decoder_of, state_in
from headrace.metadata.facts import CompanionKind
from headrace.records.codec import Record
from headrace_verify.upgrade import archive


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    archive.unpack(archive.path_of(archive.names()[0]), folder)
    return folder


@pytest.fixture
def data(golden, tmp_path):
    return shutil.copytree(golden / "killed", tmp_path / "data")


def run(*arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def damage(data):
    """Flip a bit of a record of `indexed-0`, whose first ledger is sealed."""
    path = max(data.glob("ledgers/*/*.ledger"), key=lambda one: one.stat().st_size)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(bytes(content))
    return path.relative_to(data).as_posix()


def test_a_sound_folder_is_one_line_and_exit_code_0(data, capsys):
    code, out, err = run("check", data, capsys=capsys)
    assert (code, err) == (0, "")
    assert out.startswith("No damage found: ")
    assert out.count("\n") == 1
    assert not re.search(r"\b1 \w+s\b|batchs", out), out


def test_damage_is_exit_code_1_with_cause_effect_and_next_step(data, capsys):
    path = damage(data)
    code, out, _ = run("check", data, capsys=capsys)
    assert code == 1
    assert f"DAMAGE batch-crc: {path}, byte 0" in out
    for word in ("cause:", "effect:", "next step:", "indexed-0"):
        assert word in out
    code, out, _ = run("check", data, "--json", capsys=capsys)
    found, *_, summary = lines(out)
    assert code == 1
    assert found["type"] == "damage"
    assert (found["topic"], found["partition"], found["first_offset"]) == ("indexed", 0, 0)
    assert (summary["type"], summary["damage"]) == ("summary", 1)


def test_a_newer_format_could_not_be_judged_and_is_exit_code_2(data, capsys):
    content = bytearray((data / "metadata.sqlite").read_bytes())
    content[60:64] = (99).to_bytes(4, "big")
    (data / "metadata.sqlite").write_bytes(bytes(content))
    code, out, _ = run("check", data, capsys=capsys)
    assert code == 2
    assert "UNREADABLE metadata-format" in out


def test_no_data_folder_is_exit_code_2(tmp_path, capsys):
    code, out, err = run("check", tmp_path / "none", capsys=capsys)
    assert (code, out) == (2, "")
    assert "--data-dir" in err


def test_a_log_is_dumped_with_its_batches_records_and_footers(data, capsys):
    code, out, _ = run("dump", "log", data, "orders-0", "--records", "--json", capsys=capsys)
    assert code == 0
    found = lines(out)
    offsets = [line["offset"] for line in found if line["type"] == "record"]
    assert offsets == list(range(24))
    assert all(line["is_valid"] for line in found if line["type"] == "batch")
    assert [line["end_offset"] for line in found if line["type"] == "footer"]


def test_records_of_groups_are_decoded(data, capsys):
    arguments = ("dump", "log", data, "__consumer_offsets-0", "--records", "--json")
    _, out, _ = run(*arguments, capsys=capsys)
    states = [line["decoded"] for line in lines(out) if "decoded" in line]
    assert {"OffsetStored", "OffsetRemoved"} <= {state["record"] for state in states}
    assert {state["group_id"] for state in states} == {"simple"}


@pytest.mark.parametrize(
    ("decode", "encoded", "shown"),
    [
        (
            decoder_of("__transaction_state", None),
            transactions.encode(
                transactions.TransactionStored(
                    "t", 7, 1, 60_000, transactions.ONGOING, frozenset({("orders", 2)}), 5
                )
            ),
            {
                "record": "TransactionStored",
                "state": "Ongoing",
                "producer_id": 7,
                "partitions": [["orders", 2]],
            },
        ),
        (
            decoder_of("orders", CompanionKind.SHARES),
            shares.encode(shares.ShareGroupChanged(3, [shares.StoredRun(4, 6, 0, 2)], 4)),
            {"record": "ShareGroupChanged", "number": 3, "start": 4},
        ),
        (
            decoder_of("__consumer_offsets", None),
            groups.encode(groups.GroupRemoved("g")),
            {"record": "GroupRemoved", "group_id": "g"},
        ),
    ],
    ids=["transactions", "shares", "groups"],
)
def test_internal_records_are_decoded_by_the_log_they_are_in(decode, encoded, shown):
    key, value = encoded
    found = state_in(Record(0, 0, key, value), decode)
    assert found is not None
    assert {name: found[name] for name in shown} == shown
    json.dumps(found)


def test_the_journal_shows_each_frame_in_sequence(data, capsys):
    _, out, _ = run("dump", "journal", data, "--json", capsys=capsys)
    sequences = [line["sequence"] for line in lines(out) if line["type"] == "frame"]
    assert sequences
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))


def test_damage_is_shown_where_it_lies_and_passed(data, capsys):
    path = damage(data)
    code, out, _ = run("dump", "segment", data / path, "--records", "--json", capsys=capsys)
    assert code == 0
    first, *rest = [line for line in lines(out) if line["type"] == "batch"]
    assert not first["is_valid"]
    assert rest
    assert all(line["is_valid"] for line in rest)
    (data / path).write_bytes(b"noise" * 40 + (data / path).read_bytes())
    _, out, _ = run("dump", "segment", data / path, "--json", capsys=capsys)
    assert lines(out)[0]["type"] == "gap"
    assert lines(out)[1]["type"] == "batch"


def test_metadata_ledgers_and_footers_are_dumped_for_people_and_as_json(data, capsys):
    _, out, _ = run("dump", "metadata", data, "/topics", "--json", capsys=capsys)
    assert {"/topics/orders"} <= {line["key"] for line in lines(out)}
    _, out, _ = run("dump", "ledgers", data, capsys=capsys)
    assert "is_sealed: yes" in out
    footer = next(data.glob("ledgers/*/*.footer"))
    _, out, _ = run("dump", "footer", footer, "--json", capsys=capsys)
    (line,) = lines(out)
    assert line["ledger"] == int(footer.stem, 16)
    code, _, err = run("dump", "ledger", data, 999, capsys=capsys)
    assert code == 3
    assert "no ledger 999" in err


def test_a_dump_ends_after_so_many_lines(data, capsys):
    _, out, _ = run("dump", "log", data, "orders-0", "--count", 3, "--json", capsys=capsys)
    assert len(lines(out)) == 3
