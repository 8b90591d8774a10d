"""Which addresses may be reached: the Internet's on ports of the web, and what the operator allowed."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from api.outgoing.addresses import Address, Network, is_public, is_within

PORTS = (80, 443)
"""Of hosts that are not allowed by name or network: on others listens what never expected to be spoken to by HTTP."""


class Guard:
    """Makes sockets for addresses that may be reached, and for no others."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed

    def open_socket(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket for one answer of `getaddrinfo`; PermissionError, an address that cannot be connected to."""
        family, kind, protocol, _, (host, port, *_) = address
        if not self.may_reach(ip_address(host), port):
            raise PermissionError(f"{host} port {port} may not be reached")
        return socket.socket(family, kind, protocol)

    def may_reach(self, address: Address, port: int) -> bool:
        return is_within(address, self._allowed) or (is_public(address) and port in PORTS)


def network_of(text: str) -> Network | None:
    """None: it is a name."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
