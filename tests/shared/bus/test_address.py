"""What a URL says; and one that is wrong is one sentence, which gives no password away."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from shared.bus.address import Address, parse, server_of
from shared.settings import BusSettings, ConfigError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", Address(hosts=(("localhost", 6379),))),
        ("redis://h:1/3", Address(hosts=(("h", 1),), options={"db": 3})),
        ("redis://h?db=3", Address(hosts=(("h", 6379),), options={"db": 3})),
        (
            "redis://ann:p%40ss%3Aw%2Frd@[::1]:7",
            Address(hosts=(("::1", 7),), options={"username": "ann", "password": "p@ss:w/rd"}),
        ),
        ("unix:///a%20b.sock?db=2", Address(options={"path": "/a b.sock", "db": 2})),
        ("unix://:pw@/s", Address(options={"path": "/s", "password": "pw"})),
        (
            "rediss://h?ssl_ca_certs=/ca.pem",
            Address(hosts=(("h", 6379),), is_tls=True, options={"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": True}),
        ),
        (
            "rediss://h?ssl_cert_reqs=none",
            Address(hosts=(("h", 6379),), is_tls=True, options={"ssl_cert_reqs": "none", "ssl_check_hostname": False}),
        ),
        (
            "redis+sentinel://:pw@h1:1,h2/main/2?sentinel_password=spw",
            Address(
                hosts=(("h1", 1), ("h2", 26379)),
                primary="main",
                options={"password": "pw", "db": 2},
                sentinel_options={"password": "spw"},
            ),
        ),
        (
            "redis+cluster://:pw@h1:1,h2",
            Address(hosts=(("h1", 1), ("h2", 6379)), is_cluster=True, options={"password": "pw"}),
        ),
        (
            "rediss+sentinel://h/main?ssl_ca_certs=/ca.pem",
            Address(
                hosts=(("h", 26379),),
                primary="main",
                is_tls=True,
                options={"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": True},
                sentinel_options={"ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": True},
            ),
        ),
    ],
)
def test_what_a_url_says(url: str, expected: Address) -> None:
    assert parse(SecretStr(url), "--redis-url") == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hunter2", "must begin with"),
        ("http://:hunter2@h", "must begin with"),
        ("redis://:hunter2@h:port", "cannot be understood"),
        ("redis://:hunter2@h:99999", "cannot be understood"),
        ("redis://:hunter2@h/zero", "cannot be understood"),
        ("redis://:hunter2@h?db", "cannot be understood"),
        ("redis://:hunter2#@h", "percent-encoded"),
        ("redis://:6379#hunter2@h", "percent-encoded"),
        ("redis://:6379/hunter2@h", "percent-encoded"),
        ("redis://:6379?hunter2=@h", "percent-encoded"),
        ("redis://:hunter2\u2100@h", "percent-encoded"),
        ("redis://:hunter2@a,b", "redis+sentinel://"),
        ("redis+sentinel://:hunter2@h", "the primary's name"),
        ("redis+cluster://:hunter2@h/1", "no database but 0"),
        ("redis://:hunter2@h?protocol=3", "no option 'protocol'"),
        ("redis://:hunter2@h?ssl_ca_certs=/ca.pem", "no option 'ssl_ca_certs' here"),
        ("rediss://:hunter2@h?ssl_cert_reqs=maybe", "ssl_cert_reqs cannot be 'maybe'"),
        ("unix://hunter2/s", "unix:///path"),
    ],
)
def test_a_wrong_url_is_one_sentence_without_its_password(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(SecretStr(url), "--redis-url")
    sentence = str(caught.value)
    assert sentence.startswith("--redis-url: ")
    assert words in sentence
    assert "hunter2" not in sentence
    assert "\n" not in sentence


def test_a_password_is_not_shown() -> None:
    assert "hunter2" not in repr(
        server_of(BusSettings(redis_url="redis+sentinel://:hunter2@h/m?sentinel_password=hunter2"))
    )
