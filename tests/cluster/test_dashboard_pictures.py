"""Each panel of the dashboards has data, and the documentation's pictures show them.

Invariants: two brokers over real BookKeeper under a load of every kind, a real Prometheus, and the
queries, legends, units and places of the exported JSON; Grafana is not needed. What no load here
makes is listed with the reason. `HEADRACE_GOLDEN=write` takes the pictures anew: look at them.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import subprocess
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from tests.cluster.brokers import Brokers, Load
from tests.integration.browser import NEEDS_CHROMIUM, chromium
from tests.integration.clients import create_topic
from tests.integration.test_console import ask
from tests.integration.test_console_pictures import ENCODE, PICTURES, data_url
from tests.integration.test_quotas import set_quota
from tests.prometheus import tool
from tests.waiting import wait_until

from headrace.cli.dashboard_panels import DASHBOARDS
from headrace.cli.dashboards import dashboard_json
from headrace.dev_cluster.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.long, NEEDS_CHROMIUM, pytest.mark.timeout(1_500)]
IS_TAKEN = os.environ.get("HEADRACE_GOLDEN") == "write"
LOAD_S, SHOWN_S = (460, 150) if IS_TAKEN else (40, 20)
"""By Prometheus' clock. Rates are those of five minutes: before that, all pictures would rise."""
DRAW = Path(__file__).with_name("dashboard.js").read_text()
NO_DATA = {
    "Free disk": "brokers of a cluster store nothing on disks of their own",
    "Damaged copies": "needs damage on a bookie's disk: tests/cluster/test_replication.py",
}
"""Why panels are empty. Others may show zeros: what is counted, and did not happen."""


class Prometheus:
    """A server that scrapes the brokers each second."""

    def __init__(self, folder: Path, brokers: Brokers) -> None:
        targets = [
            {"targets": [broker.http], "labels": {"instance": f"broker-{number}"}}
            for number, broker in brokers.by_id.items()
        ]
        job = {"job_name": "headrace", "static_configs": targets}
        settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
        folder.mkdir()
        (folder / "prometheus.yml").write_text(json.dumps(settings))
        address = f"127.0.0.1:{free_ports(1)}"
        self._url = f"http://{address}/api/v1/"
        command = [tool("prometheus"), f"--config.file={folder}/prometheus.yml"]
        command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, path: str, **query: object) -> Any:
        url = f"{self._url}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=120) as answer:
            return json.load(answer)["data"]["result"]

    def now(self) -> int:
        """When it has last heard from both brokers; 0: not yet."""
        found = []
        with suppress(OSError):  # before it listens
            found = self.ask("query", query="min(timestamp(up)) and count(up == 1) == 2")
        return int(float(found[0]["value"][1])) if found else 0

    def series(self, target: dict[str, str], times: list[int]) -> list[tuple[str, list[Any]]]:
        """(legend, value or None at each time) of a panel's query."""
        text = re.sub(r"\$\w+", ".*", target["expr"])
        found = self.ask("query_range", query=text, start=times[0], end=times[-1], step=1)
        result = []
        for one in found:
            values = {int(at): float(value) for at, value in one["values"]}
            numbers = [values.get(at) for at in times]
            name = re.sub(
                r"{{(\w+)}}", lambda word, of=one: of["metric"].get(word[1], ""),
                target["legendFormat"],
            )  # fmt: skip
            result.append((name, [None if n is None or math.isnan(n) else n for n in numbers]))
        return [one for one in result if set(one[1]) != {None}]


@contextmanager
def running(folder: Path, brokers: Brokers) -> Iterator[Prometheus]:
    prometheus = Prometheus(folder, brokers)
    try:
        yield prometheus
    finally:
        prometheus.process.kill()
        prometheus.process.wait()


def prepare(brokers: Brokers) -> None:
    broker = brokers.by_id[1]
    for topic in ("orders", "payments", "clicks"):
        create_topic(brokers.bootstrap, topic, 4)
    read = {"set": {"headrace.message.attributes": "read"}}
    ask(broker, "PATCH", "/v1/topics/payments/config", read)
    offload = {"set": {"remote.storage.enable": "true", "segment.bytes": "65536"}}
    ask(broker, "PATCH", "/v1/topics/orders/config", offload)
    group = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "3000",
             "errors.deadletterqueue.topic.name": "payments.dead"}  # fmt: skip
    ask(broker, "PATCH", "/v1/groups/billing/config", {"set": group})
    for one in brokers.by_id.values():
        set_quota(one.address, "importer", "producer_byte_rate", 2_000)


def work(brokers: Brokers, number: int, reader: Consumer) -> None:
    """A second's work of a shop, with what goes wrong in it."""
    broker = brokers.by_id[1 + number % 2]
    delayed = {"headrace-delay": "3000"}
    half = {"headrace-half": "shop", "headrace-message-id": f"half-{number}"}
    kinds: list[dict[str, str]] = [{}] * 20 + [delayed] * 3 + [half] * (number % 5 == 0)
    records = [{"key": str(n), "value": "{}", "headers": [*map(list, headers.items())]}
               for n, headers in enumerate(kinds)]  # fmt: skip
    ask(broker, "POST", "/v1/topics/payments/records", {"records": records})
    queue = "/v1/queues/payments/billing"
    taken = ask(broker, "POST", f"{queue}/receive", {"max": 40, "wait_ms": 1_000})["messages"]
    receipts = [one["receipt"] for one in taken]
    settled: dict[str, Any] = {"ack": receipts[3:], "nack": receipts[:1]}  # the third runs out
    if number % 3 == 0:
        settled["dead_letter"] = receipts[1:2]
    if any(settled.values()):
        ask(broker, "POST", f"{queue}/settle", settled)
    reader.consume(300, 1)


def test_each_panel_has_data_and_the_pictures_show_it(tmp_path: Path, shared_cluster: Any) -> None:
    options = ("--zookeeper-root", f"/{tmp_path.name}", "--objects", f"file://{tmp_path}/objects")
    with ExitStack() as stack:
        brokers = Brokers(tmp_path, shared_cluster.zookeeper.address, 2, *options)
        stack.callback(brokers.close)
        prepare(brokers)
        prometheus = stack.enter_context(running(tmp_path / "prometheus", brokers))
        importer = {"client.id": "importer"}
        loads = [
            Load(brokers.bootstrap, "orders", 4, 200),
            Load(brokers.bootstrap, "clicks", 4, 100, **importer),
        ]
        group = {"group.id": "reports", "auto.offset.reset": "earliest"}
        reader = Consumer({"bootstrap.servers": brokers.bootstrap, **group})
        reader.subscribe(["orders", "clicks"])
        begin, number = wait_until(prometheus.now, 120), 0
        while (end := prometheus.now()) < begin + LOAD_S:
            work(brokers, number, reader)
            number += 1
        times = [*range(end - SHOWN_S, end)]
        reader.close()
        for load in loads:
            load.stop()
        boards = [json.loads(dashboard_json(one)) for one in DASHBOARDS]
        figures = [
            {
                panel["id"]: [one for target in panel["targets"]
                              for one in prometheus.series(target, times)]
                for panel in board["panels"]
            }
            for board in boards
        ]  # fmt: skip
        base = f"http://{brokers.by_id[1].http}"
        browser = stack.enter_context(chromium(base))
        for board, found in zip(boards, figures, strict=True):
            picture(browser, board, times, found)
    empty = {
        panel["title"]
        for board, found in zip(boards, figures, strict=True)
        for panel in board["panels"]
        if not found[panel["id"]]
    }
    assert empty == NO_DATA.keys()


def picture(browser: Any, board: Any, times: list[int], found: Any) -> None:
    size = {"width": 1200, "height": 1000}
    with browser.page(color_scheme="light", viewport=size, timezone_id="UTC") as page:
        page.get_by_text("Live", exact=True).wait_for()
        page.evaluate(DRAW, [board, times, found])
        taken = data_url(page.locator("main").screenshot(), "png")
        page.goto("about:blank")  # the console may not decode pictures
        if IS_TAKEN:
            name = board["uid"].replace("headrace", "dashboard", 1)
            packed = base64.b64decode(page.evaluate(ENCODE, taken))
            (PICTURES / f"{name}.webp").write_bytes(packed)
