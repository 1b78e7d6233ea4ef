"""The options by which a broker or a command finds its cluster.

Rules of the room: options and their checks; what a cluster is, others know.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.broker.broker_config import BrokerConfig
from headrace.cli.failures import CommandFailed
from headrace.cli.parameters import QuorumType
from headrace.errors import RequestInvalid
from headrace.runtime.tls import TlsFiles, client_context
from headrace.server.settings import ClusterSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _Option = Callable[[Callable[..., Any]], Callable[..., Any]]

CREDENTIAL = click.option(
    "--zookeeper-credential-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    envvar="HEADRACE_ZOOKEEPER_CREDENTIAL_FILE",
    help="A file with USER:PASSWORD for ZooKeeper (digest). The environment may hold that, as"
    " HEADRACE_ZOOKEEPER_CREDENTIAL. What is made is then closed to others: bookies need the same.",
)
"""Never the credential itself: everybody on the machine sees what a command was called with."""
CREDENTIAL_VARIABLE = "HEADRACE_ZOOKEEPER_CREDENTIAL"

_OPTIONS = (
    click.option(
        "--zookeeper",
        metavar="HOST:PORT,...",
        default=None,
        envvar="HEADRACE_ZOOKEEPER",
        help="Join the cluster that meets there. Records are kept in Apache BookKeeper, whose"
        " bookies ZooKeeper knows, and nothing in --data-dir. See `headrace cluster dev`.",
    ),
    click.option(
        "--zookeeper-root",
        metavar="PATH",
        default="/headrace",
        show_default=True,
        envvar="HEADRACE_ZOOKEEPER_ROOT",
        help="With --zookeeper: where the cluster keeps its facts. Another path, another cluster.",
    ),
    CREDENTIAL,
    click.option(
        "--broker-id",
        type=click.IntRange(0, 2**31 - 1),
        default=0,
        show_default=True,
        envvar="HEADRACE_BROKER_ID",
        help="With --zookeeper: which broker of the cluster this is; each has its own.",
    ),
    click.option(
        "--rack",
        default=None,
        envvar="HEADRACE_RACK",
        help="With --zookeeper: where this broker stands, for clients that ask.",
    ),
    click.option(
        "--session-timeout-ms",
        type=click.IntRange(500),
        default=6_000,
        show_default=True,
        envvar="HEADRACE_SESSION_TIMEOUT_MS",
        help="With --zookeeper: how long after its last sign of life others take this broker's"
        " partitions over.",
    ),
    click.option(
        "--quorum",
        type=QuorumType(),
        default="3,3,2",
        show_default=True,
        envvar="HEADRACE_QUORUM",
        help="With --zookeeper: of a new ledger, the bookies it is spread over, those that get each"
        " entry, and how many of these must have synced it.",
    ),
)

_PEM = click.Path(exists=True, dir_okay=False, path_type=Path)
_TLS_OPTIONS = (
    click.option(
        "--zookeeper-tls",
        is_flag=True,
        envvar="HEADRACE_ZOOKEEPER_TLS",
        help="Speak TLS to ZooKeeper: --zookeeper names its secure ports. Needs --cluster-ca.",
    ),
    click.option(
        "--bookie-tls",
        is_flag=True,
        envvar="HEADRACE_BOOKIE_TLS",
        help="Speak TLS to bookies, at the ports they have. Needs --cluster-ca.",
    ),
    click.option(
        "--cluster-ca",
        type=_PEM,
        default=None,
        envvar="HEADRACE_CLUSTER_CA",
        help="A file with the authorities that sign the certificates of ZooKeeper and bookies.",
    ),
    click.option(
        "--cluster-cert",
        type=_PEM,
        default=None,
        envvar="HEADRACE_CLUSTER_CERT",
        help="A file with the certificate that this process shows to ZooKeeper and bookies.",
    ),
    click.option(
        "--cluster-key",
        type=_PEM,
        default=None,
        envvar="HEADRACE_CLUSTER_KEY",
        help="A file with its key, without a password. Default: in the file of --cluster-cert.",
    ),
)


def _with(options: Sequence[_Option], command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options; its help shows them in their order."""
    for option in reversed(options):
        command = option(command)
    return command


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options about TLS within a cluster; it gets `tls`, to be used by
    `with_tls`."""

    @wraps(command)
    def told(
        zookeeper_tls: bool,
        bookie_tls: bool,
        cluster_ca: Path | None,
        cluster_cert: Path | None,
        cluster_key: Path | None,
        **more: Any,
    ) -> None:
        files = None if cluster_ca is None else TlsFiles(cluster_ca, cluster_cert, cluster_key)
        if files is None and (zookeeper_tls or bookie_tls):
            raise CommandFailed(
                "TLS to a server that anybody could be is of no use: name the authority that signs"
                " the servers' certificates with --cluster-ca"
            )
        if cluster_key is not None and cluster_cert is None:
            raise CommandFailed("--cluster-key goes with the certificate of --cluster-cert")
        command(tls=(files, zookeeper_tls, bookie_tls), **more)

    return _with(_TLS_OPTIONS, told)


def with_tls(
    settings: ClusterSettings | None, tls: tuple[TlsFiles | None, bool, bool]
) -> ClusterSettings | None:
    """The settings with what `tls_options` gave. Raises CommandFailed on files of no use."""
    files, is_zookeeper, is_bookie = tls
    if settings is None or files is None:
        return settings
    try:
        client_context(files)  # now, while somebody is looking
    except RequestInvalid as error:
        raise CommandFailed(str(error)) from error
    return replace(settings, tls=files, is_zookeeper_tls=is_zookeeper, is_bookie_tls=is_bookie)


_DEFAULTS = BrokerConfig()
_BALANCE_OPTIONS = (
    click.option(
        "--balance/--no-balance",
        default=True,
        show_default=True,
        envvar="HEADRACE_BALANCE",
        help="With --zookeeper: move partitions away from a broker that carries much more than the"
        " others. Say the same to all brokers: whichever is to decide does as it was told.",
    ),
    click.option(
        "--balance-cpu-percent",
        type=click.IntRange(0),
        default=_DEFAULTS.balance_cpu_percent_min,
        show_default=True,
        envvar="HEADRACE_BALANCE_CPU_PERCENT",
        help="With --zookeeper: a broker that uses less of a core keeps what it has.",
    ),
    click.option(
        "--balance-interval-ms",
        type=click.IntRange(0),
        default=_DEFAULTS.balance_interval_ms,
        hidden=True,
    ),
    click.option(
        "--sweep-interval-ms",
        type=click.IntRange(100),
        default=_DEFAULTS.sweep_interval_ms,
        hidden=True,
    ),
    click.option(
        "--sweep-grace-ms",
        type=click.IntRange(100),
        default=_DEFAULTS.sweep_grace_ms,
        hidden=True,
    ),
)


def balance_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options about what one broker does for all, moves by load and the sweep;
    it gets `balance`, a part of BrokerConfig."""

    @wraps(command)
    def told(
        balance: bool,
        balance_cpu_percent: int,
        balance_interval_ms: int,
        sweep_interval_ms: int,
        sweep_grace_ms: int,
        **more: Any,
    ) -> None:
        config = {
            "is_balancing": balance,
            "balance_cpu_percent_min": balance_cpu_percent,
            "balance_interval_ms": balance_interval_ms,
            "sweep_interval_ms": sweep_interval_ms,
            "sweep_grace_ms": sweep_grace_ms,
        }
        command(balance=config, **more)

    return _with(_BALANCE_OPTIONS, told)


CLUSTER_NAMES = (
    "zookeeper", "zookeeper-root", "zookeeper-credential-file", "broker-id", "rack",
    "session-timeout-ms", "quorum", "balance", "balance-cpu-percent",
    "zookeeper-tls", "bookie-tls", "cluster-ca", "cluster-cert", "cluster-key",
)  # fmt: skip
"""What `[cluster]` in a file may hold (`config_file`): the names of the options above."""


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that join a cluster."""
    return _with(_OPTIONS, command)


def cluster_settings(
    zookeeper: str | None,
    root: str,
    session_timeout_ms: int,
    quorum: tuple[int, int, int],
    credential_file: Path | None,
) -> ClusterSettings | None:
    """What the options say; None without `--zookeeper`. Raises CommandFailed."""
    if zookeeper is None:
        return None
    if "@" in zookeeper:
        # Not said again: what stands before the sign is a secret, most likely.
        raise CommandFailed(
            "--zookeeper names servers alone, and what was given holds an @: credentials belong in"
            " a file (--zookeeper-credential-file), since every listing of processes shows options"
        )
    if "/" in zookeeper:
        raise CommandFailed(
            f"--zookeeper {zookeeper!r}: the servers alone; a path goes to --zookeeper-root"
        )
    if not re.fullmatch(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+", root):
        raise CommandFailed(f"--zookeeper-root {root!r} is no path of ZooKeeper: write /headrace")
    ensemble, write_quorum, ack_quorum = quorum
    return ClusterSettings(
        zookeeper,
        session_timeout_ms,
        root,
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        credential=_credential(credential_file),
    )


def _credential(path: Path | None) -> str | None:
    """`user:password` from the file or the environment. Raises CommandFailed, without it."""
    where = str(path) if path is not None else CREDENTIAL_VARIABLE
    try:
        text = os.environ.get(CREDENTIAL_VARIABLE) if path is None else path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{where} cannot be read: {type(error).__name__}") from error
    if text is None:
        return None
    if not re.fullmatch(r"[^:\s]+:\S+", text):
        raise CommandFailed(f"{where} holds no credential of the form USER:PASSWORD")
    return text
