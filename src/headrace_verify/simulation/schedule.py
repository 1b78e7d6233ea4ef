"""The faults of a simulated run: an explicit list, drawn in advance with separate random numbers.

Invariants: pure. A fault can be removed without changing the others, which shrinking relies on.
Each seed leaves out a random half of the kinds (swarm testing), so that the remaining ones coincide
more often. Every fault ends; what stays broken permanently is drawn separately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random  # noqa: TID251 - a type

FIRST_AT_S = 6.0
"""The cluster has started, and clients are at work."""
GAP_S = 9.0
"""Mean time between the starts of two faults."""
DAY_MS = 86_400_000

BROKER_FAULTS = ("crash", "power", "stop", "pause")
FREEZE_FAULTS = ("freeze",)
"""Like `pause`, in the middle of the broker's work."""
SESSION_FAULTS = ("expire", "drop-session", "cut-session", "cut-session-half")
SERVER_FAULTS = (
    "zookeeper-crash",
    "zookeeper-power",
    "zookeeper-pause",
    "cut-server",
    "zookeeper-alone",
)
"""Affects one of ZooKeeper's servers (`alone`: partitioned from the others), or a broker's link to
it."""
SHUN_FAULTS = ("shun", "shun-pause", "shun-cut")
"""A broker's address resets and refuses the connections of the other brokers, and of nobody else;
at the same time it may be stopped, or cut off from ZooKeeper: for less than its session, mostly."""
LINK_FAULTS = ("cut-broker", "cut-bookie", "cut-bookie-half", "cut-client", "slow", "reset")
BOOKIE_FAULTS = ("bookie-crash", "bookie-power", "bookie-pause", "bookie-slow")
OTHER_FAULTS = ("clock", "pause-client")
FACT_FAULTS = ("lose-chain",)
"""Metadata that is deleted from outside, and rebuilt by an operator when the fault is healed."""
DISK_FAULTS = ("disk-slow", "disk-full", "disk-sync")
CLUSTER_KINDS = (
    *BROKER_FAULTS,
    *SESSION_FAULTS,
    *LINK_FAULTS,
    *BOOKIE_FAULTS,
    *OTHER_FAULTS,
    *FREEZE_FAULTS,
    *FACT_FAULTS,
    *SERVER_FAULTS,
    *SHUN_FAULTS,
)
LONE_KINDS = (*BROKER_FAULTS, "cut-client", "slow", "reset", *OTHER_FAULTS, *DISK_FAULTS)
"""For a standalone broker."""
KINDS = (*CLUSTER_KINDS, *DISK_FAULTS)
_LASTS_MAX_S = {
    "crash": 8.0,
    "power": 15.0,
    "stop": 8.0,
    "pause": 15.0,
    "freeze": 12.0,
    "expire": 2.0,
    "cut-session": 20.0,
    "cut-session-half": 20.0,
    "zookeeper-crash": 10.0,
    "zookeeper-power": 20.0,
    "zookeeper-pause": 15.0,
    "cut-server": 20.0,
    "zookeeper-alone": 6.0,
    "cut-broker": 15.0,
    "cut-bookie": 15.0,
    "cut-bookie-half": 15.0,
    "cut-client": 15.0,
    "slow": 20.0,
    "bookie-crash": 10.0,
    "bookie-power": 20.0,
    "bookie-pause": 12.0,
    "bookie-slow": 15.0,
    "lose-chain": 20.0,
    "disk-slow": 15.0,
    "disk-full": 10.0,
    "disk-sync": 10.0,
    "clock": 40.0,
    "pause-client": 20.0,
    "shun": 15.0,
    "shun-pause": 6.0,
    "shun-cut": 6.0,
}

_LASTS_MIN_S = {"expire": 6.5, "freeze": 4.0, "zookeeper-alone": 5.0}
"""About the session time-out, or longer."""


class Fault(NamedTuple):
    """One fault: when it begins, how long it lasts, its target, its strength."""

    at_s: float
    kind: str
    lasts_s: float
    target: int
    """The broker, bookie or client, modulo their number."""
    other: int
    """The other end of a link, likewise."""
    strength: float
    """0 to 1: the size of a delay or a jump; above 0.5 a one-way cut affects the reverse
    direction."""

    @property
    def ends_s(self) -> float:
        """When it is healed."""
        return self.at_s + self.lasts_s


def draw_schedule(seed: int, seconds: float, kinds: Sequence[str] = CLUSTER_KINDS) -> list[Fault]:
    """The faults of a run, in the order of their starts; all begin before its end."""
    rng = seeded(f"simulation {seed} faults")
    chosen = [kind for kind in kinds if rng.random() < 0.5] or [rng.choice(list(kinds))]
    gap_s = GAP_S * rng.choice((0.3, 1.0, 1.0, 2.0))
    faults: list[Fault] = []
    at_s = FIRST_AT_S
    while True:
        at_s += rng.expovariate(1 / gap_s)
        if at_s >= seconds:
            return faults
        faults.append(_draw(rng, at_s, rng.choice(chosen)))


def _draw(rng: Random, at_s: float, kind: str) -> Fault:
    most_s = _LASTS_MAX_S.get(kind, 0.0)
    # Short and long ones alike: what matters is whether they outlast a time-out.
    lasts_s = most_s * rng.random() ** 2 + _LASTS_MIN_S.get(kind, 0.0)
    return Fault(
        round(at_s, 4),
        kind,
        round(lasts_s, 4),
        rng.randrange(1_000),
        rng.randrange(1_000),
        round(rng.random(), 4),
    )
