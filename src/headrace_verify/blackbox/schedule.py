"""The faults of a run: an explicit list, drawn from the seed before anything starts.

Invariants: pure. The list uses its own random numbers, so a fault can be removed without changing
the others, and the same seed gives the same list. Faults that a machine does not support are
skipped when they are due, and reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type

ONE_BY_ONE, OVER, CLIENTS = "one by one", "over", "clients"
"""The three chains, each executed by its own thread."""
NODE_FAULTS = ("kill", "kill-in-start", "stop", "pause", "disk", "clock")
NETWORK_FAULTS = ("cut", "cut-to-broker", "cut-to-clients", "delay", "reset")
MANY_FAULTS = ("kill-many", "pause-many")
"""Several nodes at once, if there are several."""
BOOKIE_FAULTS = ("journal", "slow-bookie")
"""Of bookies: no space for the journal; responses that exceed time-outs."""
ENSEMBLE_FAULTS = ("kill-leader", "zookeeper-disk")
"""Of ZooKeeper: its leader is killed; one server has no space for its log, and exits."""
ROLLING_FAULTS = ("roll-brokers", "roll-bookies")
"""All nodes of a kind are restarted one after the other, as in an upgrade."""
CLIENT_FAULTS = ("pause-client", "kill-client")
KINDS = (*NODE_FAULTS, *NETWORK_FAULTS, *CLIENT_FAULTS)
SEVERAL_KINDS = (*KINDS, *MANY_FAULTS)
CLUSTER_KINDS = (*SEVERAL_KINDS, *BOOKIE_FAULTS, *ENSEMBLE_FAULTS, *ROLLING_FAULTS)
CHAINS = {
    ONE_BY_ONE: (
        *NODE_FAULTS,
        *NETWORK_FAULTS,
        *MANY_FAULTS,
        *BOOKIE_FAULTS,
        *ENSEMBLE_FAULTS,
        *ROLLING_FAULTS,
    ),
    OVER: NETWORK_FAULTS,
    CLIENTS: CLIENT_FAULTS,
}
_PAUSE_MAX_S = {ONE_BY_ONE: 2.5, OVER: 40.0, CLIENTS: 6.0}
_WEIGHTS = {"kill": 4, "pause": 2, "kill-in-start": 2}
FIRST_AT_S = 0.5
CALM_S = 2.0
"""Between two faults of one chain, from healing to the next."""


class Fault(NamedTuple):
    """One fault: when it begins, how long it lasts, and its strength."""

    at_s: float
    kind: str
    lasts_s: float
    target: int
    """The node or client, modulo their number."""
    strength: float
    """0 to 1: the size of a delay, a jump, a limit; above 0.5 a cut affects all connections, else
    half."""
    chain: str

    @property
    def ends_s(self) -> float:
        """When it is healed."""
        return self.at_s + self.lasts_s


def draw_schedule(seed: int, seconds: float, kinds: tuple[str, ...] = KINDS) -> list[Fault]:
    """The faults of a run of `seconds`, in the order of their starts; all heal before its end.

    One chain of consecutive node and network faults; a sparser one of network faults and one of
    client faults overlap it.
    """
    faults: list[Fault] = []
    for name, group in CHAINS.items():
        rng = seeded(f"blackbox {seed} {name}")
        # A seed leaves out a few kinds (swarm testing): the others coincide more often.
        chosen = [kind for kind in group if kind in kinds and rng.random() < 0.8]
        if name == ONE_BY_ONE and "kill" in kinds and "kill" not in chosen:
            chosen.append("kill")
        if not chosen:
            chosen = [kind for kind in group if kind in kinds]
        if chosen:
            faults += _of_group(rng, chosen, seconds, name)
    return sorted(faults)


def _of_group(rng: Random, kinds: list[str], seconds: float, group: str) -> list[Fault]:
    found: list[Fault] = []
    pause_max_s = _PAUSE_MAX_S[group]
    at_s = FIRST_AT_S + rng.random() * pause_max_s
    weights = [_WEIGHTS.get(kind, 1) for kind in kinds]
    while True:
        (kind,) = rng.choices(kinds, weights)
        if not found and group == ONE_BY_ONE and "kill" in kinds:
            kind = "kill"  # however short the run is
        lasts_s = _length(rng, kind, seconds)
        target, strength = rng.randrange(64), round(rng.random(), 3)
        fault = Fault(round(at_s, 3), kind, lasts_s, target, strength, group)
        if fault.ends_s > seconds:
            return found
        found.append(fault)
        at_s = fault.ends_s + CALM_S + rng.random() * pause_max_s


def _length(rng: Random, kind: str, seconds: float) -> float:
    """Many short ones, few long ones; a fraction of the run at most."""
    longest = min(10.0, seconds / 4)
    if kind == "reset" or kind in ROLLING_FAULTS:
        return 0.0
    if kind in {"kill", "kill-in-start", "stop", "kill-client", "kill-many", "kill-leader"}:
        return round(min(longest, rng.choice((0.0, 0.0, 0.3, 1.5))), 3)
    if kind == "slow-bookie":
        # Its responses must exceed the time-outs of brokers (5 s) and clients (4 s).
        return round(longest * (0.6 + 0.4 * rng.random()), 3)
    length_s: float = 0.1 * 100 ** rng.random()
    return round(min(longest, length_s), 3)
