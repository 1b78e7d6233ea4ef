"""The nodes of a black box's cluster come back as an operator would bring them back."""

from __future__ import annotations

from headrace.errors import StorageUnavailable
from headrace_verify.blackbox.nodes import ServerNode

LOST = "java.io.IOException: Recovery log 1795310249540 is missing at /journal/current\n"


class Bookie:
    """Starts unless its mark names a journal that is not there."""

    def __init__(self, folder):
        self.name = "bookie 1"
        self.log = folder / "log"
        self.mark = folder / "ledgers" / "current" / "lastMark"
        self.is_alive = False
        self.failure = ""

    def start(self):
        self.is_alive = True
        with self.log.open("a") as log:
            log.write("Starting component bookie-server.\n" + self.failure)
            log.write("Authentication success on server side\n" * 1_000)

    def kill(self):
        self.is_alive = False


def brought_back(folder, failure, failures):
    bookie = Bookie(folder)
    bookie.mark.parent.mkdir(parents=True)
    bookie.mark.write_text("1795310249540")
    bookie.failure = failure
    left = [failure] * failures

    def wait_ready(server):
        if left and server.mark.exists():
            left.pop()
            raise StorageUnavailable("not ready in time")

    ServerNode(bookie, wait_ready).wait()
    return bookie


def test_a_bookie_that_asks_for_a_journal_it_never_made_starts_without_its_mark(tmp_path):
    bookie = brought_back(tmp_path, LOST, 10_000)
    assert bookie.is_alive
    assert not bookie.mark.exists()


def test_a_bookie_that_cannot_start_for_another_reason_keeps_its_mark(tmp_path):
    bookie = brought_back(tmp_path, "java.net.BindException: Address already in use\n", 2)
    assert bookie.is_alive
    assert bookie.mark.exists()
