"""A private network of one run: a namespace per node, a bridge between them, cuts of any pair.

Invariants: uses Linux namespaces and `ip`, and knows nothing of what runs in them. Everything is in
a network and a mount namespace of the run's own process (`run_inside`), so it disappears with the
run, however that ends. Needs root, or a kernel that allows unprivileged user namespaces.

How a cut works: the sender's neighbour table maps the receiver to a MAC address that does not
exist. The packets are sent and dropped, in one direction, without notifying either end, as if lost
on the way; TCP retransmits them after healing. No firewall is needed. A reset is `ss -K` at one
end. A delay is netem's; on a kernel without it, the link is cut intermittently.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from headrace.errors import Fatal
from headrace_verify.blackbox.link import TO_BROKER, TO_CLIENTS
from headrace_verify.real_broker import die_with_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_INSIDE = "HEADRACE_BLACKBOX_NETWORK"
_NETWORK = "10.77.0"
_BRIDGE = "hr0"
_UNUSED_MAC = "02:00:00:00:00:01"
_FIRST_HOST = 11
CLIENTS = "clients"
"""The run's own namespace, in which its clients run."""
_TIMEOUT_S = 20
_STUTTER_OPEN_S = 0.2
"""At least this long, and twice as long as the cut: TCP's backed-off retransmission must hit it."""


def _unshare() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--mount", "--net", "--propagation", "private"]


@cache
def why_not() -> str | None:
    """Why no private network is possible here; None if it is."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "mount") if not shutil.which(tool)]
    if missing:
        return f"{missing[0]} is not installed"
    probe = (
        f"ip link add {_BRIDGE} type bridge && mkdir -p /run/netns && mount -t tmpfs none /run"
        " && mkdir /run/netns && ip netns add probe"
        " && ip link add v1 type veth peer name eth0 netns probe"
    )
    try:
        tried = subprocess.run(  # noqa: S603 - our own command
            [*_unshare(), "sh", "-c", probe],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if tried.returncode == 0 else tried.stderr.strip()[-200:] or "it was refused"


def is_inside() -> bool:
    """Whether this process is already in a private network."""
    return bool(os.environ.get(_INSIDE))


def run_inside(*arguments: str) -> int:
    """Run this Python with these arguments in a private network; returns its exit code."""
    with subprocess.Popen(  # noqa: S603 - our own command
        [*_unshare(), sys.executable, *arguments],
        env=os.environ | {_INSIDE: "1"},
        preexec_fn=die_with_us(),  # noqa: PLW1509 - one call of libc
    ) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return process.wait()


class Fabric:
    """The namespaces and the bridge. Methods are thread-safe."""

    def __init__(self) -> None:
        assert is_inside(), "a fabric must be created in its own namespace"
        self._lock = threading.Lock()
        self._hosts = {CLIENTS: f"{_NETWORK}.1"}
        self._cuts: Counter[tuple[str, str]] = Counter()
        """(from, to) -> number of faults; a link works when it is 0."""
        _run("ip link set lo up")
        _run("mount -t tmpfs none /run")  # only in this mount namespace
        os.makedirs("/run/netns", exist_ok=True)
        _run(f"ip link add {_BRIDGE} type bridge")
        _run(f"ip addr add {_NETWORK}.1/24 dev {_BRIDGE}")
        _run(f"ip link set {_BRIDGE} up")

    def add(self, name: str) -> str:
        """Add a node; returns its address."""
        number = _FIRST_HOST + len(self._hosts)
        host = self._hosts[name] = f"{_NETWORK}.{number}"
        _run(f"ip netns add {name}")
        _run(f"ip link add v{number} type veth peer name eth0 netns {name}")
        _run(f"ip link set v{number} master {_BRIDGE} up")
        _run(f"ip -n {name} addr add {host}/24 dev eth0")
        _run(f"ip -n {name} link set eth0 up")
        _run(f"ip -n {name} link set lo up")
        return host

    def launch(self, name: str) -> tuple[str, ...]:
        """The command prefix that runs a command there."""
        return ("nsenter", f"--net=/run/netns/{name}")

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Block traffic from the first to the second of each pair."""
        self._change(pairs, 1)

    def heal(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Undo one cut of each pair."""
        self._change(pairs, -1)

    def reset(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Reset the connections of each pair at its first end, which notifies the other."""
        for there, here in pairs:
            _run(f"{self._enter(there)} ss -K dst {self._hosts[here]}", may_fail=True)

    def delay(self, name: str, delay_s: float) -> bool:
        """Delay what a node sends; 0 ends it. Returns False if the kernel does not support it."""
        device = f"dev {_BRIDGE if name == CLIENTS else 'eth0'} root"
        _run(f"{self._enter(name)} tc qdisc del {device}", may_fail=True)
        if not delay_s:
            return True
        shape = f"netem delay {delay_s * 1000:.0f}ms"
        return _run(f"{self._enter(name)} tc qdisc add {device} {shape}", may_fail=True)

    def _change(self, pairs: Iterable[tuple[str, str]], by: int) -> None:
        with self._lock:
            for there, here in pairs:
                before = self._cuts[there, here]
                now = self._cuts[there, here] = before + by
                assert now >= 0, "healed more often than cut"
                if bool(before) is bool(now):
                    continue
                device = _BRIDGE if there == CLIENTS else "eth0"
                host = self._hosts[here]
                what = (
                    f"replace {host} lladdr {_UNUSED_MAC} nud permanent" if now else f"del {host}"
                )
                _run(f"{self._enter(there)} ip neigh {what} dev {device}")

    def _enter(self, name: str) -> str:
        return "" if name == CLIENTS else " ".join(self.launch(name))


class Edge:
    """Some pairs of nodes that fail together. Used like a Link."""

    def __init__(self, fabric: Fabric, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        self.name = name
        self._fabric = fabric
        self._pairs = list(pairs)
        self._cut: list[tuple[str, str]] = []
        self._delayed: set[str] = set()
        self._stutter: threading.Thread | None = None
        self._over = threading.Event()
        self._lock = threading.RLock()
        """Two chains of faults may overlap here: the later fault replaces the earlier."""

    def _of(self, *, is_for_all: bool) -> list[tuple[str, str]]:
        return self._pairs if is_for_all else self._pairs[::2]

    def cut(self, *directions: str, is_for_all: bool = True) -> None:
        """Block these directions; for half of the pairs unless for all."""
        with self._lock:
            self.heal()
            chosen = self._of(is_for_all=is_for_all)
            if not directions or TO_BROKER in directions:
                self._cut += chosen
            if not directions or TO_CLIENTS in directions:
                self._cut += [(here, there) for there, here in chosen]
            self._fabric.cut(self._cut)

    def heal(self) -> None:
        """Unblock everything."""
        with self._lock:
            self._over.set()
            if self._stutter is not None:
                self._stutter.join(_TIMEOUT_S)
                self._stutter = None
            self._fabric.heal(self._cut)
            self._cut = []
            for name in self._delayed:
                self._fabric.delay(name, 0.0)
            self._delayed.clear()

    def slow(self, delay_s: float) -> None:
        """Delay every packet by this much; or cut the link for this long, repeatedly."""
        with self._lock:
            self.heal()
            if self._delay(delay_s):
                return
            self._over.clear()
            self._stutter = threading.Thread(target=self._toggle, args=(delay_s,), daemon=True)
            self._stutter.start()

    def _delay(self, delay_s: float) -> bool:
        for name in sorted({there for there, _ in self._pairs}):
            if not self._fabric.delay(name, delay_s):
                return False
            self._delayed.add(name)
        return True

    def _toggle(self, delay_s: float) -> None:
        while not self._over.is_set():
            self._fabric.cut(self._pairs)
            self._over.wait(delay_s)
            self._fabric.heal(self._pairs)
            self._over.wait(max(_STUTTER_OPEN_S, 2 * delay_s))

    def reset(self, *, is_for_all: bool = True) -> None:
        """Reset connections: both ends are notified."""
        self._fabric.reset(self._of(is_for_all=is_for_all))


def _run(command: str, *, may_fail: bool = False) -> bool:
    done = subprocess.run(  # noqa: S603 - our own command
        command.split(), capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    if done.returncode and not may_fail:
        raise Fatal(f"the private network cannot be changed: {command}: {done.stderr.strip()}")
    return done.returncode == 0
