"""`headrace cluster`: the command group, and `dev`, which runs ZooKeeper and bookies for
development.

Invariants: `dev` starts and stops servers, and prints the next commands; `headrace.dev_cluster`
knows how to run them. The other commands are in `cluster_admin`.
"""

from __future__ import annotations

import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import click

from headrace.cli.cluster_admin import drain, move, status, verify
from headrace.cli.cluster_backup import backup, restore
from headrace.cli.cluster_history import history
from headrace.cli.cluster_looks import brokers, lacking, moves
from headrace.cli.cluster_repair import repair
from headrace.cli.failures import CommandFailed
from headrace.cli.output import print_json, say, tell
from headrace.cli.parameters import CommandGroup

_WATCH_S = 1.0
_FAILURES_MAX = 30
"""Consecutive restarts after which a server is given up."""


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Manage a cluster on ZooKeeper and BookKeeper, or run a development cluster."""


_COMMANDS = (
    *(status, brokers, history, moves, lacking),
    *(drain, move, verify, repair, backup, restore),
)
for _command in _COMMANDS:
    cluster.add_command(_command)


@cluster.command()
@click.option(
    "--bookies",
    "bookie_count",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="Number of bookies.",
)
@click.option(
    "--zookeepers",
    "zookeeper_count",
    type=click.Choice(["1", "3", "5"]),
    default="1",
    show_default=True,
    help="Number of ZooKeeper servers; an ensemble serves while more than half of them are up.",
)
@click.option(
    "--auto-recovery/--no-auto-recovery",
    default=True,
    show_default=True,
    help="Run BookKeeper's autorecovery, which re-replicates the data of lost bookies.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Directory for their data. Default: a temporary directory, deleted at the end.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as JSON.")
def dev(
    bookie_count: int,
    zookeeper_count: str,
    auto_recovery: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Run Apache ZooKeeper and Apache BookKeeper's bookies until Ctrl-C.

    They listen on loopback only and share this machine's disk: use them for development, not for
    important data. The first start downloads 30 MB of jars.

    \b
    Examples:
      headrace cluster dev
      headrace cluster dev --bookies 4 --zookeepers 3 --folder ./cluster
    """
    from headrace.dev_cluster.cluster import DevCluster
    from headrace.dev_cluster.settings import ClusterOptions

    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with ExitStack() as stack:
        if folder is None:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-cluster-"))
            folder = Path(name)
        options = ClusterOptions(
            bookie_count=bookie_count,
            zookeeper_count=int(zookeeper_count),
            auto_recovery=auto_recovery,
        )
        if not as_json:
            say(f"starting ZooKeeper and {bookie_count} bookies in {folder} ...")
        progress = None if as_json else say
        running = stack.enter_context(DevCluster(folder.resolve(), options, on_progress=progress))
        bookies = [bookie.address for bookie in running.bookies]
        zookeepers = running.zookeeper_addresses
        if as_json:
            print_json({"ready": True, "zookeeper": zookeepers, "bookies": bookies})
        else:
            tell(f"ZooKeeper: {zookeepers}\nbookies:   {', '.join(bookies)}")
            tell(
                "\nTo start a broker (each needs its own id and ports):\n"
                f"  headrace serve --zookeeper {zookeepers} --broker-id 1"
                " --kafka 127.0.0.1:9092\n\nCtrl-C stops everything."
            )
        failures = 0
        while not stop.wait(_WATCH_S):
            ended = running.revive()
            failures = failures + 1 if ended else 0
            for server in ended:
                tell(f"{server.name} exited and is being restarted: {server.log}", err=True)
            if failures > _FAILURES_MAX:
                raise CommandFailed(
                    f"{ended[0].name} keeps exiting", f"See its log, {ended[0].log}"
                )
        if not as_json:
            say("stopping ...")
