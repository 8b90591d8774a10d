"""Which IP addresses are the open Internet's, and which belong to a machine, a network or an operator.

Pure. The tables are IANA's registries of special-purpose addresses (RFC 6890 and what has been added since), read
strictly: what the registries call reachable for one protocol's sake only is refused too. Python's own `is_global` is
not used, since it changed from one release to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

INTERNET_6 = IPv6Network("2000::/3")
"""All that is handed out. Outside lie loopback, ULA, link-local, multicast, and IPv4 in other clothes: mapped
(`::ffff:0:0/96`) and NAT64 (`64:ff9b::/96`)."""

SPECIAL: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT, and a cloud's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # a public number that a cloud answers inside each machine
        "169.254.0.0/16",  # link-local: most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
        "2001::/23",  # Teredo, ORCHID, benchmarks
        "2001:db8::/32",
        "2002::/16",  # 6to4: an IPv4 address within
        "3fff::/20",  # documentation
    )
)


def is_public(address: Address) -> bool:
    """Whether it can only be somebody's on the Internet."""
    if isinstance(address, IPv6Address) and address not in INTERNET_6:
        return False
    return not is_within(address, SPECIAL)


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)
