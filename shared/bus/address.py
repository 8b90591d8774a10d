"""Where the server is: what `--redis-url` says, taken apart. Pure.

No error of it repeats any of the URL but names of options, since a mistake may put the password anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from shared.settings import ConfigError

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")

PORT, SENTINEL_PORT = 6379, 26379

_FORMS = (
    "write it as redis://user:password@host:port/db, rediss:// for TLS, unix:///path, or"
    " redis+sentinel://user:password@host:port,host:port/name/db, with every @ : / ? # of a password percent-encoded"
)


class Host(NamedTuple):
    name: str
    port: int


@dataclass(frozen=True, slots=True)
class Address:
    """The options are redis-py's, keyword arguments of its connections."""

    hosts: tuple[Host, ...] = ()
    """The server, or its sentinels; none behind a unix socket."""
    primary: str = ""
    """The name under which the sentinels know it; without sentinels none."""
    is_tls: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Of connections to the sentinels."""


def parse(url: str) -> Address:
    """Raises ConfigError, in one sentence."""
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise ConfigError(f"--redis-url: must begin with one of {', '.join(f'{known}://' for known in SCHEMES)}")
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        if _is_cut_in_its_password(parts):
            raise ConfigError(f"--redis-url: cannot be understood; {_FORMS}")
        return _address(parts, query)
    except ValueError:
        raise ConfigError(f"--redis-url: cannot be understood; {_FORMS}") from None


def _is_cut_in_its_password(parts: SplitResult) -> bool:
    return bool(parts.fragment) or "@" in parts.query or (parts.scheme != "unix" and "@" in parts.path)


def _address(parts: SplitResult, query: Mapping[str, str]) -> Address:
    kind, is_tls = parts.scheme.removeprefix("rediss").removeprefix("redis"), parts.scheme.startswith("rediss")
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    options = _given(username=unquote(user), password=unquote(password)) | _options(query, kind, is_tls)
    path = unquote(parts.path)
    if kind == "unix":
        if hosts or not path:
            raise ConfigError("--redis-url: a socket's path begins with a slash, as in unix:///path")
        return Address(options={"path": path} | options)
    if kind == "+sentinel":
        primary, _, database = path.strip("/").partition("/")
        if not primary:
            raise ConfigError("--redis-url: needs the primary's name, as in redis+sentinel://host:port,host:port/name")
        theirs = {name.removeprefix("sentinel_"): options.pop(name) for name in _OF_SENTINELS if name in options}
        if is_tls:
            theirs |= {"ssl": True} | {name: options[name] for name in _OF_TLS if name in options}
        where = tuple(_host(each, SENTINEL_PORT) for each in hosts.split(","))
        return Address(where, primary, is_tls, _database(database) | options, theirs)
    if "," in hosts:
        raise ConfigError("--redis-url: several hosts are for redis+sentinel:// alone")
    return Address((_host(hosts, PORT),), "", is_tls, _database(path.strip("/")) | options)


def _host(text: str, port: int) -> Host:
    parts = urlsplit(f"//{text}")
    return Host(parts.hostname or "localhost", port if parts.port is None else parts.port)


def _database(text: str) -> dict[str, int]:
    return {"db": int(text)} if text else {}


def _given(**options: str) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(text)
    return text == "yes"


def _strictness(text: str) -> str:
    if text not in ("none", "optional", "required"):
        raise ValueError(text)
    return text


_OF_ALL: Mapping[str, Callable[[str], Any]] = {"db": int, "username": str, "password": str}
_OF_TLS: Mapping[str, Callable[[str], Any]] = {
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_check_hostname": _yes_or_no,
    "ssl_cert_reqs": _strictness,
}
_OF_SENTINELS: Mapping[str, Callable[[str], Any]] = {"sentinel_username": str, "sentinel_password": str}


def _options(query: Mapping[str, str], kind: str, is_tls: bool) -> dict[str, Any]:
    known = {**_OF_ALL, **(_OF_TLS if is_tls else {}), **(_OF_SENTINELS if kind == "+sentinel" else {})}
    options: dict[str, Any] = {}
    for name, text in query.items():
        if name not in known:
            raise ConfigError(f"--redis-url: has no option {name!r} here, only {', '.join(known)}")
        try:
            options[name] = known[name](text)
        except ValueError:
            raise ConfigError(f"--redis-url: {name} cannot be {text!r}") from None
    if is_tls:
        # redis-py leaves it out unless asked; then any certificate of a public CA would do, for whatever host.
        options.setdefault("ssl_check_hostname", options.get("ssl_cert_reqs") != "none")
        if "ssl_certfile" in options:
            options.setdefault("ssl_keyfile", options["ssl_certfile"])
    return options
