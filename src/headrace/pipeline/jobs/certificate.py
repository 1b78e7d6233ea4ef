"""Certificates of delivery: what was counted, the verdict that follows, and hashes over both.

Invariants: pure. `judge` derives problems and open questions from the figures of a document alone,
so a certificate can be verified later without the cluster: hashes first, then the verdict again
from the figures. A hash shows damage and careless edits; only a signature (HMAC with a key that the
reader shares) shows who made it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any, Final

from headrace.pipeline.errors import OptionInvalid

FORMAT: Final = "headrace-delivery-certificate"  # do not change: stored
VERSION: Final = 4  # do not change: stored
VERSIONS: Final = (1, 2, 3, VERSION)
"""Version 1 had no journals of groups, version 2 no copies, version 3 no idempotent producers."""
PROVEN, FAILED, NOT_PROVEN = "proven", "failed", "not proven"
_SEALS: Final = ("sha256", "hmac_sha256")
_SHOWN_MAX: Final = 20


def sealed(document: dict[str, Any], key: bytes | None = None) -> dict[str, Any]:
    """The document with format, verdict and hashes; with `key`, also an HMAC."""
    body = {"format": FORMAT, "version": VERSION, **document}
    problems, not_proven = judge(body)
    verdict = FAILED if problems else NOT_PROVEN if not_proven else PROVEN
    body |= {"problems": problems, "not_proven": not_proven, "verdict": verdict}
    seals = {"sha256": _hash(body)}
    if key is not None:
        seals["hmac_sha256"] = _mac(body, key)
    return body | seals


def verify(document: dict[str, Any], key: bytes | None = None) -> list[str]:
    """What is wrong with a certificate; empty if its hashes and its verdict hold."""
    if document.get("format") != FORMAT or document.get("version") not in VERSIONS:
        return [f"not a certificate of format {FORMAT} {VERSION} or earlier"]
    body = {name: value for name, value in document.items() if name not in _SEALS}
    wrong = []
    if not hmac.compare_digest(str(document.get("sha256")), _hash(body)):
        wrong.append("the content does not match its SHA-256: it was changed or damaged")
    if key is not None:
        signature = document.get("hmac_sha256")
        if signature is None:
            wrong.append("it is not signed")
        elif not hmac.compare_digest(str(signature), _mac(body, key)):
            wrong.append("the signature does not match this key")
    try:
        problems, not_proven = judge(body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return [*wrong, f"a figure is missing or has another type: {error!r}"]
    verdict = FAILED if problems else NOT_PROVEN if not_proven else PROVEN
    said = body.get("problems"), body.get("not_proven"), body.get("verdict")
    if said != (problems, not_proven, verdict):
        wrong.append(f"its figures say {verdict!r}, the certificate says {body.get('verdict')!r}")
    return wrong


def load(text: str) -> dict[str, Any]:
    """Parse a certificate. Raises OptionInvalid."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionInvalid(f"The certificate is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise OptionInvalid("The certificate is not a JSON object.")
    return found


def judge(body: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The problems that the figures show, and what they cannot show."""
    problems: list[str] = []
    not_proven: list[str] = list(body["limits"])
    _judge_producers(body, problems, not_proven)
    if body.get("idempotent") is not None:
        _judge_idempotent(body, problems, not_proven)
    _judge_table(body, problems, not_proven)
    for group in body["groups"]:
        if "journal" in group:
            _judge_journal(body, group, problems, not_proven)
            continue
        _judge_group(body, group, problems, not_proven)
    for copy in body.get("copies", ()):
        _judge_copy(body, copy, problems, not_proven)
    return problems, not_proven


def _judge_producers(body: dict[str, Any], problems: list[str], not_proven: list[str]) -> None:
    for one in body["producers"]:
        name = one["producer"]
        if one["missing"]:
            shown = _spans(one["missing_spans"])
            kept = one["missing_in_table"]
            rest = f"; the table has {kept} of them" if kept else ""
            problems.append(f"{name}: {one['missing']} not stored (sequences {shown}){rest}")
        if one["duplicates"]:
            shown = ", ".join(map(str, one["duplicated"][:_SHOWN_MAX]))
            problems.append(f"{name}: {one['duplicates']} stored twice (sequences {shown})")
        if one["unexpected"]:
            problems.append(f"{name}: {one['unexpected']} stored that were not sent")
        if one["sent"] is None:
            not_proven.append(
                f"{name}: what was sent outside sequences {one['first']} to {one['last']}, because"
                " the producer's own count was not given"
            )
    if body["unnumbered"]:
        not_proven.append(
            f"{body['unnumbered']} stored records have no producer or sequence: whether all of"
            " their kind were stored, and once"
        )
    is_numbered = body.get("numbered_by", True) is not None
    counts = (
        [one["stored"] for one in body["producers"]] + [body["unnumbered"]]
        if is_numbered
        else [side["count"] for side in body["stored"].values()]
    )
    if not any(counts) and not body["producers"]:
        not_proven.append("the window holds no records")


def _judge_idempotent(body: dict[str, Any], problems: list[str], not_proven: list[str]) -> None:
    """By the sequences in the batches of idempotent producers."""
    found = body["idempotent"]
    totals, is_compacted = found["totals"], found["is_compacted"]
    faults = ["never_stored", "repeated"] + ([] if is_compacted else ["absent"])
    shown = 0
    for run in found["runs"]:
        name = (
            f"{body['topic']}-{run['partition']}: producer {run['producer_id']}, epoch"
            f" {run['producer_epoch']}"
        )
        gaps = f"sequences {_spans(run['gaps'])}"
        if run["never_stored"]:
            problems.append(f"{name}: {run['never_stored']} never stored (among {gaps})")
        if run["absent"] and not is_compacted:
            problems.append(
                f"{name}: {run['absent']} absent from the log, at offsets between others, where its"
                f" cleanup.policy deletes none (among {gaps})"
            )
        if run["repeated"]:
            problems.append(f"{name}: {run['repeated']} sequences stored twice")
        shown += sum(run[fault] for fault in faults)
    if (rest := sum(totals[fault] for fault in faults) - shown) > 0:
        problems.append(f"{rest} more faults of idempotent producers that are not listed")
    if is_compacted and totals["absent"]:
        not_proven.append(
            f"whether {totals['absent']} records of idempotent producers were removed by"
            " compaction, or lost"
        )
    if totals["removed"]:
        not_proven.append(
            f"whether {totals['removed']} records of idempotent producers are stored that their"
            " batches do not hold: they were delayed (and count again where they are delivered),"
            " were duplicates of named sequences, or were removed by compaction"
        )
    if totals["earlier"]:
        not_proven.append(
            f"whether {totals['earlier']} records of idempotent producers were stored before the"
            " window, or deleted at the log's begin, or lost"
        )
    if totals["runs"]:
        not_proven.append(
            "what idempotent producers sent in an epoch after the last sequence stored"
            f" ({totals['runs']} producers, epochs and partitions)"
        )
    if found["without_producer"]:
        not_proven.append(
            f"{found['without_producer']} stored records have no producer id: whether all of their"
            " kind were stored, and once"
        )


def _judge_table(body: dict[str, Any], problems: list[str], not_proven: list[str]) -> None:
    table = body["archived"]
    if table is None:
        return
    for number in sorted({*body["stored"], *table["partitions"], *table["surplus"]}, key=int):
        stored = body["stored"].get(number, _EMPTY_SIDE)
        found = table["partitions"].get(number, _EMPTY_SIDE)
        place = f"{body['topic']}-{number}"
        if found["count"] != found["distinct"]:
            problems.append(f"{place}: {found['count'] - found['distinct']} archived twice")
        if table["missing"].get(number):
            shown = _spans(table["missing"][number])
            problems.append(f"{place}: not archived: offsets {shown}")
        if table["surplus"].get(number):
            shown = _spans(table["surplus"][number])
            problems.append(f"{place}: archived, but not in the log: offsets {shown}")
        same_places = not table["missing"].get(number) and not table["surplus"].get(number)
        if same_places and stored["distinct"] == found["distinct"] == found["count"]:
            if stored["fingerprint"] != found["fingerprint"]:
                problems.append(f"{place}: archived records differ from the log in content")
        elif same_places and stored["distinct"] != found["distinct"]:
            not_proven.append(f"{place}: log and table changed during the comparison")


def _judge_copy(
    body: dict[str, Any], copy: dict[str, Any], problems: list[str], not_proven: list[str]
) -> None:
    name = copy["copy"]
    for figure, words in (("missing", "not there"), ("differing", "of other content")):
        if copy[figure]:
            places = _by_partition(body["topic"], copy[f"{figure}_spans"])
            problems.append(f"{name}: {copy[figure]} records {words} ({places})")
    if copy["repeated"]:
        shown = ", ".join(copy["repeated_shown"])
        problems.append(f"{name}: {copy['repeated']} there more often than in the log ({shown})")
    if copy["surplus"]:
        shown = ", ".join(copy["surplus_shown"])
        if copy["log_is_whole"]:
            problems.append(f"{name}: {copy['surplus']} there, but not in the log ({shown})")
        else:
            not_proven.append(
                f"{name}: whether {copy['surplus']} there ({shown}) were in the log, whose begin"
                " has been deleted"
            )
    stored = sum(side["count"] for side in body["stored"].values())
    if (unread := stored - copy["records"] - copy["unidentified"]) > 0:
        not_proven.append(
            f"{name}: whether {unread} records are there that were removed from the log before they"
            " were compared"
        )
    if copy["unidentified"]:
        not_proven.append(f"{name}: whether {copy['unidentified']} records without an id are there")
    if copy["rows_unidentified"]:
        not_proven.append(f"{name}: whence {copy['rows_unidentified']} rows without an id are")


def _by_partition(topic: str, spans: dict[str, list[list[int]]]) -> str:
    return "; ".join(
        f"{topic}-{number}: offsets {_spans(each)}"
        for number, each in sorted(spans.items(), key=lambda item: int(item[0]))
    )


def _judge_group(
    body: dict[str, Any], group: dict[str, Any], problems: list[str], not_proven: list[str]
) -> None:
    name = group["group"]
    for number, spans in sorted(group["unfinished"].items(), key=lambda item: int(item[0])):
        text = f"{body['topic']}-{number}: offsets {_spans(spans)}"
        if number in group["unknown"]:
            not_proven.append(f"{name}: no position on {text}")
        elif group["type"] == "share":
            not_proven.append(f"{name}: may be acknowledged one by one after the start: {text}")
        else:
            problems.append(f"{name}: not acknowledged: {text}")
    if group["dead"]:
        problems.append(f"{name}: {group['dead']} given up to dead letters ({group['dead_shown']})")
    if group["type"] == "share" and group["finished"] and not group["letters_known"]:
        not_proven.append(
            f"{name}: whether finished records were accepted or given up, because no dead letter"
            " topic was named, or letters in it have been deleted"
        )
    if group["type"] == "share" and group["finished"] and not group["from_start"]:
        not_proven.append(
            f"{name}: whether records before its first start were delivered, because the group does"
            " not start at the earliest record (share.auto.offset.reset)"
        )


_UNACKNOWLEDGED: Final = {
    "failed": "delivered, not acknowledged",
    "dead": "given up or expired, not acknowledged",
    "skipped": "skipped: the group's start was moved past them",
    "undelivered": "not delivered, or in delivery",
}
_UNDECIDED: Final = {
    "unknown": "finished before the group's journal was compacted: whether acknowledged",
    "before": "stored before the group's first start: whether it should have had them",
}


def _judge_journal(
    body: dict[str, Any], group: dict[str, Any], problems: list[str], not_proven: list[str]
) -> None:
    """By what the group's journal says of each record."""
    journal, name = group["journal"], group["group"]
    for outcomes, lines in ((_UNACKNOWLEDGED, problems), (_UNDECIDED, not_proven)):
        for outcome, words in outcomes.items():
            if count := journal["records"][outcome]:
                places = _by_partition(body["topic"], journal["spans"][outcome])
                lines.append(f"{name}: {count} {words} ({places})")


_EMPTY_SIDE: Final = {"count": 0, "distinct": 0, "fingerprint": [0, 0]}


def _spans(spans: list[list[int]]) -> str:
    shown = [f"{low}" if low == high else f"{low} to {high}" for low, high in spans[:_SHOWN_MAX]]
    return ", ".join([*shown, "..."] if len(spans) > _SHOWN_MAX else shown)


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and without spaces: equal values, equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(body)).hexdigest()


def _mac(body: dict[str, Any], key: bytes) -> str:
    return hmac.new(key, canonical(body), hashlib.sha256).hexdigest()
