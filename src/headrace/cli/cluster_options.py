"""The options by which a broker or a command finds its cluster.

Invariants: options and their validation only; knows nothing of clusters.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.administration.cluster_settings import ClusterSettings
from headrace.broker.settings.of_clusters import JOINING, TLS
from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.setting_options import CLUSTER_NAMES, setting_option, setting_options
from headrace.errors import RequestInvalid
from headrace.runtime.tls import TlsFiles, client_context
from headrace.storage.bookkeeper.digest_login import check_credential

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = (
    "CLUSTER_NAMES",
    "CREDENTIAL",
    "cluster_options",
    "cluster_settings",
    "tls_of",
    "tls_options",
    "with_tls",
)

CREDENTIAL = setting_option("zookeeper-credential-file")
"""Never the credential itself: every user of the machine can see a process's options."""
CREDENTIAL_VARIABLE = "HEADRACE_ZOOKEEPER_CREDENTIAL"
BOOKIE_CREDENTIAL_VARIABLE = "HEADRACE_BOOKIE_CREDENTIAL"

_TLS_NAMES = tuple(setting.option for setting in TLS)
_NAMES = tuple(setting.option for setting in JOINING)


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about TLS and logins within a cluster to a command; it gets `tls`, for
    `with_tls`."""

    @wraps(command)
    def given(**values: Any) -> None:
        command(tls=tls_of(values), **values)

    return setting_options(_TLS_NAMES)(given)


class Links(NamedTuple):
    """How this process connects to the cluster's servers."""

    tls: TlsFiles | None
    is_zookeeper_tls: bool
    is_bookie_tls: bool
    bookie_credential: Path | None


def tls_of(values: dict[str, Any]) -> Links:
    """Remove the TLS options from a command's values. Raises CommandFailed."""
    ca, cert, key = (values.pop(name) for name in ("cluster_ca", "cluster_cert", "cluster_key"))
    is_zookeeper, is_bookie = values.pop("zookeeper_tls"), values.pop("bookie_tls")
    credential = values.pop("bookie_credential_file")
    files = None if ca is None else TlsFiles(ca, cert, key)
    if files is None and (is_zookeeper or is_bookie):
        raise CommandFailed(
            "TLS needs a trusted CA bundle, otherwise any server would be accepted:"
            " set --cluster-ca"
        )
    if key is not None and cert is None:
        raise CommandFailed("--cluster-key requires --cluster-cert")
    return Links(files, is_zookeeper, is_bookie, credential)


def with_tls(settings: ClusterSettings | None, tls: Links) -> ClusterSettings | None:
    """The settings with the values of `tls_options`. Raises CommandFailed for unusable files."""
    if settings is None:
        return None
    credential = _credential(tls.bookie_credential, BOOKIE_CREDENTIAL_VARIABLE)
    try:  # now, so that the user sees the error
        if tls.tls is not None:
            client_context(tls.tls)
        if credential is not None:
            check_credential(credential)
    except RequestInvalid as error:
        raise CommandFailed(str(error)) from error
    return replace(
        settings,
        tls=tls.tls,
        is_zookeeper_tls=tls.is_zookeeper_tls,
        is_bookie_tls=tls.is_bookie_tls,
        bookie_credential=credential,
    )


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that join a cluster to a command."""
    return setting_options(_NAMES)(command)


def cluster_settings(
    zookeeper: str | None,
    root: str,
    session_timeout_ms: int,
    quorum: tuple[int, int, int],
    credential_file: Path | None,
) -> ClusterSettings | None:
    """Convert the options; None without `--zookeeper`. Raises CommandFailed."""
    if zookeeper is None:
        return None
    if not zookeeper.strip():
        raise CommandFailed(
            "--zookeeper has no value, as of a variable that is not set; nothing was started",
            "Write --zookeeper HOST:PORT,..., or leave it out",
            USAGE,
        )
    if "@" in zookeeper:
        # Not repeated in the message: the part before the @ is probably a secret.
        raise CommandFailed(
            "--zookeeper accepts only server addresses, and the value contains an"
            " @. Put credentials into a file (--zookeeper-credential-file), because"
            " process listings show options"
        )
    if "/" in zookeeper:
        raise CommandFailed(
            f"--zookeeper {zookeeper!r}: the servers alone; a path goes to --zookeeper-root"
        )
    if not re.fullmatch(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+", root):
        raise CommandFailed(
            f"--zookeeper-root {root!r} is not a path of ZooKeeper: write /headrace"
        )
    ensemble, write_quorum, ack_quorum = quorum
    return ClusterSettings(
        zookeeper,
        session_timeout_ms,
        root,
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        credential=_credential(credential_file, CREDENTIAL_VARIABLE),
    )


def _credential(path: Path | None, variable: str) -> str | None:
    """`user:password` from the file or the environment. Raises CommandFailed, without the value."""
    where = str(path) if path is not None else variable
    try:
        text = os.environ.get(variable) if path is None else path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{where} cannot be read: {type(error).__name__}") from error
    if text is None:
        return None
    if not re.fullmatch(r"[^:\s]+:\S+", text):
        raise CommandFailed(f"{where} does not contain a credential of the form USER:PASSWORD")
    return text
