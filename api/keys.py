"""The keys that clients may use, from the settings and from a file, and the tenant that each stands for."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from pydantic import SecretStr
from starlette.datastructures import Headers

from shared.errors import Unauthenticated
from shared.settings import ApiSettings, ConfigError

ANYONE = "default"
"""The one tenant of a server without keys."""


class Keys:
    """Keys, each with the name of its tenant, from which it cannot be told."""

    def __init__(self, keys: Sequence[SecretStr]) -> None:
        secrets = [key.get_secret_value().encode() for key in keys]
        self._tenants = [(key, f"key-{hashlib.sha256(key).hexdigest()[:16]}") for key in secrets]

    def tenant_of(self, headers: Headers) -> str:
        """The tenant of a request. Raises Unauthenticated without exactly one offered key that fits.

        Every key is compared, in constant time, on bytes: neither the time nor an odd character tells anything.
        """
        if not self._tenants:
            return ANYONE
        offered = _offered(headers)
        found = None
        for key, tenant in self._tenants:
            if hmac.compare_digest(key, offered) and found is None:
                found = tenant
        if found is None:
            raise Unauthenticated("Invalid API Key")
        return found


def keys_of(settings: ApiSettings) -> tuple[SecretStr, ...]:
    """All keys, those of the flag first. Raises ConfigError for a file that has none: no key at all would let everybody
    in, which is not what somebody who names a file wants."""
    if settings.api_key_file is None:
        return settings.api_key
    return (*settings.api_key, *_read(settings.api_key_file))


def _read(path: Path) -> list[SecretStr]:
    """A key a line; what begins with `#` is a comment."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"--api-key-file: {path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--api-key-file: {path} is not UTF-8 text") from None
    keys = [SecretStr(key) for line in lines if (key := line.strip()) and not key.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file: {path} has no key in it")
    return keys


def _offered(headers: Headers) -> bytes:
    authorizations = headers.getlist("authorization")
    if not authorizations:
        keys = headers.getlist("x-api-key")
        return keys[0].encode("latin-1") if len(keys) == 1 else b""
    if len(authorizations) > 1:
        return b""
    scheme, _, key = authorizations[0].partition(" ")
    return key.encode("latin-1") if scheme.lower() == "bearer" else b""
