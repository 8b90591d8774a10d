from __future__ import annotations

import socket

import pytest

from api.port.listener import open_listener
from shared.settings import ConfigError


def test_port_0_takes_a_free_one() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_taken_port_is_said_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refusal:
            open_listener("127.0.0.1", port)
    assert str(refusal.value) == f"cannot listen on 127.0.0.1 port {port}: Address already in use (see --port)"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "a..b", "1:2"])
def test_a_host_that_is_not_here_is_said_with_its_flag(host: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        open_listener(host, 0)
    said = str(refusal.value)
    assert said.startswith(f"cannot listen on {host} port 0: ")
    assert said.endswith(" (see --host)")
    assert "Errno" not in said
