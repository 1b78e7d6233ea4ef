"""The tables of docs/ROCKETMQ.md say what the tests run, no more and no less."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.test_rocketmq import IN_A_CLUSTER
from tests.integration.test_rocketmq import (
    BY_WORKERS,
    LACKING,
    LACKING_IN_OLDER,
    LANES,
    LANES_OF_OLDER,
    OF_OLDER_CLIENTS,
    OLDER,
    ON_ONE_BROKER,
    PROGRAMS,
)

PAGE = (Path(__file__).parents[2] / "docs" / "ROCKETMQ.md").read_text()
NAMES = {"python": "Python", "java": "Java", "go": "Go", "node": "Node.js", "rust": "Rust"}
INSTALLATIONS = {"broker": ON_ONE_BROKER, "workers": BY_WORKERS, "cluster": IN_A_CLUSTER}
TITLES = {
    "normal": "normal messages",
    "batch": "several messages in a request",
    "fifo": "message groups (FIFO)",
    "delay": "delayed messages",
    "recall": "recalled messages",
    "transaction": "transactions, with check-back",
    "filters": "filter by tags",
    "sql": "filter by SQL",
    "priority": "priorities",
    "push": "push consumer",
    "push_fifo": "push consumer, message groups",
    "lite": "push consumer, lite topics",
    "dead": "dead letters",
}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(language: str, lane: str) -> str:
    if (language, lane) in LACKING:
        return "the client has none"
    tested = [name for name, cells in INSTALLATIONS.items() if has(cells, language, lane)]
    return ", ".join(tested) or "not tested"


def has(cells: list, *values: str) -> bool:
    return any(one.values == values for one in cells)


def test_the_page_says_which_lane_is_tested_with_which_client_where():
    rows = [[TITLES[lane], *(cell(language, lane) for language in PROGRAMS)] for lane in LANES]
    assert table(["", *(NAMES[language] for language in PROGRAMS)], rows) in PAGE


def test_the_page_says_which_older_clients_are_tested():
    rows = []
    for language, version, *_pins in OLDER:
        lanes = [lane for lane in LANES_OF_OLDER if has(OF_OLDER_CLIENTS, language, version, lane)]
        lacking = [
            TITLES[lane] for lane in LANES_OF_OLDER if (language, version, lane) in LACKING_IN_OLDER
        ]
        assert len(lanes) + len(lacking) == len(LANES_OF_OLDER)
        rows.append([f"{NAMES[language]} {version.lstrip('v')}", ", ".join(lacking) or "nothing"])
    assert table(["", "what does not work"], rows) in PAGE
