"""Which addresses are the Internet's."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.outgoing.addresses import is_public

PUBLIC = "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.255.255 172.32.0.1 168.63.129.17 2606:4700::1111 2a00::1"
PRIVATE = """0.0.0.0 10.1.2.3 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.255 168.63.129.16 169.254.169.254
172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1
239.255.255.250 240.0.0.1 255.255.255.255 :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 64:ff9b::a9fe:a9fe
64:ff9b:1::1 100::1 2001::1 2001:2::1 2001:db8::1 2002:7f00:1:: 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1
fe80::1%eth0 fec0::1 ff02::1"""

v4 = st.integers(0, 2**32 - 1).map(IPv4Address)
v6 = st.integers(0, 2**128 - 1).map(IPv6Address)


@pytest.mark.parametrize("text", PUBLIC.split())
def test_an_address_of_the_internet_is_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", PRIVATE.split())
def test_an_address_that_is_somebody_s_own_is_not(text: str) -> None:
    assert not is_public(ip_address(text))


@given(v4 | v6 | st.integers(0, 2**125 - 1).map(lambda low: IPv6Address((1 << 125) | low)))
def test_what_the_standard_library_calls_special_is_never_public(address: IPv4Address | IPv6Address) -> None:
    special = address.is_private or address.is_multicast or address.is_reserved or address.is_unspecified
    assert not (is_public(address) and (special or not address.is_global))


@given(v4)
def test_an_ipv4_address_is_not_made_public_by_other_clothes(address: IPv4Address) -> None:
    number = int(address)
    dressed = [
        number,  # the old compatible form
        0xFFFF << 32 | number,  # mapped
        0xFFFF << 48 | number,  # translated
        0x64FF9B << 96 | number,  # NAT64
        0x2002 << 112 | number << 80,  # 6to4
        0x20010000 << 96 | (number ^ 0xFFFFFFFF),  # Teredo
    ]
    assert not any(is_public(IPv6Address(form)) for form in dressed)
