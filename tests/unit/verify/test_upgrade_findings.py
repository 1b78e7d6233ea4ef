"""Differences between what was written and what is read."""

from __future__ import annotations

from headrace_verify.upgrade.findings import Findings, differences


def test_equal_values_do_not_differ():
    value = {"topics": {"t": {"id": "1", "configs": {}}}, "bytes": b"1"}
    assert differences("it", value, value) == []


def test_a_newer_version_may_know_more_fields_but_not_more_things():
    written = {"topics": {"t": {"id": "1"}}}
    assert differences("it", written, {"topics": {"t": {"id": "1", "more": 2}}, "new": 3}) == []
    more = differences("it", written, {"topics": {"t": {"id": "1"}, "u": {}}})
    assert more == ["it, topics: u is unexpected"]


def test_objects_in_lists_are_compared_one_by_one():
    written = {"ledgers": [{"id": 1}, {"id": 2}]}
    assert differences("it", written, {"ledgers": [{"id": 1, "more": None}, {"id": 2}]}) == []
    assert differences("it", written, {"ledgers": [{"id": 1}, {"id": 3}]}) == [
        "it, ledgers[1], id: 3, but 2 was written"
    ]
    assert len(differences("it", written, {"ledgers": [{"id": 1}]})) == 1


def test_missing_and_changed_values_are_named():
    assert differences("it", {"a": 1}, {}) == ["it: a is missing"]
    assert differences("it", {"a": 1}, {"a": 2}) == ["it, a: 2, but 1 was written"]
    assert differences("it", b"12", b"1") == ["it: different bytes (2 were written, 1 are read)"]


def test_findings_count_what_was_compared_and_name_a_few():
    found = Findings("here")
    found.same("it", 1, 1)
    found.same("it", {str(at): at for at in range(9)}, {})
    assert found.checked == 2
    assert len(found.wrong) == 5
    assert found.wrong[0] == "here: it: 0 is missing"
