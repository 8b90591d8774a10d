"""The socket that the API listens on, or one sentence why there is none. Knows no HTTP."""

from __future__ import annotations

import errno
import socket

from shared.settings import ConfigError


def open_listener(host: str, port: int) -> socket.socket:
    """Bound, so that its port is known; 0 takes a free one. Raises ConfigError, which names the flag at fault."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, UnicodeError) as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {_reason(error)}") from None
    return listener


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "that is no name of a host (see --host)"
    is_of_the_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
    return f"{error.strerror or error} (see {'--host' if is_of_the_host else '--port'})"
