"""Run in a network of its own: three nodes, a server in one, everything that an edge can do."""

import ctypes
import socket
import time

from headrace_verify.blackbox.fabric import Edge, Fabric
from headrace_verify.blackbox.link import TO_BROKER, TO_CLIENTS

NET = 0x40000000


def enter(name):
    with open(f"/run/netns/{name}") as file:
        assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), NET) == 0


def hears(end, word):
    end.settimeout(30)
    return end.recv(100) == word


def answers(end, other, word, within_s=30.0):
    end.sendall(word)
    other.settimeout(within_s)
    try:
        return other.recv(100) == word
    except TimeoutError:
        return False


def main():
    with open("/proc/self/ns/net") as home:
        fabric = Fabric()
        host = fabric.add("a")
        fabric.add("b")
        enter("a")
        listener = socket.create_server((host, 9000))
        enter("b")
        near = socket.create_connection((host, 9000), 60)
        far, _ = listener.accept()
        ctypes.CDLL(None).setns(home.fileno(), NET)
    edge = Edge(fabric, "a and b", [("b", "a")])
    assert answers(near, far, b"1")
    assert answers(far, near, b"2")

    edge.cut(TO_BROKER)  # b is the client's side
    assert not answers(near, far, b"3", 1.0)
    edge.heal()
    assert hears(far, b"3"), "what was under way arrives"

    edge.cut(TO_CLIENTS)
    assert not answers(far, near, b"4", 1.0)
    other = Edge(fabric, "the same once more", [("b", "a")])
    other.cut()
    edge.heal()
    assert not answers(near, far, b"5", 1.0), "the other fault still lies over it"
    other.heal()
    assert hears(near, b"4")
    assert hears(far, b"5")

    edge.slow(0.02)
    assert answers(near, far, b"6", 100), "slow is not cut"
    edge.heal()
    edge.reset()
    try:
        time.sleep(0.1)
        near.sendall(b"7")
        broken = near.recv(1) == b""
    except OSError:
        broken = True
    print("broken" if broken else "not broken")


if __name__ == "__main__":
    main()
