"""Where the server is: what a URL says, taken apart. Pure.

No error of it repeats any of the URL but names of options, since a mistake may put the password anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import SecretStr

from shared.settings import BusSettings, ConfigError

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")

PORT, SENTINEL_PORT = 6379, 26379

_FORMS = (
    "write it as redis://user:password@host:port/db, rediss:// for TLS, unix:///path,"
    " redis+sentinel://user:password@host:port,host:port/name/db or redis+cluster://user:password@host:port,host:port,"
    " with every @ : / ? # of a password percent-encoded"
)


class Host(NamedTuple):
    name: str
    port: int


@dataclass(frozen=True, slots=True)
class Address:
    """The options are redis-py's, keyword arguments of its connections."""

    hosts: tuple[Host, ...] = ()
    """The server, its sentinels, or some nodes of its Cluster; none behind a unix socket."""
    primary: str = ""
    """The name under which the sentinels know it; without sentinels none."""
    is_cluster: bool = False
    is_tls: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Of connections to the sentinels."""

    def at(self, host: Host) -> Address:
        """One node of the Cluster."""
        return replace(self, hosts=(host,), is_cluster=False)


class _Mistake(Exception):
    """Says what is wrong."""


def server_of(settings: BusSettings) -> Address:
    """Raises ConfigError, in one sentence."""
    return parse(settings.redis_url, "--redis-url")


def parse(url: SecretStr, flag: str) -> Address:
    """Raises ConfigError, in one sentence that names the flag."""
    try:
        return _parse(url.get_secret_value())
    except _Mistake as mistake:
        raise ConfigError(f"{flag}: {mistake}") from None
    except ValueError:
        raise ConfigError(f"{flag}: cannot be understood; {_FORMS}") from None


def _parse(url: str) -> Address:
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise _Mistake(f"must begin with one of {', '.join(f'{known}://' for known in SCHEMES)}")
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    if _is_cut_in_its_password(parts):
        raise _Mistake(f"cannot be understood; {_FORMS}")
    return _address(parts, query)


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
            raise _Mistake("a socket's path begins with a slash, as in unix:///path")
        return Address(options={"path": path} | options)
    if kind == "+sentinel":
        primary, _, database = path.strip("/").partition("/")
        if not primary:
            raise _Mistake("needs the primary's name, as in redis+sentinel://host:port,host:port/name")
        theirs = {name.removeprefix("sentinel_"): options.pop(name) for name in _OF_SENTINELS if name in options}
        if is_tls:
            theirs |= {"ssl": True} | {name: options[name] for name in _OF_TLS if name in options}
        options |= _database(database)
        return Address(_hosts(hosts, SENTINEL_PORT), primary, is_tls=is_tls, options=options, sentinel_options=theirs)
    options |= _database(path.strip("/"))
    if kind == "+cluster":
        if options.pop("db", 0):
            raise _Mistake("a Cluster has no database but 0")
        return Address(_hosts(hosts, PORT), is_cluster=True, is_tls=is_tls, options=options)
    if "," in hosts:
        raise _Mistake("several hosts are for redis+sentinel:// and redis+cluster://")
    return Address(_hosts(hosts, PORT), is_tls=is_tls, options=options)


def _hosts(text: str, port: int) -> tuple[Host, ...]:
    parts = [urlsplit(f"//{each}") for each in text.split(",")]
    return tuple(Host(each.hostname or "localhost", port if each.port is None else each.port) for each in parts)


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
            raise _Mistake(f"has no option {name!r} here, only {', '.join(known)}")
        try:
            options[name] = known[name](text)
        except ValueError:
            raise _Mistake(f"{name} cannot be {text!r}") from None
    if is_tls:
        # redis-py leaves it out unless asked; then any certificate of a public CA would do, for whatever host.
        options.setdefault("ssl_check_hostname", options.get("ssl_cert_reqs") != "none")
        if "ssl_certfile" in options:
            options.setdefault("ssl_keyfile", options["ssl_certfile"])
    return options
