"""Which addresses are one client, where clients are limited by their address.

Invariants: no I/O. A host, or a customer of a network, is given a /64 of IPv6, and takes any of its
addresses; of IPv4 it has one. An IPv4 address that is written as IPv6 is the IPv4 address.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

_HOST_BITS: Final = 64
_KNOWN_MAX: Final = 1024
"""Requests of clients that are not authenticated ask; parsing takes several microseconds."""


@lru_cache(_KNOWN_MAX)
def client_address(host: str) -> str:
    """What stands for all addresses of a client: of IPv6 its network, `2001:db8::/64`."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = ipaddress.IPv6Address(int(address) >> _HOST_BITS << _HOST_BITS)
    return f"{network}/{_HOST_BITS}"


def is_local(host: str) -> bool:
    """Whether connections come from this machine, or from no address (simulated ones)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return True
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
