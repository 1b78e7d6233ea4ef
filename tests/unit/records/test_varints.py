"""Varints, and the code for them that `scripts/inline_varints.py` writes into the walkers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from headrace.errors import BatchCorrupt
from headrace.records.varints import VARLONG_BITS_MAX, read_varint, write_varint

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "inline_varints.py"))
MODULES = sorted((ROOT / "src" / "headrace" / "records").glob("*.py"))
MARK = "# inline: "


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_inlined_numbers_are_what_the_script_writes(path):
    source = path.read_text()
    assert SCRIPT["expanded"](source) == source
    assert len(SCRIPT["MARKED"].findall(source)) == source.count(MARK)  # it knows each mark


def test_no_walker_decodes_a_number_of_two_bytes_by_hand():
    """All but `read_varint` itself."""
    for path in MODULES:
        source = path.read_text()
        assert source.count("high << 7") == source.count(MARK) + (path.stem == "varints")
        assert not any(copy in source for copy in ("second << 6", "[at + 1] << 7"))


def test_the_script_writes_new_marks_and_repairs_old_code():
    source = (
        "def f(data, at):\n    # inline: size, end = read_varint(data, at)\n    return size, end\n"
    )
    written = SCRIPT["expanded"](source)
    assert SCRIPT["expanded"](written.replace("< 128", "< 127")) == written
    namespace = {"read_varint": read_varint}
    exec(written, namespace)
    for number in (0, -1, 63, -64, 64, -65, 8_191, -8_192, 8_192, 1 << 30, -(1 << 31)):
        encoded = b"\xff" + write_varint(number) + b"\xff"
        assert namespace["f"](encoded, 1) == (number, len(encoded) - 1)


def test_a_number_has_a_maximum_size():
    with pytest.raises(BatchCorrupt, match="more than 32 bits"):
        read_varint(write_varint(1 << 31), 0)
    assert read_varint(write_varint(1 << 62), 0, VARLONG_BITS_MAX)[0] == 1 << 62
