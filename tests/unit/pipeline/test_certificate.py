"""A certificate is believed only if its hashes and its verdict hold."""

import copy
import json

import pytest

from headrace.cli.failures import CommandFailed
from headrace.cli.pipeline_proof import conclude, equation
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.certificate import load, sealed, verify

SIDE = {"count": 10, "distinct": 10, "first": 0, "last": 9, "fingerprint": [7, 8]}
PRODUCER = {
    "producer": "shop", "sent": 10, "first": 0, "last": 9, "stored": 10, "distinct": 10,
    "missing": 0, "missing_spans": [], "missing_in_table": 0, "duplicates": 0, "duplicated": [],
    "unexpected": 0, "acknowledged": {"workers": 10},
}  # fmt: skip
GROUP = {
    "group": "workers", "type": "consumer", "finished": 10, "acknowledged": 10, "dead": 0,
    "dead_shown": "", "letters_known": False, "from_start": False, "unfinished": {}, "unknown": [],
}  # fmt: skip
SHARE = GROUP | {"type": "share", "letters_known": True, "from_start": True}
ARCHIVED = {"table": "t", "snapshot_id": 1, "partitions": {"0": SIDE}, "missing": {}, "surplus": {}}
TWICE = SIDE | {"count": 3, "distinct": 2}
BODY = {
    "topic": "orders", "window": {"0": [0, 10]}, "stored": {"0": SIDE},
    "archived": ARCHIVED,
    "producers": [PRODUCER], "unnumbered": 0, "groups": [GROUP], "limits": [],
}  # fmt: skip
KEY = b"a key that the auditor shares"


def body(**changes):
    return copy.deepcopy(BODY) | changes


COPY = {
    "copy": "topic mirror", "rows": 10, "log_is_whole": True, "records": 10, "unidentified": 0,
    "missing": 0, "missing_spans": {}, "differing": 0, "differing_spans": {}, "repeated": 0,
    "repeated_shown": [], "surplus": 0, "surplus_shown": [], "rows_unidentified": 0,
}  # fmt: skip


def test_records_that_were_never_compared_with_a_copy_are_not_proven():
    assert sealed(body(copies=[COPY]))["verdict"] == "proven"
    found = sealed(body(copies=[COPY | {"records": 7, "unidentified": 1}]))
    assert found["verdict"] == "not proven"
    assert found["not_proven"][0].startswith("topic mirror: whether 2 records are there")


def test_records_that_their_batches_lack_are_not_proven():
    """The sequences do not show whether they are delivered, or were duplicates or compacted."""
    counts = dict.fromkeys(("never_stored", "absent", "repeated", "earlier", "removed"), 0)
    totals = counts | {"runs": 0, "sent": 8, "stored": 8}
    by_id = {"runs": [], "totals": totals, "is_compacted": False, "without_producer": 0}
    whole = sealed(body(idempotent=by_id, numbered_by=None))
    assert whole["verdict"] == "proven"
    assert "stored 8 |" in equation(whole)
    found = sealed(body(idempotent=by_id | {"totals": totals | {"removed": 3}}, numbered_by=None))
    assert found["verdict"] == "not proven"
    (line,) = found["not_proven"]
    assert line.startswith("whether 3 records of idempotent producers are stored that their batch")
    assert "sent by idempotent producers 8, stored 8, of which batches lack 3" in equation(found)


def test_the_next_step_mends_the_cause_of_the_other_problems():
    failing = {
        "Correct the copy": {
            "copies": [COPY | {"differing": 1, "differing_spans": {"0": [[3, 3]]}}]
        },
        "headrace pipeline backlog workers orders": {
            "groups": [GROUP | {"unfinished": {"0": [[3, 3]]}}]
        },
        "headrace pipeline run archive --topic orders": {
            "archived": ARCHIVED | {"missing": {"0": [[3, 3]]}}
        },
        "headrace pipeline resend": {
            "producers": [PRODUCER | {"missing": 1, "missing_spans": [[3, 3]]}]
        },
    }
    changes = {}
    for step, change in failing.items():
        changes |= change
        for given in (change, changes):
            with pytest.raises(CommandFailed) as failed:
                conclude(sealed(body(**given)))
            assert step in failed.value.next_step


def test_complete_figures_are_proven_and_stay_so_as_json():
    found = sealed(body(), KEY)
    assert (found["verdict"], found["problems"], found["not_proven"]) == ("proven", [], [])
    assert verify(json.loads(json.dumps(found)), KEY) == []
    assert verify(found) == []


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"unnumbered": 1}, "not proven"),
        ({"limits": ["the log was read by another client"]}, "not proven"),
        ({"producers": [PRODUCER | {"sent": None}]}, "not proven"),
        ({"producers": [PRODUCER | {"missing": 1, "missing_spans": [[3, 3]]}]}, "failed"),
        ({"producers": [PRODUCER | {"duplicates": 1, "duplicated": [3]}]}, "failed"),
        ({"producers": [PRODUCER | {"unexpected": 1}]}, "failed"),
        ({"stored": {"0": SIDE | {"fingerprint": [7, 9]}}}, "failed"),
        ({"stored": {"0": SIDE, "1": SIDE}}, "not proven"),
        ({"groups": [GROUP | {"unfinished": {"0": [[5, 9]]}}]}, "failed"),
        ({"groups": [GROUP | {"unfinished": {"0": [[5, 9]]}, "unknown": ["0"]}]}, "not proven"),
        ({"groups": [GROUP | {"type": "share"}]}, "not proven"),
        ({"groups": [SHARE]}, "proven"),
        ({"groups": [SHARE | {"from_start": False}]}, "not proven"),
        ({"archived": ARCHIVED | {"surplus": {"1": [[3, 3]]}}}, "failed"),
        ({"archived": ARCHIVED | {"partitions": {"0": SIDE, "1": TWICE}}}, "failed"),
        ({"groups": [GROUP | {"dead": 1}]}, "failed"),
        ({"producers": []}, "not proven"),
    ],
)
def test_the_verdict_follows_from_the_figures(change, verdict):
    assert sealed(body(**change))["verdict"] == verdict


def test_any_change_of_a_certificate_is_found():
    found = sealed(body(), KEY)

    def paths(value, path=()):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, one in items:
            yield (*path, name)
            if isinstance(one, (dict, list)):
                yield from paths(one, (*path, name))

    for path in list(paths(found)):
        changed = json.loads(json.dumps(found))
        at = changed
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = "changed"
        assert verify(changed, KEY), path


def test_a_forged_verdict_is_found_although_its_hash_is_right():
    """Whoever can write the file can compute its hash: the figures still contradict it."""
    lost = sealed(body(producers=[PRODUCER | {"missing": 1, "missing_spans": [[3, 3]]}]))
    honest = sealed(body())
    forged = honest | {"producers": lost["producers"]}
    from headrace.pipeline.jobs import certificate

    forged["sha256"] = certificate._hash(
        {name: value for name, value in forged.items() if name != "sha256"}
    )
    assert verify(forged) == ["its figures say 'failed', the certificate says 'proven'"]


def test_a_signature_needs_the_key():
    found = sealed(body(), KEY)
    assert verify(found, b"another key") == ["the signature does not match this key"]
    assert verify(sealed(body()), KEY) == ["it is not signed"]


@pytest.mark.parametrize("text", ["", "[]", "{", "1"])
def test_malformed_certificates_are_refused(text):
    with pytest.raises(OptionInvalid):
        load(text)
    assert verify({"format": "other"}) != []
