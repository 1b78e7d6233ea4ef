"""`headrace health`: whether brokers are alive and ready, and if not, why.

Invariants: changes nothing, and sends no request that loads data. Alive means that the process
answers; ready, that clients are served and what they send is stored. Exit codes are for probes: a
broker that heals by itself is not reported as failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from headrace.cli.failures import FAILED, UNREACHABLE, CommandFailed
from headrace.cli.output import AS_JSON, print_json, tell
from headrace.cli.web import HTTP as HTTP_OPTION
from headrace.cli.web import Web, http_address, is_on_loopback, nearest, web_address
from headrace.metadata.endpoints import HTTP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli.session import CliSession

ALIVE, READY = "/healthz", "/readyz"
_DISK_FULL: Final = {
    "what": "disk",
    "reason": "the disk is full, so records are refused: delete topics, shorten their retention, or"
    " enlarge the disk",
    "is_passing": False,
}


class Probe(NamedTuple):
    """One broker's paths for probes, at its HTTP or admin address."""

    web: Web
    address: str
    broker: int | None = None


@click.command(
    epilog="Examples:\n\n  headrace health\n\n  headrace health --live --http 127.0.0.1:9181"
    "   # a liveness probe\n\n  headrace health --cluster --json"
)
@click.option("--live", is_flag=True, help="Only whether the process responds.")
@click.option("--cluster", "is_cluster", is_flag=True, help="All live brokers of the cluster.")
@HTTP_OPTION
@AS_JSON
@click.pass_obj
def health(session: CliSession, live: bool, is_cluster: bool, as_json: bool) -> None:
    """Show whether a broker, or each broker of a cluster, is healthy.

    Exit code 0: ready, or with --live, alive. 1: not ready, or something is not served and needs
    help; each problem is listed with its reason and the next step. 4: no broker responds.
    """
    found = [_examined(probe, live=live) for probe in _probes(session, is_cluster=is_cluster)]
    is_well = all(one["ok"] for one in found)
    if as_json:
        print_json({"ok": is_well, "brokers": found})
    else:
        for one in found:
            for line in _lines(one):
                tell(line)
    if not is_well:
        is_silent = all(not one["alive"] for one in found)
        failed = sum(not one["ok"] for one in found)
        raise CommandFailed(
            f"{failed} of {len(found)} brokers are not healthy",
            "" if as_json else "Follow the next step of each problem above",
            UNREACHABLE if is_silent else FAILED,
        )


def _probes(session: CliSession, *, is_cluster: bool) -> Iterator[Probe]:
    """Raises CommandFailed if no broker tells which others there are."""
    if not is_cluster:
        yield Probe(Web(session), http_address(session))
        return
    asked = http_address(session)
    answer = Web(session).ask("GET", "/v1/brokers")
    for broker in answer["brokers"]:
        http = (one for one in broker["endpoints"] if one["face"] == HTTP)
        addresses = [web_address(one["address"], one["security"]) for one in http]
        if not addresses:
            continue
        address = nearest(addresses, is_local=False)
        if broker["id"] == answer["broker"] and is_on_loopback(asked):
            address = asked
        yield Probe(Web(session, address), address, broker["id"])


def _examined(probe: Probe, *, live: bool) -> dict[str, Any]:
    """The state of one broker."""
    found: dict[str, Any] = {"http": probe.address, "alive": False, "ok": False, "problems": []}
    if probe.broker is not None:
        found["broker"] = probe.broker
    try:
        status, answer = probe.web.probe(ALIVE if live else READY)
    except CommandFailed as error:
        found["problems"] = [{"what": "broker", "reason": error.message, "is_passing": False}]
        return found
    if live:
        found["alive"] = found["ok"] = status == 200
        return found
    problems = list(answer.get("problems", []))
    if answer.get("disk_full"):
        problems.append(_DISK_FULL)
    if "reason" in answer:
        problems.append({"what": "storage", "reason": answer["reason"], "is_passing": False})
    found["alive"], found["ready"] = True, status == 200
    if not found["ready"] and not problems:
        reason = "it is starting or stopping, or does not say more to this user: see its log"
        problems.append({"what": "broker", "reason": reason, "is_passing": False})
    found["problems"] = problems
    found["ok"] = found["ready"] and all(one.get("is_passing") for one in problems)
    return found


def _lines(found: dict[str, Any]) -> Iterator[str]:
    name = f"broker {found['broker']}" if "broker" in found else "the broker"
    if not found["alive"]:
        state = "does not respond"
    elif found.get("ready", True):
        state = "is ready" if "ready" in found else "is alive"
        state += ", with problems" if found["problems"] else ""
    else:
        state = "is not ready"
    yield f"{name} at {found['http']} {state}"
    for one in found["problems"]:
        passing = " (passes by itself)" if one.get("is_passing") else ""
        yield f"  {one['what']}: {one['reason']}{passing}"
